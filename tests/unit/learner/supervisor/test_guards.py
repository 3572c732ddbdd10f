"""The guards that the supervisor applies: hours over all attempts, and what learners report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Plateau, State, Status, Stopped, StopRules, VerdictKind
from learner.job.guards import write_stopped
from learner.job.outcome import Outcome, failed
from learner.lifecycle.history import measured
from learner.supervisor.oversight.guards import Overseer, guarded, held_before_s


def plan_with(rules: StopRules, **resources: int) -> contract.Plan:
    plan = make_plan()
    asked = replace(plan.resources, learners=2, nodes=2, gpus_per_learner=4, **resources)
    return replace(plan, stop=rules, resources=asked)


def attempt(job_dir: Path, number: int, plan: contract.Plan, held_s: float) -> None:
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
def test_hours_are_counted_over_all_attempts(
    tmp_path: Path, rules: StopRules, left_s: float
) -> None:
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


def learner(step: int, **metrics: float | None) -> list[Status]:
    return [Status("learner", 0, 1, State.TRAINING, step=step, metrics=dict(metrics))]


def test_a_report_that_is_no_number_ends_the_attempt_as_failed(tmp_path: Path) -> None:
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


def test_the_same_report_counts_once_for_a_plateau(tmp_path: Path) -> None:
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


def test_a_guards_word_beats_the_launchers_and_a_persons_beats_the_guard(tmp_path: Path) -> None:
    (tmp_path / contract.attempt_dir(1)).mkdir(parents=True)
    stopped = Stopped(str(VerdictKind.LOSS_SPIKE), 7, "the loss jumped at step 7", "Lower it.")
    write_stopped(tmp_path, 1, stopped)
    outcome = guarded(failed(VerdictKind.UNKNOWN, "srun: killed"), tmp_path, 1)
    assert (outcome.kind, outcome.hint) == (VerdictKind.LOSS_SPIKE, "Lower it.")
    cancelled = Outcome(State.CANCELLED, VerdictKind.REQUESTED, "Cancelled on request.")
    assert guarded(cancelled, tmp_path, 1) == cancelled
    verdict = contract.Verdict(1, "1", State.FAILED, "The loss jumped")
    assert measured(tmp_path, plan_with(StopRules()), verdict, []).step == 7
