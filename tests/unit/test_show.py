"""What `dlctl show` tells of several attempts, and of where the time of a step goes."""

import pytest

from dlctl.cli.show import _per_attempt, print_details, speed_line

PLAN = {"training": {"batch_size": 50}}


def resources(learners, **more):
    return {"learners": learners, "nodes": 1, "cpus_per_learner": 1, "gpus_per_learner": 0,
            "memory_bytes_per_learner": None, "time_s": None, **more}  # fmt: skip


@pytest.mark.parametrize(("learners", "told"), [
    ([], ""),
    ([4], ""),
    ([4, 4], ""),
    ([2, 1], "2 in attempt 1, 1 from attempt 2 on"),
    ([2, 2, 1, 3], "2 in attempts 1 to 2, 1 in attempt 3, 3 from attempt 4 on"),
])  # fmt: skip
def test_learners_are_told_per_attempt_where_they_changed(learners, told):
    attempts = [
        {"attempt": n, "resources": resources(count)} for n, count in enumerate(learners, 1)
    ]
    assert _per_attempt(attempts) == told


@pytest.mark.parametrize(("metrics", "line"), [
    ([], ""),
    ([{"loss": 1.0}], ""),
    ([{"exchange_s": 0.1}], ""),
    ([{"samples_per_s": 0.0, "exchange_s": 0.1}], ""),
    ([{"samples_per_s": None, "memory_bytes": None}], ""),
    ([{"memory_bytes": 1 << 30}, {"memory_bytes": 3 << 30}], "3GiB of memory each at most"),
    ([{"samples_per_s": 100.0, "exchange_s": 0.02, "data_wait_s": 0.005,
       "checkpoint_stall_s": 0.001},
      {"exchange_s": 0.01, "data_wait_s": 0.005, "checkpoint_stall_s": None}],
     "100 samples/s · exchange 3 % · data 1 % · checkpoint 0.2 % of a step"),
    ([{"step_s": 0.1, "exchange_s": 0.05, "data_wait_s": 0.0}],
     "exchange 50 % · data 0 % of a step"),
])  # fmt: skip
def test_where_the_time_of_a_step_goes(metrics, line):
    assert speed_line(metrics, PLAN) == line


def test_the_shares_stand_below_the_learners_and_not_in_their_row(capsys):
    learner = {"rank": 0, "host": "n1", "state": "TRAINING", "epoch": 1, "step": 9,
               "exit_code": None, "signal": None, "heartbeat_at": 0.0,
               "metrics": {"loss": 0.5, "step_s": 0.1, "exchange_s": 0.003}}  # fmt: skip
    known = dict.fromkeys(
        ("training_id", "name", "shown_state", "reason", "site", "attempt", "job_id", "created_at",
         "folder", "job_dir", "hint"), ""
    )  # fmt: skip
    plan = {**PLAN, "resources": resources(1), "framework": {"command": None, "job": "train.py"}}
    both = [{"attempt": 1, "resources": resources(2)}, {"attempt": 2, "resources": resources(1)}]
    print_details({**known, "plan": plan, "learners": [learner], "attempts": both})
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "exchange 3 % of a step"
    assert "loss=0.5" in lines[-2]
    assert "exchange_s" not in "".join(lines)
    assert any("2 in attempt 1, 1 from attempt 2 on" in line for line in lines)
