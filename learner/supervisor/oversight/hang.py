"""Notice learners that are silent or make no step any more, and find out who is waited for.

`HangWatch` and `describe` are pure; `HangCheck` has the watchdogs save the stacks of their learners
(`learner.agent.stacks`) before the attempt is ended with the kind `hung`.
"""

from __future__ import annotations

import contextlib
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import Evidence, HangPolicy, Status, VerdictKind, stacks_file
from learner.job.directives import STACKS
from learner.job.outcome import Outcome, failed
from learner.job.status import INTERVAL_S
from learner.supervisor.control import EndRequest

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL: a learner that hangs has nothing to save."""
STACKS_S = 20.0
"""How long the watchdogs may take to save the stacks."""
_LEAST_S = 3 * INTERVAL_S
"""A step shows only with the next heartbeat."""
_HEARD_S = 15.0
"""After this long without any heartbeat, it is the file system that hangs."""
_LONGEST_TICK_S = 10.0
"""More than this between two looks was a pause of the whole job, such as a suspension."""
_STEPS_KEPT = 201
_LINES_SHOWN = 20
_EXCHANGES = re.compile(
    r"/learner/(exchange|data_parallel|ddl)/|/psrv/|/torch/distributed/|/mpi4py/|/horovod/"
)
_FRAME = re.compile(r'^ +File "(?P<file>.+)", line (?P<line>\d+)(?: in (?P<function>.+))?$')


@dataclass(frozen=True)
class Stall:
    """No learner has made a step for too long."""

    quiet_s: float
    limit_s: float
    steps: Mapping[int, int | None]
    """The last step that each learner has reported."""


class HangWatch:
    """Compares the statuses of the learners over time, each look with the one before."""

    def __init__(self, policy: HangPolicy) -> None:
        self._policy = policy
        self._looked_at: float | None = None
        self._heard_at = 0.0
        self._beats: dict[int, float] = {}
        self._positions: dict[int, tuple[int | None, float]] = {}
        self._step: int | None = None
        self._step_s = 0.0
        """How long ago `_step` was reached."""
        self._quiet_s = self._longest_s = 0.0
        self._means: deque[float] = deque(maxlen=_STEPS_KEPT)

    @property
    def limit_s(self) -> float:
        """Return how long the learners may go without a step."""
        median_s = statistics.median(self._means) if self._means else 0.0
        by_steps_s = self._policy.factor * median_s
        return max(_LEAST_S, self._policy.floor_s, by_steps_s, 2 * self._longest_s)

    def look(self, now: float, statuses: Sequence[Status]) -> Stall | None:
        """Return the stall if there is one.

        Args:
            now: seconds on a clock that never jumps back.
        """
        running = [status for status in statuses if not status.state.final]
        passed_s = 0.0 if self._looked_at is None else now - self._looked_at
        passed_s, self._looked_at = min(passed_s, _LONGEST_TICK_S), now
        beats = {status.rank: status.heartbeat_at for status in running}
        if beats != self._beats:
            self._beats, self._heard_at = beats, now
        positions = {status.rank: (status.step, status.progressed_at) for status in running}
        if positions != self._positions:
            self._positions = positions
            self._longest_s = max(self._longest_s, self._quiet_s)
            self._quiet_s = 0.0
        elif now - self._heard_at <= _HEARD_S:
            self._quiet_s += passed_s
        steps = {status.rank: status.step for status in running}
        self._count(max((step for step in steps.values() if step is not None), default=None),
                    passed_s)  # fmt: skip
        # Without a step yet, models are compiled; after the last one, results are written.
        judged = self._step is not None and any(step is not None for step in steps.values())
        ended = any(status.done is not None and status.done >= 1 for status in running)
        if not judged or ended or self._quiet_s <= self.limit_s:
            return None
        return Stall(self._quiet_s, self.limit_s, steps)

    def _count(self, step: int | None, passed_s: float) -> None:
        self._step_s += passed_s
        if step is None or step == self._step:
            return
        if self._step is not None and step > self._step:
            self._means.append(self._step_s / (step - self._step))
        self._step, self._step_s = step, 0.0


class HangCheck:
    """Ends an attempt that hangs, once the stacks of its learners are saved.

    Args:
        direct: writes a directive (action, reason, grace period); returns whether that worked.
    """

    def __init__(
        self, policy: HangPolicy | None, job_dir: Path, attempt: int, training_id: str,
        direct: Callable[[str, str, float], bool],
    ) -> None:  # fmt: skip
        self._watch = None if policy is None else HangWatch(policy)
        self._job_dir, self._attempt, self._id = job_dir, attempt, training_id
        self._direct = direct
        self._asked_at: float | None = None
        self.request: EndRequest | None = None
        """Set once the attempt is to be ended."""
        self.outcome: Outcome | None = None
        """That of the attempt, set with `request`."""

    def look(self, now: float, statuses: Sequence[Status]) -> None:
        """Look for a hang; if there is one, have the stacks saved, then end the attempt."""
        if self._watch is None or self.request is not None:
            return
        stall = self._watch.look(now, statuses)
        if stall is None:
            self._asked_at = None
            return
        reason = f"no step for {stall.quiet_s:.0f} s"
        if self._asked_at is None:
            if self._direct(STACKS, reason, 0.0):
                self._asked_at = now
            return
        running = [status for status in statuses if not status.state.final]
        stacks = self._stacks(running)
        if len(stacks) < len(running) and now - self._asked_at < STACKS_S:
            return
        self.outcome = describe(stall, running, stacks, self._id, self._attempt)
        self.request = EndRequest("stop", reason, GRACE_S, VerdictKind.HUNG)

    def _stacks(self, statuses: Sequence[Status]) -> dict[int, str]:
        found = {}
        for status in statuses:
            path = self._job_dir / stacks_file(self._attempt, status.rank)
            with contextlib.suppress(OSError):
                found[status.rank] = path.read_text(errors="replace")
        return found


def describe(
    stall: Stall, statuses: Sequence[Status], stacks: Mapping[int, str], training_id: str,
    attempt: int,
) -> Outcome:  # fmt: skip
    """Return the outcome of an attempt that hangs: who was waited for, and where that learner is.

    Args:
        statuses: of the learners that run.
        stacks: what was saved of each of them, by rank.
    """
    waited_for, why = _waited_for(statuses, stacks)
    blocks = _main_threads(stacks.get(waited_for[0].rank, ""))
    where = next(filter(None, map(_place, blocks)), "")
    alone = len(statuses) == 1
    who = " and ".join(f"learner {each.rank} on {each.host}" for each in waited_for[:3])
    place = f"{who[:1].upper()}{who[1:]} was at {where}" if where else ""
    if alone:
        detail = f"; it was at {where}" if where else ""
    elif why:
        was = "were" if len(waited_for) > 1 else "was"
        detail = f"; {who} {was} waited for" + (f", at {where}" if where else "") + f" ({why})"
    else:
        detail = "; each waits for the others" + (f". {place}" if place else "")
    nobody = "The learner" if alone else "No learner"
    has = "has made no step" if alone else "has made a step"
    reason = f"{nobody} {has} for {stall.quiet_s:.0f} s (limit: {stall.limit_s:.0f} s){detail}."
    hint = (
        f"Look at attempts/{attempt}/stacks/ in the job directory (dlctl show {training_id}); if "
        "the step takes so long, raise `hang.floor` in the manifest."
    )
    first = waited_for[0]
    lines = [line for block in blocks[:1] for line in block][:_LINES_SHOWN]
    evidence = Evidence("learner", first.rank, first.host, None, None, lines)
    return failed(VerdictKind.HUNG, reason, hint, evidence)


def _waited_for(statuses: Sequence[Status], stacks: Mapping[int, str]) -> tuple[list[Status], str]:
    """Return the learners for whom the others wait, and how that shows; all, if nothing does."""
    known = [status for status in statuses if _main_threads(stacks.get(status.rank, ""))]
    apart = [s for s in known if not _exchanges(stacks[s.rank])]
    if apart and len(apart) < len(statuses) and len(known) == len(statuses):
        return apart, "the others are in the exchange"
    silent = [status for status in statuses if status.rank not in stacks]
    if silent and len(silent) < len(statuses):
        return silent, "its watchdog does not answer"
    lowest = min((status.step or 0 for status in statuses), default=0)
    behind = [status for status in statuses if (status.step or 0) == lowest]
    if len(behind) < len(statuses):
        return behind, f"at step {lowest}, behind the others"
    return list(statuses), ""


def _exchanges(text: str) -> bool:
    """Return whether a learner is in the exchange with others, by its stacks."""
    return any(
        _EXCHANGES.search(line.replace("\\", "/"))
        for block in _main_threads(text)
        for line in block
    )


def _main_threads(text: str) -> list[list[str]]:
    """Return the frames of the main thread of each process that showed its stacks.

    `faulthandler` lists the newest thread first and the main thread last.
    """
    blocks: list[list[str]] = []
    for process in text.split("\n== ")[1:]:
        frames: list[str] = []
        for line in process.splitlines():
            if "(most recent call first):" in line:
                frames = []
            elif _FRAME.match(line):
                frames.append(line)
        if frames:
            blocks.append(frames)
    return blocks


def _place(frames: Sequence[str]) -> str:
    """Return the innermost line of the user's own code, or else the innermost line."""
    matches = [match for line in frames if (match := _FRAME.match(line))]
    own = [each for each in matches if "/code/" in each["file"]]
    found = (own or matches)[:1]
    return "".join(
        f"{Path(each['file']).name}:{each['line']} in {each['function'] or '?'}" for each in found
    )


SILENCE_S = 30.0
"""After this long without a heartbeat, a learner counts as silent."""


class SilenceCheck:
    """Remembers when each learner's heartbeat has changed."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[float, float]] = {}
        """By rank: the newest heartbeat, and since when it is the newest."""

    def look(self, now: float, statuses: Iterable[Status]) -> str:
        """Return a sentence that names the silent learners; empty if there are none.

        Args:
            now: Seconds on a clock of this node that never jumps.
        """
        silent = []
        for status in statuses:
            beat, since = self._changed.get(status.rank, (-1.0, now))
            if status.heartbeat_at != beat or status.state.final:
                since = now
            self._changed[status.rank] = (status.heartbeat_at, since)
            if now - since > SILENCE_S:
                silent.append(f"learner {status.rank} on {status.host} ({now - since:.0f} s)")
        return f"no heartbeat from {', '.join(silent)}" if silent else ""
