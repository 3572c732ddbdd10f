"""Rules for the lines of Caffe, Keras, Lightning, tqdm, Hugging Face and people's own loops.

A line that fits no rule is left out. Steps and epochs that a line lacks come from earlier lines.
"""

from __future__ import annotations

import ast
import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

from dlctl.contract.measured.judged_series import RATE_NAMES, data_of, is_better_lower
from dlctl.contract.metrics import LEARNING_RATE, SUBID, MetricsLine
from learner.collect.parsers import bars, columns, prose
from learner.collect.parsers.record import (
    EPOCH,
    ITERATION,
    Draft,
    Kind,
    LineParser,
    as_number,
    as_whole,
)

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf)"
_PAIR = re.compile(rf"([A-Za-z_][\w./-]*)(?:: |=)({_NUMBER})(?![\w.])", re.IGNORECASE)
_GLOG = re.compile(r"[EFIW]\d{4,8}\s+\d\d:\d\d:\d*\.\d+")
_CAFFE = re.compile(r"\] +Iteration (\d+)(?:, (Testing net)| \(|, (loss|lr) =)")
_CAFFE_OUTPUT = re.compile(rf"\] +(Train|Test) net output #\d+: (\S+) = ({_NUMBER})", re.I)
_CAFFE_PAIR = re.compile(rf"\b(loss|lr) = ({_NUMBER})", re.IGNORECASE)
_KERAS_EPOCH = re.compile(r"Epoch (\d+)/\d+\s*$")
_KERAS = re.compile(r"\s*(\d+)/(\d+) +(?:[\[━]|- \d+m?s )")
_RICH_BAR = re.compile(r"\s*Epoch (\d+)/\S+ .*?\b(\d+)/(\d+) [\d:]+ • ")
_ESCAPE = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
_WORDS = ("Iteration", " net output", "poch", "%|", "{'", '{"', " - ", "━")
"""A line without any of these words fits no rule but that of own loops."""
_HEADING = re.compile(r"\W*(test|val\w*|eval\w*)\b[^\d]{0,20}:\s*", re.IGNORECASE)
"""A line such as `Test Error:`, which says what the next one is about."""
_OURS = "dlctl: "
"""What begins a line that the watchdog or the collector writes into the log."""
_UNKNOWN_S = 60.0
"""A program that prints for so long is expected to have printed a metric."""
_EXCERPT = 60
_AS_A_HINT = 100
"""A word such as `loss` tells more than numbers do."""
_MOST_LINES = 10_000
"""Of so many lines the one with the most numbers is told, if none is understood."""
_MOST_CHARACTERS = 4096
"""A longer line fits no rule, so that none of them can take long."""
_NUMBERS = re.compile(r"\d+\.\d+|\b\d+\b")
_NO_LITERAL = re.compile(r"\b(nan|inf)\b(?!')")
_NOT_A_METRIC = {"ETA", "v_num", "it/s"}
TRAIN, TEST = "train", "test"


class AutoParser(LineParser):
    """Applies the rules to the lines of one file."""

    def __init__(
        self, subid: str = "", complain: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._subid, self._complain, self._clock = subid, complain, clock
        self._begun_at: float | None = None
        self._nearest = (0, "")
        """The line that looked most like one with a metric, until one is found."""
        self._read_lines = 0
        self._is_known = False
        """Whether a line has fitted a rule, or that none did was told."""
        self._place, self._bars = prose.Place(), bars.Bars()
        self._held = ""
        """A line whose step the next bar tells: what tqdm writes stands above its bar."""
        self._heading = ""
        self._columns: list[str] = []
        """Those of the table whose rows come now."""
        self._stepped: set[str] = set()
        """Metrics of the training that lines with a step of their own have told."""
        self._done: float | None = None
        self._step: int | None = None
        self._epoch: int | None = None
        self._caffe_tests = False

    def memory(self) -> dict[str, Any]:
        """Return the newest step and epoch."""
        return {"step": self._step, "epoch": self._epoch, "tests": self._caffe_tests,
                "known": self._is_known, "place": list(self._place), "bars": list(self._bars),
                "held": self._held, "columns": self._columns,
                "stepped": sorted(self._stepped)}  # fmt: skip

    def remember(self, memory: Any) -> None:
        """Go on from a step and an epoch."""
        known = memory if isinstance(memory, dict) else {}
        step, epoch = known.get("step"), known.get("epoch")
        self._step = step if isinstance(step, int) else None
        self._epoch = epoch if isinstance(epoch, int) else None
        self._caffe_tests = bool(known.get("tests"))
        self._is_known = bool(known.get("known"))
        with contextlib.suppress(TypeError):
            self._place = prose.Place(*map(int, known.get("place", ())))
            self._bars = bars.Bars(*map(int, known.get("bars", ())))
        self._held = str(known.get("held", ""))
        self._columns = list(map(str, known.get("columns", ())))
        self._stepped = set(map(str, known.get("stepped", ())))

    def feed(self, text: str) -> list[MetricsLine]:
        """Return the records of further lines."""
        found: list[MetricsLine] = []
        small = text.lower()
        words = [word for word in _WORDS if word in text]
        hints = [word for word in prose.WORDS if word in small]
        if self._is_known and not (words or hints or self._held or self._columns):
            return found
        for line in text.split("\n"):
            if self._held and line.strip():
                found += self._release(line)
            if len(line) <= _MOST_CHARACTERS and not line.startswith(_OURS):
                is_row = self._columns and line.lstrip()[:1].isdigit()
                if is_row or any(word in line for word in words) or prose.has_hint(line, hints):
                    found += self._line(line)
                if not self._is_known:
                    self._note(line, found)
        return found

    def finish(self) -> list[MetricsLine]:
        """Return the records of a line that no bar followed; complain if none was understood."""
        found = self._release("")
        if not (self._is_known or found) and prose.HINTS.search(self._nearest[1]):
            self._tell_nearest()
        return found

    def _release(self, line: str) -> list[MetricsLine]:
        """Return the records of the line before; this one's bar tells its step."""
        held, self._held = self._held, ""
        if bar := bars.read(_ESCAPE.sub("", line)):
            self._move(bar)
        return self._line(held, is_held=True) if held else []

    def _note(self, line: str, found: list[MetricsLine]) -> None:
        """Say after a minute that no line was understood, if some had numbers."""
        self._read_lines += 1
        numbers = len(_NUMBERS.findall(line)) if self._read_lines < _MOST_LINES else 0
        if numbers and prose.has_hint(line, prose.WORDS):
            numbers += _AS_A_HINT
        if found:
            self._is_known = True
        elif numbers > self._nearest[0]:
            self._nearest = numbers, line
        self._begun_at = self._clock() if self._begun_at is None else self._begun_at
        if not self._is_known and self._clock() - self._begun_at > _UNKNOWN_S and self._nearest[1]:
            self._tell_nearest()

    def _tell_nearest(self) -> None:
        self._is_known = True
        self._complain(
            f"no line of the log is understood as a metric so far, such as "
            f"{self._nearest[1].strip()[:_EXCERPT]!r}: print `epoch 1 step 10: loss 0.5`, or "
            "name another parser in evaluation_metrics (docs/metrics.md#parsers)."
        )

    def _line(self, line: str, *, is_held: bool = False) -> list[MetricsLine]:
        if "\x1b" in line:
            line = _ESCAPE.sub("", line)
        if self._bars.of and not is_held and line.startswith(("{'", '{"')):
            self._held = line
            return []
        for rule in (self._hugging_face, self._caffe, self._rich, self._table, self._bar,
                     self._keras, self._prose):  # fmt: skip
            drafts = rule(line)
            if drafts is not None:
                found = (draft.line() for draft in drafts)
                return [record for record in found if record is not None]
        return []

    def _draft(self, group: str) -> Draft:
        draft = Draft(group)
        draft.done = self._done
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
            group, own = data_of(LEARNING_RATE if name in RATE_NAMES else name)
            draft = drafts.setdefault(group or TRAIN, self._draft(group or TRAIN))
            draft.value(own, Kind.FLOAT, value)
        return list(drafts.values())

    def _hugging_face(self, line: str) -> list[Draft] | None:
        begin, end = line.find("{"), line.rfind("}") + 1
        if begin < 0 or end <= begin or line[begin + 1 : begin + 2] not in ("'", '"'):
            return None
        try:
            found = ast.literal_eval(_NO_LITERAL.sub(r"'\1'", line[begin:end]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        if bar := bars.read(line[:begin]):
            self._move(bar)
        elif (place := prose.read(line[:begin])).epoch is not None or place.inner is not None:
            found = {"epoch": place.epoch, "step": place.inner} | found
        if "train_runtime" in found and "train_loss" in found:  # of the Trainer's last line
            found["mean_loss"] = found.pop("train_loss")
        for name in ("step", "global_step", "iter", "iteration"):
            if (step := as_whole(found.pop(name, None))) is not None:
                self._step = step
        epoch = as_number(found.get("epoch"))
        if epoch is not None and epoch == epoch:
            self._epoch = int(epoch)
        pairs: list[tuple[str, object]] = []
        for name, value in found.items():
            inner = value if isinstance(value, dict) else {"": value}
            pairs += [("_".join(filter(None, (str(name), str(key)))), each)
                      for key, each in inner.items() if name != "epoch"]  # fmt: skip
        is_placed = epoch is not None or self._step is not None or self._epoch is not None
        if not is_placed and not any(
            is_better_lower(name) is not None and as_number(value) is not None
            for name, value in pairs
        ):
            return None  # the settings, such as {'lr': 0.1, 'epochs': 20}
        if _of_training(pairs):
            self._bars = self._bars.beside_values()
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
        bar = bars.read(line)
        if bar is None:
            return None
        pairs = prose.in_group(bar.group, _PAIR.findall(line[bar.end :]))
        own = _of_training(pairs)
        self._stepped |= own
        self._move(bar, measured=bool(own))
        return self._by_group(pairs)

    def _move(self, bar: bars.Bar, *, measured: bool = False) -> None:
        """Take the step and the epoch from the training's own bar."""
        self._bars, step = self._bars.after(bar, measured=measured)
        if step is not None:
            self._step, self._epoch = step, self._epoch if bar.epoch is None else bar.epoch

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

    def _table(self, line: str) -> list[Draft] | None:
        """Read a table whose first column is the epoch or the step."""
        if head := columns.names(line):
            self._columns = head
            return []
        found = columns.read(line, self._columns) if self._columns else None
        return None if found is None else self._placed(found, "")

    def _prose(self, line: str) -> list[Draft] | None:
        """Read what a person's own loop prints."""
        heading, self._heading = self._heading, ""
        if match := _HEADING.fullmatch(line):
            self._heading = TEST if match[1].lower() == TEST else "validation"
            return None
        found = prose.read(line)
        if found.epoch is not None and not found.values and prose.is_heading(line):
            self._epoch = found.epoch
            return None
        return self._placed(found, heading)

    def _placed(self, found: prose.Line, heading: str) -> list[Draft] | None:
        """Return the values of a line at the place that it tells, or that is known."""
        if not found.values:
            return None
        step = None  # a validation's batches are none of the training
        if found.group in ("", TRAIN) and (found.inner is not None or not self._bars.is_main):
            self._place, step = self._place.after(found, self._epoch)
        self._step = self._step if step is None else step
        self._epoch = self._epoch if found.epoch is None else found.epoch
        if found.group in ("", TRAIN):
            self._done = self._place.share(found, self._epoch)
        if self._step is None and self._epoch is None:
            return None
        pairs = prose.in_group(found.group or heading, found.values)
        if found.inner is not None:
            self._stepped |= _of_training(pairs)
        elif found.epoch is not None:  # a mean of its steps, which stand at the same place
            pairs = [(f"epoch_{data_of(name)[1]}", value)
                     if _of_training([(name, value)]) & self._stepped else (name, value)
                     for name, value in pairs]  # fmt: skip
        return self._by_group(pairs)


def _of_training(pairs: list[tuple[str, Any]]) -> set[str]:
    """Return the names of the values that are of training data."""
    found = (data_of(name) for name, _ in pairs)
    return {own for group, own in found if group in ("", TRAIN)}
