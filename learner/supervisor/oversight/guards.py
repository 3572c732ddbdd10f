"""The guards as the supervisor applies them: hours, and the metrics that learners report.

The built-in loop of synchronous learners looks at its own losses, at every step, and counts its
own epochs; for other programs the supervisor looks at what they report. Whether a curve is on a
plateau, only the supervisor judges.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan, State, Status, Stopped, StopRules, VerdictKind
from dlctl.contract.metrics import LOSS
from learner.job.guards import Guards, read_stopped, write_stopped
from learner.job.outcome import Outcome
from learner.rehearsal.drill import halt_is_due
from learner.supervisor.control import EndRequest
from learner.supervisor.oversight.log_reports import LogReports
from learner.supervisor.oversight.plateau import FoundPlateau, PlateauWatch

LOOK_S = 1.0
STOP_GRACE_S = 10.0
RAISE_LIMIT = "The training can't go on with this limit: submit it anew with a higher one."


class Overseer:
    """Looks at the hours and at what the learners report, and says when a guard ends the attempt.

    Args:
        tell: takes each plateau at which the training goes on.
        clock: Unix seconds.
    """

    def __init__(
        self,
        plan: Plan,
        job_dir: Path,
        attempt: int,
        clock: Callable[[], float] = time.time,
        tell: Callable[[FoundPlateau], None] = lambda _: None,
    ) -> None:
        rules = plan.stop or StopRules()
        self._tested = rules.plateau if rules.plateau and not rules.plateau.patience else None
        self._is_of_loop = plan.framework.has_loop and plan.parameter_server is None
        by_epochs = max(1, plan.training.validate_every_epochs) if self._is_of_loop else 0
        self._guards = None if self._is_of_loop or plan.stop is None else Guards(rules)
        self._log = LogReports(self._guards)
        self._plateaus = PlateauWatch(
            job_dir, attempt, self._tested, by_epochs=by_epochs, report=self._log.add
        )
        self._tell = tell
        self._job_dir, self._attempt, self._clock = job_dir, attempt, clock
        self._ends = _ends_of_hours(plan, rules, job_dir, attempt, clock())
        self._rehearsal = plan.rehearsal
        self._newest_by_rank: dict[int, object] = {}
        self._reports: list[float | None] = []
        self._look_at = 0.0

    def look(self, statuses: Callable[[], list[Status]]) -> EndRequest | None:
        """Return the request to end the attempt, once a guard asks for it."""
        if self._clock() < self._look_at:
            return None
        self._look_at = self._clock() + LOOK_S
        for ends_at, reason in self._ends:
            if self._clock() >= ends_at:
                return EndRequest("halt", reason, 0.0, VerdictKind.BUDGET)
        if halt_is_due(self._rehearsal, statuses() if self._rehearsal else ()):
            return EndRequest("halt", "the rehearsal halts it", 0.0)
        stopped = self._heed(statuses()) if self._guards else None
        stopped = self._at_plateau() or stopped or self._log.stopped
        if stopped is None or (self._is_of_loop and read_stopped(self._job_dir, self._attempt)):
            return None  # the loop's own reason to end stays
        write_stopped(self._job_dir, self._attempt, stopped)
        kind = VerdictKind(stopped.kind)
        if kind is VerdictKind.PLATEAU:
            # The built-in loop finishes after the epoch in which it reads what was written.
            halt = EndRequest("halt", stopped.reason, 0.0, kind)
            return None if self._is_of_loop else halt
        return EndRequest("stop", stopped.reason, STOP_GRACE_S, kind)

    @property
    def progress(self) -> dict[str, Any]:
        """The fields of a `Status` that the log of learner 0 tells: step, epoch, metrics."""
        return self._log.progress

    def finish(self, *, judges: bool) -> None:
        """Read the metrics to their end, after the learners have ended.

        Args:
            judges: Whether a plateau that is found is told.
        """
        self._plateaus.finish(judges=judges)

    def _at_plateau(self) -> Stopped | None:
        """Return why a plateau ends the training, if one was found just now and does."""
        found = self._plateaus.look()
        if found is None:
            return None
        if self._tested is None:
            self._tell(found)
            return None
        return Stopped(str(VerdictKind.PLATEAU), found.step, found.reason)

    def _heed(self, statuses: list[Status]) -> Stopped | None:
        """Return why the learners' newest reports end the training, if they do."""
        assert self._guards is not None
        for status in statuses:
            report = (status.step, status.epoch, dict(status.metrics))
            if not status.metrics or self._newest_by_rank.get(status.rank) == report:
                continue
            self._newest_by_rank[status.rank] = report
            step = status.step if status.step is not None else -1
            if LOSS in status.metrics:
                loss = status.metrics[LOSS]
                loss = float("nan") if loss is None else loss
                if stopped := self._guards.after_loss(loss, step):
                    return stopped
            name = self._guards.metric
            if status.rank == 0 and name in status.metrics:
                self._reports.append(status.metrics[name])
                if stopped := self._guards.after_report(self._reports, step):
                    return stopped
        return None


def _ends_of_hours(
    plan: Plan, rules: StopRules, job_dir: Path, attempt: int, now: float
) -> list[tuple[float, str]]:
    """Return when each limit on hours is reached, in Unix seconds, with the reason to end."""
    resources, ends = plan.resources, []
    node_s, gpu_s = held_before_s(job_dir, attempt)
    gpus = resources.gpus_per_learner * resources.learners
    for name, limit_h, used_s, count in (
        ("max_node_hours", rules.max_node_hours, node_s, resources.nodes),
        ("max_gpu_hours", rules.max_gpu_hours, gpu_s, gpus),
    ):
        if limit_h is not None and count:
            left_s = (limit_h * 3600 - used_s) / count
            ends.append((now + left_s, f"stop.{name} ({limit_h:g}) is used up"))
    return ends


def held_before_s(job_dir: Path, attempt: int) -> tuple[float, float]:
    """Return for how many seconds earlier attempts have held nodes, and GPUs, together."""
    node_s = gpu_s = 0.0
    for number in range(1, attempt):
        plan = contract.readable_record(Plan, job_dir / contract.plan_file(number))
        status = job_dir / contract.status_file(number, "supervisor", 0)
        known = contract.readable_record(Status, status)
        if plan is None or known is None:
            continue
        held_s = max(0.0, known.heartbeat_at - known.started_at)
        node_s += held_s * plan.resources.nodes
        gpu_s += held_s * plan.resources.gpus_per_learner * plan.resources.learners
    return node_s, gpu_s


def guarded(
    outcome: Outcome, job_dir: Path, attempt: int, statuses: Sequence[Status] = ()
) -> Outcome:
    """Return the outcome of an attempt, in a guard's words if a guard ended it."""
    if outcome.kind is VerdictKind.BUDGET:
        return dataclasses.replace(outcome, hint=RAISE_LIMIT)
    stopped = read_stopped(job_dir, attempt)
    if stopped is None:
        return outcome
    kind, reason = VerdictKind(stopped.kind), f"{stopped.reason[:1].upper()}{stopped.reason[1:]}."
    if kind is VerdictKind.PLATEAU:
        # A training may have come to its end before it could heed the plateau.
        if outcome.state is State.COMPLETED and all(status.done != 1 for status in statuses):
            return dataclasses.replace(outcome, kind=kind, reason=f"Ended early: {stopped.reason}.")
        return outcome
    if outcome.state is State.FAILED or outcome.kind is kind:
        return dataclasses.replace(
            outcome, state=State.FAILED, kind=kind, reason=reason, hint=stopped.hint
        )
    return outcome
