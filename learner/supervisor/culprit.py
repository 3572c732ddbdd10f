"""Which of several learners failed first, and whose ends are only consequences. Pure.

What a learner's end says of itself counts more than the time of its report: clocks of nodes differ,
and a learner that has lost another may end before that one's watchdog has reported. Only among ends
that say equally much the order counts in which the launcher saw them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dlctl.contract import Plan, State, Status, VerdictKind
from dlctl.contract.launchers import LAUNCHERS
from dlctl.contract.programs import torchrun
from dlctl.contract.programs.mpi_words import (
    LOST_OTHERS,
    abort_code,
    aborted_ranks,
    called_abort,
    printed_signal,
)
from dlctl.contract.programs.verdict_rules import CONSEQUENCES, NodeSignal, signal_in
from learner.errors import EXIT_HALTED
from learner.job.outcome import Outcome
from learner.job.status import STUCK
from learner.supervisor.statuses import Observed

_SENT_BY_LAUNCHERS = frozenset({NodeSignal.SIGTERM, NodeSignal.SIGINT, NodeSignal.SIGHUP})


class Standing(enum.IntEnum):
    """How much an end says about its own cause; the least blames most."""

    OWN = 0
    """An error that it names, a meaningful exit code, a crash."""
    SILENT = 1
    """An exit code without any error, or an abort, as also MPI and NCCL end a process."""
    KILLED = 2
    """By SIGKILL while the launcher killed all of them: the first may be the cause."""
    OF_OTHERS = 3
    """It reports a lost connection, or that it waited in vain."""
    ENDED = 4
    """By SIGTERM, which launchers send when another learner has ended."""


@dataclass(frozen=True)
class Suspect:
    """A learner that failed, with its outcome if it was the first."""

    status: Status
    outcome: Outcome
    standing: Standing
    reported: bool = True
    """Whether its watchdog lived to report its end."""


def standing(
    plan: Plan, status: Status, kind: VerdictKind, *, names_error: bool, all_killed: bool = False
) -> Standing:
    """Return how much a learner's end says.

    Args:
        all_killed: whether the launcher has killed all learners at once.
        kind: what its end was if nothing else had happened.
        names_error: whether its last lines, or its exit code, say why it ended.
    """
    if status.reason == STUCK:
        return Standing.OWN
    number = status.signal or signal_in(status.exit_code)
    if number in _SENT_BY_LAUNCHERS:
        return Standing.ENDED
    lost = LAUNCHERS[plan.launch.kind].starts_mpi and status.exit_code == LOST_OTHERS
    if kind in CONSEQUENCES or lost and not names_error:
        return Standing.OF_OTHERS
    if number == NodeSignal.SIGKILL and all_killed:
        return Standing.KILLED
    if names_error or number not in (None, NodeSignal.SIGABRT):
        return Standing.OWN
    return Standing.SILENT


@dataclass(frozen=True)
class Ends:
    """How the learners of an attempt ended, and in which order their launcher saw it."""

    statuses: list[Status]
    """As their watchdogs have reported them, or would have."""
    reported: list[Status]
    """As their watchdogs have reported them."""
    order: list[int]

    @classmethod
    def of(cls, plan: Plan, observed: Observed) -> Ends:
        """Return the ends of the learners that were observed."""
        logs = observed.logs
        words = [*observed.launcher_words, *(line for log in logs.values() for line in log)]
        ended = [_as_ended(plan, each, logs.get(each.rank, [])) for each in observed.statuses]
        return cls(ended, observed.statuses, launchers_order(plan, words))

    @property
    def lost(self) -> list[Status]:
        """Return the learners of whose end nothing is known, the first to blame first."""
        unknown = [each for each in self.statuses if not each.state.final]
        return sorted(unknown, key=lambda each: (self._place(each), each.heartbeat_at))

    def in_order(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects, the first to blame first."""
        return sorted(suspects, key=lambda each: (
            each.standing, self._place(each.status), not each.reported, each.status.heartbeat_at,
        ))  # fmt: skip

    def names(self, status: Status) -> bool:
        """Return whether the launcher has said when this learner ended."""
        return status.rank in self.order

    def blames(self, lost: Status, first: Suspect) -> bool:
        """Return whether a learner that is lost comes before the first of those that failed."""
        before = self._place(lost) < self._place(first.status)
        return first.standing is Standing.ENDED or (first.standing > Standing.OWN and before)

    def left_early(self, plan: Plan, words: Sequence[str]) -> Status | None:
        """Return the learner that ended with exit code 0, so that the others were ended, or None.

        MPI ends all processes if one leaves its world without MPI_Finalize; srun may wait for the
        others for a while only.
        """
        launcher = LAUNCHERS[plan.launch.kind]
        if plan.framework.has_loop or plan.launch.step_per_learner or not launcher.starts_mpi:
            return None
        done = [each for each in self.statuses if each.state is State.COMPLETED]
        reported = {each.rank for each in self.reported if each.state.final}
        at_once = [each for each in done if each.rank not in reported]
        lost = any(each.exit_code == LOST_OTHERS for each in self.statuses)
        by_mpi = lost and any(map(launcher.stop.search, words))
        ranks = [each.rank for each in done]
        by_launcher = any(launcher.ends_the_rest(word, ranks) for word in words)
        is_cause = bool(at_once) or by_mpi or by_launcher
        early = at_once or done
        return min(early, key=lambda each: each.heartbeat_at) if early and is_cause else None

    def killed_on(self, host: str) -> list[Status]:
        """Return the learners of a node that were killed, perhaps with their watchdogs."""
        killed = [each for each in self.statuses if each.signal == NodeSignal.SIGKILL
                  or not each.state.final]  # fmt: skip
        return [each for each in killed if each.host == host]

    def over_memory(self, plan: Plan, host: str, most_bytes: Mapping[int, int]) -> Status | None:
        """Return the only learner of a node that had more than its memory; None without one.

        Where Slurm counts the memory of a step it kills all of it: their order says nothing.
        """
        limit = plan.resources.memory_bytes_per_learner or math.inf
        over = [each for each in self.killed_on(host) if most_bytes.get(each.rank, 0) > limit]
        if len(over) != 1:
            return None
        return replace(over[0], state=State.FAILED, signal=NodeSignal.SIGKILL)

    def _place(self, status: Status) -> float:
        return self.order.index(status.rank) if self.names(status) else math.inf


def launchers_order(plan: Plan, words: Sequence[str]) -> list[int]:
    """Return the learners' ranks in the order in which their launcher saw them end, or abort."""
    if plan.launch.step_per_learner:  # each launcher knows one process, its first
        return []
    return list(dict.fromkeys([*aborted_ranks(words), *LAUNCHERS[plan.launch.kind].ends(words)]))


def _as_ended(plan: Plan, status: Status, log: list[str]) -> Status:
    """Return the status of a learner as its watchdog, which was killed, would have reported it.

    Args:
        log: the last lines of the learner's log if its watchdog has reported no end.
    """
    if not status.state.final:
        status = _from_log(plan, status, log)
    if status.state is State.FAILED and (child := torchrun.first_failure(status.last_lines)):
        status = replace(status, exit_code=child.exit_code, signal=child.signal)
    return status


def _from_log(plan: Plan, status: Status, log: list[str]) -> Status:
    if (number := printed_signal(log)) is not None and status.exit_code is None:
        return replace(status, state=State.FAILED, signal=number, last_lines=log)
    if called_abort(log, status.rank):
        code = status.exit_code or abort_code(log)
        return replace(status, state=State.FAILED, exit_code=code, last_lines=log)
    if status.signal is None and status.exit_code in (None, EXIT_HALTED):
        return status
    if status.exit_code == 0 and plan.framework.has_loop:
        return status  # whether it had finished is not known
    state = State.COMPLETED if status.exit_code == 0 else State.FAILED
    return replace(status, state=state, last_lines=log)
