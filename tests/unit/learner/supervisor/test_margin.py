"""When a job saves before its time limit: by its clock, by what saving costs, by Slurm's signal."""

from __future__ import annotations

import signal

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Directive, State, Status, VerdictKind, to_json
from learner.lifecycle.history import halting_s
from learner.supervisor.control import Control
from learner.system.signals import HaltFlag


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
