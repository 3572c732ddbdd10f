"""Write the words beside the curves: the six answers, learners, utilisation, log. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from dlctl.contract import State, Status
from dlctl.contract.measured.utilisation import CPU_PERCENT, GPU_PERCENT, MEMORY_RSS_BYTES, gpu_name
from dlctl.contract.metrics import LOSS, Source
from dlctl.outputs.insight import Insight
from dlctl.record import Record
from dlctl.series.answers import BAD, GOOD, UNKNOWN, Answer
from dlctl.series.readable import memory_size
from dlctl.series.run import Run
from dlctl.terminal.text import BOLD, DIM, GREEN, RED, TONES, YELLOW, Line, cut, wrapped
from dlctl.units import format_span, natural

_SIGNS = {GOOD: ("✓", GREEN), BAD: ("!", RED), UNKNOWN: ("·", DIM)}
_SHORT = {"learning_rate": "rate"}
_MOST_REASONS = 3
"""Lines."""
_QUIET_BEATS = 3
"""A learner is quiet after so many heartbeats that did not come."""


class Still:
    """The choices of a person who watches: here, none."""

    paused: bool = False
    """Whether news waits."""


@dataclass(frozen=True)
class Shown:
    """The state of one training."""

    record: Record
    run: Run
    insight: Insight = field(default_factory=Insight)
    learners: Sequence[Status] = ()
    lines: Sequence[str] = ()
    trouble: str = ""
    """Why its site does not answer."""

    @cached_property
    def names(self) -> list[str]:
        """Return the names of curves: the judged one, the loss, the others, the nodes' last."""
        order = lambda k: (k.source == Source.NODE.value, k.name != LOSS, natural(k.name))  # noqa: E731
        judged = [self.insight.judged] if self.insight.judged else []
        return list(dict.fromkeys([*judged, *(k.name for k in sorted(self.run.curves, key=order))]))


def heading(line: Line, record: Record, parts: Sequence[str], now: float) -> Line:
    """Add to a line a training's id, its state, its attempt, other parts, and since when."""
    line.add(record.training_id, BOLD).add(" ")
    line.add(str(record.state), TONES[record.state.tone])
    attempt = f"attempt {record.attempt}" if record.attempt > 1 else ""
    for part in filter(None, [attempt, *parts]):
        line.add(f" · {part}")
    if record.stale_since is not None:
        line.add(f" · stale for {format_span(now - record.stale_since)}", YELLOW)
    return line


def why(trouble: str, reason: str, columns: int) -> list[Line]:
    """Return a few lines on why a site does not answer, or else on a state."""
    if not (text := trouble or reason):
        return []
    return wrapped(Line(), text, columns, YELLOW if trouble else DIM)[:_MOST_REASONS]


def help_on(keys: Sequence[tuple[str, str]]) -> list[Line]:
    """Return a line for each key or mark."""
    return [Line().add(f"{key:>8}  ", BOLD).add(what) for key, what in keys]


def words(each: Shown, columns: int, rows: int) -> list[Line]:
    """Return at most so many lines, of which each kind gets its share.

    Answers are wrapped as far as two thirds of the lines allow, bad ones first.
    """
    answers = _answers(each.insight.answers, columns, rows * 2 // 3)
    room = max(0, rows - len(answers))
    learners = _learners(each, columns, max(2, room // 3)) if room >= 3 else []
    sentences = [
        line
        for text in each.insight.utilisation
        for line in wrapped(Line().add("  "), text, columns)
    ][: max(0, (room - len(learners)) // 3)]
    left = rows - len(answers) - len(learners) - len(sentences)
    log = [Line().add(cut(text, columns), DIM) for text in list(each.lines)[-left:]] if left else []
    return [*answers, *learners, *sentences, *log][:rows]


def _answers(answers: Sequence[Answer], columns: int, rows: int) -> list[Line]:
    whole = [wrapped(_head(answer), answer.text, columns) for answer in answers]
    spare = rows - len(answers)
    for i in sorted(range(len(answers)), key=lambda i: answers[i].state != BAD):
        more = len(whole[i]) - 1
        if more > spare:
            whole[i] = [_head(answers[i]).add(answers[i].text).fitted(columns)]
        else:
            spare -= more
    return [line for lines in whole for line in lines]


def _head(answer: Answer) -> Line:
    sign, style = _SIGNS.get(answer.state, ("•", 0))
    text = _SHORT.get(answer.key, answer.key).ljust(10)
    return Line().add(f"{sign} ", style).add(f"{text} ", DIM)


def _learners(each: Shown, columns: int, rows: int) -> list[Line]:
    """Return a line for each learner; those that are quiet or have failed come first."""
    newest = max((status.heartbeat_at for status in each.learners), default=0.0)
    quiet = {status.rank for status in each.learners if _is_quiet(status, newest)}
    failed = {status.rank for status in each.learners if status.state is State.FAILED}
    order = sorted(each.learners, key=lambda s: (s.rank not in quiet | failed, s.rank))
    shown = order if len(order) <= rows else order[: rows - 1]
    lines = []
    for status in shown:
        line = Line().add(f"  learner {status.rank} on {status.host}: ", DIM)
        line.add(str(status.state.value).lower(), RED if status.rank in failed else 0)
        if status.rank in quiet:
            since = time.strftime("%H:%M:%S", time.localtime(status.heartbeat_at))
            line.add(f" · quiet since {since}", YELLOW)
        for word, value in _use(each.run, status.rank):
            line.add(f" · {word} ", DIM).add(value)
        lines.append(line.fitted(columns))
    if rest := {status.rank for status in order[len(shown) :]}:
        text = f"and {len(rest)} more learners" if shown else f"{len(rest)} learners"
        odd = ((len(rest & quiet), "quiet"), (len(rest & failed), "failed"))
        parts = "".join(f", {count} of them {word}" for count, word in odd if count)
        lines.append(Line().add(f"  {text}", DIM).add(parts, YELLOW).fitted(columns))
    return lines


def _is_quiet(status: Status, newest: float) -> bool:
    """Return whether a learner has sent no heartbeat while another one did."""
    late_s = newest - status.heartbeat_at
    return late_s > _QUIET_BEATS * status.heartbeat_interval_s and not status.state.final


def _use(run: Run, rank: int) -> list[tuple[str, str]]:
    mine = {
        key.name: curve.last for key, curve in run.curves.items()
        if key.source == Source.NODE.value and key.learner == rank and len(curve)
    }  # fmt: skip
    found = []
    if (cpu := mine.get(CPU_PERCENT)) is not None:
        found.append(("CPU", f"{cpu:.0f} %"))
    if (memory := mine.get(MEMORY_RSS_BYTES)) is not None:
        found.append(("memory", memory_size(memory)))
    for index in range(16):
        if (gpu := mine.get(gpu_name(index, GPU_PERCENT))) is not None:
            found.append((f"GPU {index}", f"{gpu:.0f} %"))
    return found
