"""Lines of metrics: their fields, their files, and the names that dlctl itself uses.

A line is one JSON object: `step`, `epoch`, `time` (Unix seconds on the node's clock), `group`
(such as `train`), and a number or a text for each further name; null stands for NaN and infinity,
which JSON can't hold. A line with an `event` tells in words what happened, and `kind` for programs.
`Status.metrics` uses the same names for numbers.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

STEP, EPOCH, TIME, GROUP = "step", "epoch", "time", "group"
EVENT, KIND = "event", "kind"
"""Words: what happened after the step, as an order of `dlctl tune`; and the `EventKind`."""
DONE = "done"
"""The share of the training that is done by then, from 0 to 1, where a log tells of how many."""
NO_STEP = -1
"""`MetricsLine.step` of what was measured without knowing the step."""


class Source(str, enum.Enum):
    """The writer of a file of metrics; each file has one."""

    LOOP = "loop"
    """The built-in loop; its file's name lacks the source."""
    PROGRAM = "program"
    """A program of the user's own, by `ddl.log`."""
    LOG = "log"
    """The parsers of `evaluation_metrics`."""
    PROGRESS = "progress"
    """The collector beside the learner, of what a program writes to its progress file alone."""
    NODE = "node"
    """The collector beside the learner, of the node."""
    JOB = "job"
    """The supervisor."""


class EventKind(str, enum.Enum):
    """The subject of an event."""

    BEGIN = "begin"
    """An attempt trains from this step on: what earlier attempts did after it is done again."""
    CHECKPOINT = "checkpoint"
    """One is safe on the disk; `seconds` is its cost."""
    VALIDATION = "validation"
    """One has ended; it took `seconds`."""
    ORDER = "order"
    """A person's order took effect."""
    VERDICT = "verdict"
    """An attempt ended."""
    LEARNING_RATE = "learning_rate"
    """It was changed; the reader finds this."""
    PLATEAU = "plateau"
    """The judged metric has hardly improved since this step."""


SUBID = "subid"
"""Text of a line: which of several runs its values are of."""
CLASSES = "classes"
"""The event `begin` has it: the number of classes in the labels of the data."""
SECONDS = "seconds"
"""How long the subject of an event took."""

LOSS = "loss"
LEARNING_RATE = "learning_rate"
SAMPLES_PER_S = "samples_per_s"
"""The samples of all learners together, per second."""
STEP_S = "step_s"
"""Mean duration of a step; the four below are its parts other than computing."""
EXCHANGE_S = "exchange_s"
DATA_WAIT_S = "data_wait_s"
CHECKPOINT_STALL_S = "checkpoint_stall_s"
CHECKPOINT_S = "checkpoint_s"
"""How long the newest checkpoint took until it was safe on the disk."""
MEMORY_BYTES = "memory_bytes"
"""Resident memory of the learner's process."""
BATCHES = "batches"
"""With a parameter server, this learner's own value, like all below."""
PUSHES = "pushes"
PUSHES_PER_S = "pushes_per_s"
STALENESS = "staleness"
"""Mean number of other learners' pushes between a pull and the push that is based on it."""
WAIT_SHARE = "wait_share"
"""Share of the time in which the learner waited for others."""
RESTARTS = "restarts"
"""How often the learner was restarted."""

STEP_PARTS = {EXCHANGE_S: "exchange", DATA_WAIT_S: "data", CHECKPOINT_STALL_S: "checkpoint"}
"""Parts of `step_s`, with the word that people read."""
SERVER_METRICS = (STALENESS, PUSHES, PUSHES_PER_S, WAIT_SHARE, BATCHES, RESTARTS)
RESERVED = (STEP, EPOCH, TIME, GROUP, EVENT, KIND, LOSS, LEARNING_RATE, SAMPLES_PER_S, STEP_S,
            CHECKPOINT_S, MEMORY_BYTES,
            *STEP_PARTS, *SERVER_METRICS)  # fmt: skip
"""Names that a user's own metric can't have."""


_MOST_STEPS = 2**53
"""What a float holds exactly."""
_HEADS = (STEP, EPOCH, TIME, GROUP, EVENT, KIND, DONE)


@dataclass(frozen=True)
class MetricsLine:
    """One measurement, or an event."""

    step: int = NO_STEP
    """Steps done; `NO_STEP` if that is not known."""
    epoch: int | None = None
    time: float | None = None
    values: dict[str, float | None] = field(default_factory=dict)
    event: str = ""
    """The event at this step, in words."""
    group: str = ""
    """Which data the values are of, such as `train` or `test`; empty if nobody says."""
    kind: str = ""
    """The `EventKind` of an event; empty in older files."""
    texts: dict[str, str] = field(default_factory=dict)
    """Values that are no numbers."""
    done: float | None = None
    """The share of the training that is done; None: nobody says."""

    @property
    def series_group(self) -> str:
        """Return the group, behind the name of the run if a file holds several."""
        run = self.texts.get(SUBID, "")
        return f"{run}/{self.group}".strip("/") if run else self.group

    def plain(self) -> dict[str, float | int | str | None]:
        """Return the line as one flat object, as it stands in the file."""
        head = {
            STEP: self.step if self.step >= 0 else None, EPOCH: self.epoch, TIME: self.time,
            GROUP: self.group or None, EVENT: self.event or None, KIND: self.kind or None,
            DONE: self.done,
        }  # fmt: skip
        known = {k: v for k, v in head.items() if v is not None}
        return {**known, **self.values, **self.texts}

    def encode(self) -> bytes:
        """Return the line, newline included."""
        text = json.dumps(self.plain(), allow_nan=False, ensure_ascii=False)
        return f"{text}\n".encode(errors="replace")


def make_line(
    step: int, epoch: int | None, time: float, values: Mapping[str, float], group: str = ""
) -> MetricsLine:
    """Return a line; a value that is no finite number becomes None."""
    known = {name: finite(value) for name, value in values.items()}
    return MetricsLine(step, epoch, round(time, 3), known, group=group)


def placed(line: MetricsLine, newest_step: int) -> MetricsLine:
    """Return a measurement with a step, also if its program tells nothing but the epoch.

    Args:
        newest_step: that the same file has told so far; without any, epochs are the steps.
    """
    if line.step != NO_STEP or line.event or line.epoch is None or line.epoch < 0:
        return line
    return replace(line, step=max(newest_step, line.epoch))


def parse_line(text: str | bytes) -> MetricsLine | None:
    """Return the line in a text; None for a partial line, or for something else."""
    try:
        return _line_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def parse_lines(content: bytes) -> Iterator[MetricsLine]:
    """Yield the lines in a part of a file; what is none is left out."""
    texts = [text for text in content.split(b"\n") if text]
    try:
        found = json.loads(b"[%s]" % b",".join(texts))  # far faster than one by one
        lines = map(_line_of, found) if len(found) == len(texts) else map(parse_line, texts)
    except (ValueError, RecursionError):
        lines = map(parse_line, texts)
    yield from (line for line in lines if line is not None)


def _line_of(found: object) -> MetricsLine | None:
    if not isinstance(found, dict):
        return None
    step, epoch, time, group, event, kind, done = (found.pop(name, None) for name in _HEADS)
    known = type(step) is int and 0 <= step < _MOST_STEPS
    time = _as_read(time) if type(time) in (int, float) else None
    if not known and time is None:
        return None
    values: dict[str, float | None] = {}
    texts: dict[str, str] = {}
    for name, value in found.items():
        if type(value) is str:
            texts[name] = value
        elif value is None or type(value) in (float, int):
            values[name] = _as_read(value)
    return MetricsLine(
        step=step if known else NO_STEP,
        epoch=epoch if type(epoch) is int and abs(epoch) < _MOST_STEPS else None,
        time=None if time is None else float(time),
        values=values,
        event=event if isinstance(event, str) else "",
        group=group if isinstance(group, str) else "",
        kind=kind if isinstance(kind, str) else "",
        texts=texts,
        done=_as_read(done) if type(done) in (int, float) else None,
    )


def own_name(name: str) -> str:
    """Return a name for a user's value that is none of the line's own fields."""
    return f"{name}_" if name in _HEADS else name


def metrics_name(attempt: int, rank: int, source: Source = Source.LOOP) -> str:
    """Return the name of a file of metrics: `<attempt>-<rank>[-<source>].jsonl`."""
    middle = "" if source is Source.LOOP else f"-{source.value}"
    return f"{attempt}-{rank}{middle}.jsonl"


_NAME = re.compile(r"(?P<attempt>[1-9]\d*)-(?P<rank>\d+)(?:-(?P<source>[a-z]+))?\.jsonl")


def parse_metrics_name(name: str) -> tuple[int, int, Source] | None:
    """Return attempt, rank and source of a file of metrics; None for another file."""
    match = _NAME.fullmatch(name)
    sources = {source.value: source for source in Source}
    if match is None or (source := sources.get(match["source"] or "loop")) is None:
        return None
    return int(match["attempt"]), int(match["rank"]), source


def finite(value: float) -> float | None:
    """Return a number, or None for NaN and infinity."""
    return value if math.isfinite(value) else None


def _as_read(value: float | None) -> float | None:
    try:
        return value if value is not None and math.isfinite(value) else None
    except OverflowError:  # a whole number that no float can hold
        return None
