"""Rules that dlctl ships for the lines of Caffe, Keras, Lightning, tqdm and Hugging Face.

A line that fits no rule is left out. Steps and epochs that a line lacks come from earlier lines.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from dlctl.contract.measured.judged_series import data_of
from dlctl.contract.metrics import SUBID, MetricsLine
from learner.collect.parsers.record import EPOCH, ITERATION, Draft, Kind, LineParser, as_number

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)"
_PAIR = re.compile(rf"([A-Za-z_][\w./-]*)(?:: |=)({_NUMBER})(?![\w.])", re.IGNORECASE)
_GLOG = re.compile(r"[EFIW]\d{4,8}\s+\d\d:\d\d:\d*\.\d+")
_CAFFE = re.compile(r"\] +Iteration (\d+)(?:, (Testing net)| \(|, (loss|lr) =)")
_CAFFE_OUTPUT = re.compile(rf"\] +(Train|Test) net output #\d+: (\S+) = ({_NUMBER})", re.I)
_CAFFE_PAIR = re.compile(rf"\b(loss|lr) = ({_NUMBER})", re.IGNORECASE)
_KERAS_EPOCH = re.compile(r"Epoch (\d+)/\d+\s*$")
_KERAS = re.compile(r"\s*(\d+)/(\d+) +[\[━]")
_BAR = re.compile(r"(?:\s*([^|]{0,200}?):)?\s*\d+%\|[^|]{0,400}\|\s*(\d+)/(\d+) \[")
_RICH_BAR = re.compile(r"\s*Epoch (\d+)/\S+ .*?\b(\d+)/(\d+) [\d:]+ • ")
_LIGHTNING = re.compile(r"(?:Epoch|Training epoch) (\d+)$")
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_WORDS = ("Iteration", " net output", "Epoch ", "%|", "{'", " - ", "━")
"""A line without any of these words fits no rule."""
_MOST_CHARACTERS = 4096
"""A longer line fits no rule, so that none of them can take long."""
_NO_LITERAL = re.compile(r"\b(nan|inf)\b(?!')")
_NOT_A_METRIC = {"ETA", "v_num", "it/s"}
TRAIN, TEST = "train", "test"


class AutoParser(LineParser):
    """Applies the rules to the lines of one file."""

    def __init__(self, subid: str = "") -> None:
        self._subid = subid
        self._step: int | None = None
        self._epoch: int | None = None
        self._caffe_tests = False

    def memory(self) -> dict[str, Any]:
        """Return the newest step and epoch."""
        return {"step": self._step, "epoch": self._epoch, "tests": self._caffe_tests}

    def remember(self, memory: Any) -> None:
        """Go on from a step and an epoch."""
        known = memory if isinstance(memory, dict) else {}
        step, epoch = known.get("step"), known.get("epoch")
        self._step = step if isinstance(step, int) else None
        self._epoch = epoch if isinstance(epoch, int) else None
        self._caffe_tests = bool(known.get("tests"))

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines."""
        found: list[MetricsLine] = []
        for line in text.split("\n"):
            if len(line) <= _MOST_CHARACTERS and any(word in line for word in _WORDS):
                found += self._line(line)
        return found

    def _line(self, line: str) -> list[MetricsLine]:
        if "\x1b" in line:
            line = _ESCAPE.sub("", line)
        for rule in (self._hugging_face, self._caffe, self._rich, self._bar, self._keras):
            drafts = rule(line)
            if drafts is not None:
                found = (draft.line() for draft in drafts)
                return [record for record in found if record is not None]
        return []

    def _draft(self, group: str) -> Draft:
        draft = Draft(group)
        draft.text(SUBID, self._subid)
        if self._step is not None:
            draft.axis(ITERATION, Kind.INT, self._step)
        if self._epoch is not None:
            draft.axis(EPOCH, Kind.INT, self._epoch)
        return draft

    def _by_group(self, pairs: list[tuple[str, object]]) -> list[Draft]:
        """Return a draft for each group: `val_loss` is `loss` of the validation."""
        drafts: dict[str, Draft] = {}
        for name, value in pairs:
            if name in _NOT_A_METRIC:
                continue
            group, own = data_of(name)
            draft = drafts.setdefault(group or TRAIN, self._draft(group or TRAIN))
            draft.value(own, Kind.FLOAT, value)
        return list(drafts.values())

    def _hugging_face(self, line: str) -> list[Draft] | None:
        begin, end = line.find("{'"), line.rfind("}") + 1
        if begin < 0 or end <= begin:
            return None
        try:
            found = ast.literal_eval(_NO_LITERAL.sub(r"'\1'", line[begin:end]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        epoch = as_number(found.get("epoch"))
        if epoch is not None and epoch == epoch:
            self._epoch = int(epoch)
        pairs: list[tuple[str, object]] = [
            (str(name), value) for name, value in found.items() if name != "epoch"
        ]
        return self._by_group(pairs)

    def _caffe(self, line: str) -> list[Draft] | None:
        stamp = _GLOG.match(line)
        if stamp is None:
            return None
        pairs: list[tuple[str, object]] = []
        group = TRAIN
        if match := _CAFFE.search(line):
            self._step = int(match[1])
            self._caffe_tests = match[2] is not None
            pairs = [
                ("learning_rate" if name == "lr" else name, value)
                for name, value in _CAFFE_PAIR.findall(line, match.start())
            ]
        elif match := _CAFFE_OUTPUT.search(line):
            group = TEST if match[1].lower() == TEST else TRAIN
            pairs = [(match[2], match[3])]
        draft = self._draft(group)
        draft.when(stamp[0])
        for name, value in pairs:
            draft.value(name, Kind.FLOAT, value)
        return [draft]

    def _rich(self, line: str) -> list[Draft] | None:
        match = _RICH_BAR.match(line)
        if match is None:
            return None
        self._epoch = int(match[1])
        self._step = self._epoch * int(match[3]) + int(match[2])
        return self._by_group(list(_PAIR.findall(line, match.end())))

    def _bar(self, line: str) -> list[Draft] | None:
        match = _BAR.match(line)
        if match is None:
            return None
        name = (match[1] or "").strip()
        if lightning := _LIGHTNING.fullmatch(name):
            self._epoch = int(lightning[1])
            self._step = self._epoch * int(match[3]) + int(match[2])
        elif not name or name.lower().startswith("train"):
            self._step = int(match[2])
        tail = line[line.find("[", match.start(3)) :]
        return self._by_group(list(_PAIR.findall(tail)))

    def _keras(self, line: str) -> list[Draft] | None:
        if match := _KERAS_EPOCH.fullmatch(line):
            self._epoch = int(match[1])
            return []
        match = _KERAS.match(line)
        if match is None or " - " not in line:
            return None
        done = max(1, self._epoch or 1) - 1
        self._step = done * int(match[2]) + int(match[1])
        return self._by_group(list(_PAIR.findall(line, line.index(" - "))))
