"""Which learner the verdict names if the launcher killed learners together with their watchdogs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from node_job import TRAINING_ID, Job, status

from dlctl.contract import (
    Launch,
    Rulings,
    State,
    read_record,
    rulings_file,
    status_file,
    to_json,
    write_whole,
)
from learner.errors import UserFault, explain
from learner.job.status import UNFINISHED
from learner.supervisor.statuses import Observed, Statuses
from learner.supervisor.verdict import decide

SPOKE = [
    '[rank 1 on n2]   File "/c/train.py", line 2, in <module>',
    "[rank 1 on n2] ModuleNotFoundError: No module named 'gone'",
]


@pytest.fixture
def plan(tmp_path: Path):
    resources = {"learners": 2}
    return Job(
        tmp_path, None, job="train.py", launch=Launch("srun", ["srun"]), resources=resources
    ).plan


def judge(plan, statuses, words, logs):
    return decide(plan, Observed(statuses, 137, words, None, logs))


def test_the_learner_that_printed_an_error_is_named_not_the_one_killed_with_it(plan):
    words = ["srun: error: n1: task 0: Killed"]
    verdict = judge(plan, [status(0), status(1)], words, {0: ["epoch 1"], 1: SPOKE})
    assert (verdict.evidence.rank, verdict.evidence.host) == (1, "n2")
    assert verdict.reason.startswith("Learner 1 on n2 failed: ")
    assert "No module named 'gone'" in verdict.reason
    assert "requirements" in verdict.hint


def test_a_printed_error_overrides_a_learner_that_failed_in_consequence(plan):
    victim = status(0, State.FAILED, exit_code=1, last_lines=["connection lost"])
    verdict = judge(plan, [victim, status(1)], [], {1: SPOKE})
    assert verdict.evidence.rank == 1


def test_a_failed_learner_that_printed_its_own_error_is_named(plan):
    first = status(0, State.FAILED, exit_code=1, last_lines=["[rank 0 on n1] ValueError: no"])
    verdict = judge(plan, [first, status(1)], [], {1: SPOKE})
    assert verdict.evidence.rank == 0


@pytest.mark.parametrize(
    ("line", "reason", "hint"),
    [
        ("slurmstepd-n1: error: Exceeded job memory limit", "more memory", "--memory"),
        ("srun: error: Node failure on n2", "A node was lost", "dlctl resume t-"),
        ("srun: error: n1: task 0: Killed", "killed from outside", "--memory"),
    ],
)
def test_the_launchers_output_explains_why_all_learners_are_gone(plan, line, reason, hint):
    verdict = judge(plan, [status(0), status(1)], [line, "srun: the end"], {})
    assert verdict.state is State.FAILED
    assert reason in verdict.reason
    assert hint in verdict.hint


MPI_NOISE = [
    "--------",
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD",
    "--------",
]


@pytest.mark.parametrize(
    ("said", "noise", "hint"),
    [
        (UserFault("no function build", hint="it returns a dict"), [], "it returns a dict"),
        (UserFault("no function build", hint="it returns a dict"), MPI_NOISE, "it returns a dict"),
        (
            UserFault("build returned 42"),
            MPI_NOISE,
            "See its whole log: dlctl logs ID --learner 1 --debug",
        ),
    ],
)
def test_the_reason_and_hint_are_those_of_the_loops_error(plan, capsys, said, noise, hint):
    explain(said, 1)
    lines = [*capsys.readouterr().err.splitlines(), *noise]
    failed = status(1, State.FAILED, exit_code=1, last_lines=lines)
    verdict = judge(plan, [status(0, State.CANCELLED), failed], [], {})
    assert verdict.reason == f"Learner 1 on n2 failed with exit code 1: {said.message}"
    assert verdict.hint == hint.replace("ID", TRAINING_ID)
    assert verdict.evidence.last_lines == lines


@pytest.mark.parametrize("line", [
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_67_2>: No space left on "
    "device (28)",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
])  # fmt: skip
def test_full_shared_memory_is_not_a_full_disk(plan, line):
    failed = status(0, State.FAILED, exit_code=1, last_lines=[line])
    verdict = judge(plan, [failed, status(1, State.CANCELLED)], [], {})
    assert verdict.hint.startswith("Free /dev/shm on that node")
    assert "dlctl delete" not in verdict.hint


def test_after_a_full_disk_the_next_step_is_a_resume(plan):
    words = ["OSError: [Errno 28] No space left on device"]
    failed = status(1, State.FAILED, exit_code=1, last_lines=words)
    verdict = judge(plan, [status(0, State.CANCELLED), failed], [], {})
    assert "Free space" in verdict.hint
    assert verdict.hint.endswith(f"dlctl resume {plan.training_id}")


def test_an_error_in_the_users_program_is_shown_with_its_line(plan, capsys):
    try:
        exec(
            compile(
                "def build():\n    raise RuntimeError('no GPU here')\nbuild()", "a/t.py", "exec"
            )
        )
    except RuntimeError as error:
        explain(error, 0)
    lines = capsys.readouterr().err.splitlines()
    failed = status(0, State.FAILED, exit_code=1, last_lines=lines)
    verdict = judge(plan, [failed, status(1, State.CANCELLED)], [], {})
    assert verdict.reason.endswith("exit code 1: a/t.py:2: RuntimeError: no GPU here")


def test_a_warning_of_the_loop_is_not_the_reason_of_its_end(plan):
    lines = ["[rank 0 on n1] WARNING: no GPU", "mmap: permission denied"]
    failed = status(0, State.FAILED, exit_code=1, last_lines=lines)
    verdict = judge(plan, [failed, status(1, State.CANCELLED)], [], {})
    assert verdict.reason.endswith("exit code 1: mmap: permission denied")


@pytest.mark.parametrize(
    ("asked", "more"), [(1 << 30, "2GiB"), (700 << 20, "1400MiB"), (None, "4GiB")]
)
def test_the_hint_on_memory_is_a_valid_command(plan, asked, more):
    resources = replace(plan.resources, memory_bytes_per_learner=asked)
    killed = status(0, State.FAILED, signal=9, last_lines=["epoch 1"])
    other = status(1, State.CANCELLED)
    verdict = judge(replace(plan, resources=resources), [killed, other], [], {})
    assert verdict.hint.endswith(f": dlctl resume {plan.training_id} --memory {more}")


def test_a_warning_of_a_completed_training_is_shown(plan):
    warned = [status(r, State.COMPLETED, reason="the loss is nan since step 1") for r in (0, 1)]
    verdict = judge(plan, warned, [], {})
    assert verdict.state is State.COMPLETED
    assert verdict.reason == (
        "All 2 learners ended with exit code 0; the loss is nan since step 1."
    )


def test_a_loop_that_did_not_finish_has_failed(plan):
    ended = status(0, State.FAILED, exit_code=0, reason=UNFINISHED)
    verdict = judge(plan, [ended, status(1, State.CANCELLED)], [], {})
    assert verdict.state is State.FAILED
    assert verdict.reason == "Learner 0 on n1 ended before the training loop had finished."
    assert "`build`" in verdict.hint


def test_no_learner_of_an_ended_attempt_is_shown_as_training(plan, tmp_path):
    (tmp_path / status_file(1, "learner", 0)).parent.mkdir(parents=True)
    known = [status(0), status(1), status(2, State.COMPLETED, exit_code=0)]
    verdict = judge(plan, known, [], {1: SPOKE})
    for each in known:
        write_whole(tmp_path / status_file(1, "learner", each.rank), to_json(each))
    Statuses(tmp_path, 1).close(len(known), verdict.failed_rank)
    rulings = read_record(Rulings, tmp_path / rulings_file(1))
    closed = [rulings.on("learner", rank, known[rank]) for rank in (0, 1)]
    assert [(s.state, s.reason) for s in closed] == [
        (State.CANCELLED, "ended with the others"),
        (State.FAILED, "killed from outside"),
    ]
    assert [s.heartbeat_at for s in closed] == [5.0, 4.0]
    assert len(rulings.presumed) == 2 and not rulings.statuses


@pytest.mark.parametrize(("command", "hint"), [
    ("torchrun --nnodes 2 train.py", "Use python instead of torchrun"),
    ("python train.py", "Another job took the port"),
])  # fmt: skip
def test_torchruns_that_meet_at_one_port_are_the_commands_fault(plan, command, hint):
    plan = replace(plan, framework=replace(plan.framework, command=command, job=None))
    words = ["torch.distributed.DistNetworkError: port: 29500, name: EADDRINUSE"]
    failed = status(1, State.FAILED, exit_code=1, last_lines=words)
    verdict = judge(plan, [status(0, State.CANCELLED), failed], [], {})
    assert verdict.hint.startswith(hint)
