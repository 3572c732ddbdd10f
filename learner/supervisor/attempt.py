"""One attempt of a training: preflight, load data, run the learners, store the results, verdict.

The supervisor never trains, and only the supervisor decides when to halt.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Directive, Plan, State, Status, VerdictKind, to_json
from dlctl.contract.ground.amounts import counted
from dlctl.contract.ground.safe_text import masked
from dlctl.contract.metrics import CHECKPOINT_S, STEP_S
from learner.frameworks import prepare
from learner.job.directives import STACKS
from learner.job.environment import known_secrets
from learner.job.outcome import Outcome, failed
from learner.job.status import Heartbeat, last_lines
from learner.lifecycle.history import halting_s
from learner.supervisor.finish import any_checkpoints, left_undone, load_rest, reserve_file, say
from learner.supervisor.oversight.guards import Overseer, guarded
from learner.supervisor.oversight.hang import HangCheck, SilenceCheck
from learner.supervisor.sent_files import Keeper, check_code, check_weights
from learner.supervisor.statuses import Statuses
from learner.system.files import FULL_DISK, Reserve, is_full

if TYPE_CHECKING:
    from learner.storage import Moving
    from learner.supervisor.control import Control, EndRequest
    from learner.supervisor.oversight.plateau import FoundPlateau
    from learner.supervisor.steps import Running

PREFLIGHT_S = 300.0
PREFLIGHT_VARIABLE = "DLCTL_PREFLIGHT_TIMEOUT_S"
TICK_S = 0.25
NO_LOSS: Mapping[int, str] = MappingProxyType({})
_LATE_SIGNAL_S = 0.5
LAUNCHERS_LINES = 400
"""So many of the launcher's last lines are read: it prints one for each learner that ends, and the
first of them counts."""
OVERTIME_S = 15.0
"""How long after the grace period the watchdogs may take before the launcher is ended."""


class Supervisor:
    """One attempt, from preflight to verdict."""

    def __init__(self, job_dir: Path, attempt: int, plan: Plan, control: Control) -> None:
        self.job_dir, self.attempt, self.plan, self.control = job_dir, attempt, plan, control
        logs = [contract.job_output(attempt)]
        if plan.parameter_server is not None:  # what the servers print comes through their steps
            logs += [contract.server_log(attempt, node) for node in range(plan.resources.nodes)]
        self.heart = Heartbeat(job_dir, "supervisor", 0, attempt, logs)
        self._known = Statuses(job_dir, attempt)
        self._keeper = Keeper(plan, job_dir, attempt)
        self._overseer = Overseer(plan, job_dir, attempt, tell=self._tell_plateau)
        self._hosts: list[str] = []
        self._silence = SilenceCheck()
        self._warned = ""
        self._tries = 0
        self._hang = HangCheck(plan.hang, job_dir, attempt, plan.training_id, self._direct)

    def run(self) -> Outcome:
        """Run the attempt through its states; return its outcome."""
        from learner.job.context import how_started

        self.control.saving_s = halting_s(self.job_dir, self.plan, self.attempt)
        learners = counted(self.plan.resources.learners, "learner")
        self._enter(State.DEPLOYING, f"preflight of {learners} ({how_started(self.plan)})")
        self._make_folders()
        outcome, remark = check_code(self.plan, self.job_dir, self.attempt)
        if remark:
            say(f"  {contract.CODE}: {remark}")
        outcome = outcome or check_weights(self.plan, self.job_dir, self._beat)
        outcome = outcome or self._early_end()
        if outcome is None:
            from learner.supervisor.storing import trained_before

            trained = trained_before(self.plan, self.job_dir, self.attempt)
            if trained is not None:
                return self._store(trained)
        outcome = outcome or self._preflight() or self._early_end()
        if outcome is None:
            self._enter(State.DOWNLOADING, "training data")
            self._load()
            outcome = self._early_end() or self._train()
        return outcome

    def _enter(self, state: State, text: str) -> None:
        say(f"{state}: {text}")
        self.heart.set(state=state, reason="", done=None)

    def _make_folders(self) -> None:
        from learner.storage.ownership import take_over

        names = (contract.CONTROL, contract.CHECKPOINTS, contract.METRICS)
        for name in (*names, contract.LOGS, contract.JOB_STATE):
            (self.job_dir / name).mkdir(exist_ok=True)
        take_over(self.job_dir, self.attempt, self._beat)
        Reserve(reserve_file(self.job_dir, self.attempt))
        prepare(self.plan, self.job_dir, self.attempt)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what killed supervisors left."""
        if self.attempt == 1:
            return
        from learner.checkpoint_files.layout import disown_leftovers
        from learner.supervisor.worker_group.shard_placement import remove_what_is_of_no_use

        with contextlib.suppress(OSError):  # a late writer of theirs can publish nothing now
            disown_leftovers(self.job_dir / contract.CHECKPOINTS)
        for earlier in range(1, self.attempt):
            with contextlib.suppress(OSError):
                remove_what_is_of_no_use(self.job_dir, earlier)

    def ended_early(self) -> Outcome | None:
        """Return the outcome if a fault appeared while the whole job was being ended."""
        return self._early_end() if self._is_ended_from_outside() else None

    def _early_end(self) -> Outcome | None:
        """Return the outcome if a request ends the attempt before the learners have started."""
        self._oversee()
        request = self.control.request()
        if request is None:
            return None
        reason = f"{request.reason[:1].upper()}{request.reason[1:]}, before the learners started."
        hint = f"Continue with: dlctl resume {self.plan.training_id}"
        halted = request.state is State.HALTED
        return Outcome(request.state, request.kind, reason, hint if halted else "")

    def _preflight(self) -> Outcome | None:
        from learner.job.batch import batch_system
        from learner.supervisor.preflight.judgement import Findings, judge
        from learner.supervisor.preflight.node_health import remarks
        from learner.supervisor.preflight.reports import carried_over, read_reports
        from learner.supervisor.steps import preflight_steps, step_log, whole_step

        learners = self.plan.resources.learners
        if reports := carried_over(self.job_dir, self.attempt, learners):
            say(f"  The nodes were checked before attempt {self.attempt - 1}.")
            self._print_hosts(reports)
            return None
        log, began_at = step_log(self.job_dir, self.attempt, "preflight"), time.time()
        step: Running
        if self.plan.launch.step_per_learner:
            self._hosts = batch_system(self.plan).hosts()
            step = preflight_steps(self.plan, self.job_dir, self.attempt, self._hosts, log)
        else:
            step = whole_step(self.plan, "learner.agent.preflight", self.job_dir, self.attempt, log)
        limit_s = float(os.environ.get(PREFLIGHT_VARIABLE) or PREFLIGHT_S)
        exit_code = self._wait_for(step, time.monotonic() + limit_s)
        if exit_code is None and self.control.request() is not None:
            return None
        reports = read_reports(self.job_dir, self.attempt, learners)
        findings = Findings(reports, exit_code, last_lines(log), began_at, time.time())
        for remark in remarks(findings.reports, began_at, findings.ended_at):
            say(f"  {remark}")
        objection = judge(self.plan, findings)
        if objection is not None and self._is_ended_from_outside():
            return None
        if objection is None:
            self._print_hosts(findings.reports)
        return objection

    def _is_ended_from_outside(self) -> bool:
        """Return whether the whole job is being ended, which may have caused the failure.

        The job's steps on other nodes may get SIGTERM a moment before this process does, and
        `dlctl cancel` writes its request just before it ends them.
        """
        until = time.monotonic() + _LATE_SIGNAL_S
        request = self.control.request(fresh=True)
        while not (request and (request.terminated or request.state is State.CANCELLED)):
            if time.monotonic() > until:
                return False
            self.control.wait(0.05)
            request = self.control.request()
        return True

    def _wait_for(self, step: Running, until: float) -> int | None:
        """Return a short step's exit code; None if the supervisor had to end the step."""
        while step.exit_code is None:
            self.control.wait(0.05)
            self._beat()
            if time.monotonic() > until or self.control.request() is not None:
                self._end(step)
                return None
        return step.exit_code

    def _end(self, step: Running) -> None:
        step.terminate()
        until = time.monotonic() + 10
        while step.exit_code is None:
            if time.monotonic() > until:
                step.kill()
            time.sleep(0.05)

    def _print_hosts(self, reports: list[contract.Preflight]) -> None:
        hosts = list(dict.fromkeys(report.host for report in reports))
        mpi = next((report.mpi_library for report in reports if report.mpi_library), "no MPI")
        where = f"{counted(len(reports), 'learner')} on {', '.join(hosts)}"
        say(f"  {where}; {mpi}; Python {reports[0].python}")

    def _load(self) -> None:
        from learner import storage

        def tick() -> None:
            self._beat()
            if self.control.request() is not None:
                raise storage.Interrupted

        with contextlib.suppress(storage.Interrupted):  # the caller then looks up the request
            for line in storage.load(self.plan, self.job_dir, tick, self._show):
                say(f"  {line}")

    def _show(self, moving: Moving) -> None:
        """Tell how far data has moved; a store that fails is news for the log, too."""
        is_news, self._tries = moving.tries != self._tries, moving.tries
        if is_news and moving.tries:
            say(f"  {moving.sentence}")
        (self.heart.set if is_news else self.heart.beat)(reason=moving.sentence, done=moving.share)

    def _train(self) -> Outcome:
        from learner.supervisor.notices import tell_started
        from learner.supervisor.steps import step_log, whole_step

        tell_started(self.job_dir, self.plan, self.attempt, say)
        self._enter(State.TRAINING, self.plan.framework.command or str(self.plan.framework.job))
        if self.plan.launch.step_per_learner:
            return self._train_each()
        log = step_log(self.job_dir, self.attempt, "launcher")
        step = whole_step(self.plan, "learner.agent", self.job_dir, self.attempt, log)
        load_rest(self.plan)
        self._watch(step)
        return self._conclude(step.exit_code, last_lines(log, LAUNCHERS_LINES))

    def _train_each(self) -> Outcome:
        """Train with a parameter server: each learner and each server runs in its own step."""
        from learner.job.batch import batch_system
        from learner.supervisor.worker_group.group import WorkerGroup
        from learner.supervisor.worker_group.nodes import Nodes

        nodes = Nodes(self._hosts, batch_system(self.plan).left_hosts)
        group = WorkerGroup(self.plan, self.job_dir, self._known, nodes, say)
        load_rest(self.plan)
        with contextlib.closing(group):
            self._watch(group, group.poll)
        return self._conclude(group.exit_code, group.words(), group.lost, group.failure)

    def _conclude(
        self, exit_code: int | None, words: list[str], lost: Mapping[int, str] = NO_LOSS,
        failure: Outcome | None = None,
    ) -> Outcome:  # fmt: skip
        """Judge how the learners ended, close their statuses, store the results."""
        from learner.supervisor.statuses import Observed
        from learner.supervisor.verdict import decide

        if self.control.removed():
            return failed(VerdictKind.SUPERSEDED, "Its job directory is gone.")
        statuses = [status for status in self._statuses() if status.rank not in lost]
        if any(status.state not in (State.COMPLETED, State.HALTED) for status in statuses):
            self._is_ended_from_outside()  # waits for a SIGTERM that may be on its way
        if exit_code != 0 and is_full(self.job_dir):
            words = [*words, FULL_DISK]
        secrets = known_secrets(self.plan, os.environ)
        observed = Observed(
            statuses,
            exit_code,
            words,
            self.control.request(),
            {s.rank: [masked(line, secrets) for line in self._last_lines(s.rank)]
             for s in statuses if not s.state.final},
            dict(lost),
            self._hang.outcome or failure,
            any_checkpoints(self.job_dir),
            left_undone(self.plan, self.job_dir, self.attempt),
            self._known.most_bytes(self.plan.resources.learners),
        )  # fmt: skip
        outcome = guarded(decide(self.plan, observed), self.job_dir, self.attempt, statuses)
        # Of a plateau of another one the next attempt tells.
        self._overseer.finish(judges=outcome.state is State.COMPLETED)
        self.heart.beat(**self._overseer.progress)
        self._known.close(self.plan.resources.learners, outcome.failed_rank)
        return self._store(outcome)

    def _last_lines(self, rank: int) -> list[str]:
        return last_lines(self.job_dir / contract.learner_log(self.attempt, rank))

    def _watch(
        self, step: Running, tend: Callable[[EndRequest | None, bool], None] | None = None
    ) -> None:
        """Wait until the learners have ended; pass requests to end on to them, and enforce them.

        Args:
            tend: handles what has happened since its last call.
        """
        from learner.job.context import launcher_name

        action, delivered, end_at, kill_at = "", "", float("inf"), float("inf")
        look_at = 0.0
        while step.exit_code is None:
            self.control.wait(TICK_S)
            now = time.monotonic()
            self._oversee()
            request = self.control.request() or self._hang.request
            if tend is not None:
                tend(request, bool(self.heart.status.reason))
            if request is not None and request.action != delivered:
                if request.action != action:
                    action = request.action
                    end_at = now + request.grace_s + OVERTIME_S
                if self.control.gone:
                    end_at = now  # no directive can reach the watchdogs
                    delivered = request.action
                elif self._direct(request.action, request.reason, request.grace_s):
                    delivered = request.action
            if now >= end_at:
                say(f"The launcher did not end in time: ending {launcher_name(self.plan)}.")
                step.terminate()
                end_at, kill_at = float("inf"), now + 10
            if now >= kill_at:
                step.kill()
            if now >= look_at:
                look_at = now + 5
                self._look_for_silence(now)
                self.control.saving_s = self._saving_s() or self.control.saving_s
                if request is None:
                    self._hang.look(now, self._statuses())
            self._beat()

    def _oversee(self) -> None:
        if (ending := self._overseer.look(self._statuses)) is not None:
            self.control.end(ending)

    def _tell_plateau(self, found: FoundPlateau) -> None:
        from learner.supervisor.notices import tell_plateau

        say(f"{found.reason[:1].upper()}{found.reason[1:]}; the training goes on.")
        since = int(found.plateau.since_step)
        tell_plateau(self.job_dir, self.plan, self.attempt, (found.reason, since), say)

    def _saving_s(self) -> float | None:
        """Return how long saving takes by what learners report: a step's end and a checkpoint."""
        costs = [
            cost_s + (status.metrics.get(STEP_S) or 0.0)
            for status in self._statuses()
            if (cost_s := status.metrics.get(CHECKPOINT_S))
        ]
        return max(costs, default=None)

    def _direct(self, action: str, reason: str, grace_s: float) -> bool:
        """Write a directive for the watchdogs; return whether it could be written."""
        directive = Directive(action, reason, time.time(), grace_s)
        path = self.job_dir / contract.directive_file(self.attempt)
        try:
            contract.write_whole(path, to_json(directive))
        except OSError:
            # The space that is kept for the verdict is enough for both.
            reserve_file(self.job_dir, self.attempt).unlink(missing_ok=True)
            return False
        left = "" if action == STACKS else f"; the learners have {grace_s:.0f} s to end"
        say(f"{action}: {reason}{left}.")
        return True

    def _beat(self) -> None:
        self.heart.beat(**self._overseer.progress)
        if self.heart.warning != self._warned:
            self._warned = self.heart.warning
            say(f"Warning: {self._warned}" if self._warned else "Status can be written again.")
        for path in [] if self.control.gone else self._keeper.keep():
            say(f"Warning: {path} was gone from the job directory; it is back.")

    def _statuses(self) -> list[Status]:
        return self._known.learners(self.plan.resources.learners)

    def _look_for_silence(self, now: float) -> None:
        """Report learners whose heartbeat has not changed for long by this node's clock."""
        reason = self._silence.look(now, self._statuses())
        if bool(reason) != bool(self.heart.status.reason):
            say(reason or "all heartbeats are back")
        self.heart.beat(reason=reason)

    def _store(self, outcome: Outcome) -> Outcome:
        from learner.supervisor.storing import Storing

        self._enter(State.STORING, "results")
        storing = Storing(
            self.plan, self.job_dir, self.attempt, self.control, self._beat, self._show
        )
        return storing.store(outcome)
