"""The guards that the supervisor applies: hours over all attempts, and what learners report."""

import signal
from dataclasses import replace

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import (
    Directive,
    Plateau,
    State,
    Status,
    Stopped,
    StopRules,
    VerdictKind,
    to_json,
)
from dlctl.contract.metrics import MetricsLine
from learner.job.guards import Guards, write_stopped
from learner.job.outcome import Outcome, failed
from learner.lifecycle.history import halting_s, measured
from learner.supervisor.control import Control
from learner.supervisor.oversight.guards import Overseer, guarded, held_before_s
from learner.supervisor.oversight.log_reports import LogReports
from learner.system.signals import HaltFlag


def plan_with(rules, **resources):
    plan = make_plan()
    asked = replace(plan.resources, learners=2, nodes=2, gpus_per_learner=4, **resources)
    return replace(plan, stop=rules, resources=asked)


def attempt(job_dir, number, plan, held_s):
    status = Status("supervisor", 0, number, State.FAILED, started_at=100.0,
                    heartbeat_at=100.0 + held_s)  # fmt: skip
    for name, record in (
        (contract.plan_file(number), plan), (contract.status_file(number, "supervisor", 0), status),
    ):  # fmt: skip
        path = job_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contract.to_json(record))


@pytest.mark.parametrize(
    ("rules", "left_s"),
    [
        (StopRules(max_node_hours=1.0), (3600 - 2 * 900) / 2),
        (StopRules(max_gpu_hours=4.0), (4 * 3600 - 8 * 900) / 8),
        (StopRules(max_gpu_hours=4.0, max_node_hours=0.6), (0.6 * 3600 - 2 * 900) / 2),
    ],
)
def test_hours_are_counted_over_all_attempts(tmp_path, rules, left_s):
    plan = plan_with(rules)
    attempt(tmp_path, 1, plan, 600)
    attempt(tmp_path, 2, plan, 300)
    assert held_before_s(tmp_path, 3) == (2 * 900, 8 * 900)
    now = [1000.0]
    overseer = Overseer(plan, tmp_path, 3, lambda: now[0])
    now[0] = 1000 + left_s - 1
    assert overseer.look(list) is None
    now[0] = 1000 + left_s + 1
    request = overseer.look(list)
    assert request is not None and request.kind is VerdictKind.BUDGET
    assert request.state is State.HALTED


def learner(step, **metrics):
    return [Status("learner", 0, 1, State.TRAINING, step=step, metrics=dict(metrics))]


def test_a_report_that_is_no_number_ends_the_attempt_as_failed(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    now = iter(range(100))
    overseer = Overseer(plan_with(StopRules(not_a_number=True)), tmp_path, 1, lambda: next(now))
    assert overseer.look(lambda: learner(1, loss=2.0)) is None
    request = overseer.look(lambda: learner(2, loss=None))
    assert request is not None and request.action == "stop"
    seen = Outcome(request.state, request.kind, request.reason)
    outcome = guarded(seen, tmp_path, 1)
    assert (outcome.state, outcome.kind) == (State.FAILED, VerdictKind.NOT_A_NUMBER)
    assert outcome.reason == "The loss is nan at step 2."


def test_what_a_log_tells_is_heeded_and_reported_as_a_learners_own_word(tmp_path):
    """`stop.not_a_number` did nothing for a program whose losses only its log tells."""
    log = LogReports(Guards(StopRules(not_a_number=True)))
    assert log.progress == {}
    log.add(MetricsLine(1, 1, 1.0, {"loss": 0.5, "validation_loss": None}))
    assert log.progress == {"epoch": 1, "step": 1, "metrics": {"loss": 0.5}}
    log.add(MetricsLine(1, 1, 1.0, {"loss": None}, group="validation"))
    log.add(MetricsLine(event="plateau: x"))
    assert log.stopped is None
    log.add(MetricsLine(30, 2, 1.0, {"loss": None}, group="train", done=0.5))
    assert log.progress == {"epoch": 2, "step": 30, "metrics": {"loss": None, "done": 0.5}}
    log.add(MetricsLine(40, 2, 1.0, {"loss": 0.5}))
    assert log.stopped is not None and log.stopped.reason == "the loss is nan at step 30"


def test_a_metric_of_the_log_that_no_longer_improves_ends_the_training():
    log = LogReports(Guards(StopRules(plateau=Plateau("val_acc", 2, "higher"))))
    for value in (0.5, 0.6, 0.4):
        log.add(MetricsLine(1, 1, 1.0, {"acc": value}, group="validation"))
        assert log.stopped is None
    log.add(MetricsLine(1, 1, 1.0, {"val_acc": 0.6}))
    assert log.stopped is not None and "has not improved in 2 reports" in log.stopped.reason


def test_the_same_report_counts_once_for_a_plateau(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    now = iter(range(100))
    rules = StopRules(plateau=Plateau("accuracy", 2, "higher"))
    overseer = Overseer(plan_with(rules), tmp_path, 1, lambda: next(now))
    for _ in range(5):
        assert overseer.look(lambda: learner(1, accuracy=0.5)) is None
    assert overseer.look(lambda: learner(2, accuracy=0.4)) is None
    request = overseer.look(lambda: learner(3, accuracy=0.5))
    assert request is not None and (request.action, request.kind) == ("halt", VerdictKind.PLATEAU)
    assert "accuracy has not improved in 2 reports (best 0.5)" in request.reason


def test_a_guards_word_beats_the_launchers_and_a_persons_beats_the_guard(tmp_path):
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    stopped = Stopped(str(VerdictKind.LOSS_SPIKE), 7, "the loss jumped at step 7", "Lower it.")
    write_stopped(tmp_path, 1, stopped)
    outcome = guarded(failed(VerdictKind.UNKNOWN, "srun: killed"), tmp_path, 1)
    assert (outcome.kind, outcome.hint) == (VerdictKind.LOSS_SPIKE, "Lower it.")
    cancelled = Outcome(State.CANCELLED, VerdictKind.REQUESTED, "Cancelled on request.")
    assert guarded(cancelled, tmp_path, 1) == cancelled
    verdict = contract.Verdict(1, "1", State.FAILED, "The loss jumped")
    assert measured(tmp_path, plan_with(StopRules()), verdict, []).step == 7


@pytest.mark.parametrize(("done", "kind"), [(0.5, VerdictKind.PLATEAU), (1.0, VerdictKind.NONE)])
def test_a_training_that_did_all_its_epochs_has_not_ended_early(tmp_path, done, kind):
    """The supervisor may find the plateau while the loop still stores what it has trained."""
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    write_stopped(tmp_path, 1, Stopped(str(VerdictKind.PLATEAU), 7, "loss has hardly improved"))
    statuses = [replace(learner(8, loss=1.0)[0], done=done)]
    completed = Outcome(State.COMPLETED, VerdictKind.NONE, "The learner ended with exit code 0.")
    assert guarded(completed, tmp_path, 1, statuses).kind is kind


class Job:
    """A job of an hour whose plan keeps two minutes for saving; time is what the test says."""

    def __init__(self, folder, time_s=3600, margin_s=120):
        self.now = 0.0
        (folder / contract.CONTROL).mkdir(parents=True)
        (folder / contract.attempt_dir(1)).mkdir(parents=True)
        self.signals = HaltFlag()
        plan = make_plan(job_dir=str(folder), time_s=time_s, halt_margin_s=margin_s, kind="local")
        self.control = Control(folder, plan, self.signals, lambda: self.now)

    def at(self, now):
        self.now = now
        return self.control.request()


@pytest.mark.parametrize(
    ("saving_s", "halts_at"), [(None, 3480), (1, 3587), (30, 3500), (200, 2990), (2000, 2700)]
)
def test_the_margin_follows_what_saving_costs(tmp_path, saving_s, halts_at):
    job = Job(tmp_path)
    job.control.saving_s = saving_s
    assert job.at(halts_at - 1) is None
    request = job.at(halts_at)
    assert (request.action, request.kind) == ("halt", VerdictKind.TIME_LIMIT)


def test_slurms_early_signal_waits_for_the_clock(tmp_path):
    """Slurm sends it up to a minute before the margin that it was asked for."""
    job = Job(tmp_path)
    job.control.saving_s = 1
    job.signals.received.append(signal.SIGUSR2)
    assert job.at(3600 - 120 - 60) is None
    assert job.at(3586) is None
    request = job.at(3587)
    assert (request.reason, request.kind) == (
        "the scheduler signalled that the time limit is near", VerdictKind.TIME_LIMIT,
    )  # fmt: skip


def test_a_signal_long_before_the_limit_is_a_persons(tmp_path):
    job = Job(tmp_path)
    job.signals.received.append(signal.SIGUSR2)
    request = job.at(3600 - 120 - 61)
    assert (request.action, request.reason) == ("halt", "halted by a signal")


def test_without_a_known_limit_the_signal_is_all_there_is(tmp_path):
    job = Job(tmp_path, time_s=None)
    assert job.at(1e6) is None
    job.signals.received.append(signal.SIGUSR2)
    assert job.at(1e6 + 1).kind is VerdictKind.TIME_LIMIT


def test_a_program_without_times_of_its_own_is_measured_by_its_last_halt(tmp_path):
    plan = make_plan(job_dir=str(tmp_path), learners=2, halt_margin_s=120)

    def ended(attempt, action, *states):
        (tmp_path / contract.attempt_dir(attempt)).mkdir(parents=True)
        directive = to_json(Directive(action, "", 1000.0, 60.0))
        contract.write_whole(tmp_path / contract.directive_file(attempt), directive)
        for rank, state in enumerate(states):
            status = Status("learner", rank, attempt, state, heartbeat_at=1003.0 + rank)
            path = tmp_path / contract.status_file(attempt, "learner", rank)
            contract.write_whole(path, to_json(status))

    assert halting_s(tmp_path, plan, 1) is None
    ended(1, "halt", State.HALTED, State.HALTED)
    ended(2, "halt", State.HALTED, State.DEPLOYING)
    ended(3, "stop", State.CANCELLED, State.CANCELLED)
    (tmp_path / contract.attempt_dir(4)).mkdir()
    (tmp_path / contract.directive_file(4)).write_text("{")
    assert halting_s(tmp_path, plan, 5) == 4.0
    ended(5, "halt", State.HALTED, State.TRAINING)
    assert halting_s(tmp_path, plan, 6) == 120.0, "at least the plan's margin was too short"
    ended(6, "halt", State.HALTED, State.HALTED)
    assert halting_s(tmp_path, plan, 7) == 4.0
