"""Which learner the verdict names, and in which words, if it failed or was killed from outside."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from node_job import TRAINING_ID, Job, status

from dlctl.contract import (
    Batch,
    Launch,
    Rulings,
    State,
    Verdict,
    read_record,
    rulings_file,
    status_file,
    to_json,
    write_whole,
)
from dlctl.contract.programs.mpi_words import ABORTED
from learner.errors import UserFault, explain
from learner.job.status import UNFINISHED, UNHEEDED
from learner.supervisor.statuses import Observed, Statuses
from learner.supervisor.verdict import decide

SPOKE = [
    '[rank 1 on n2]   File "/c/train.py", line 2, in <module>',
    "[rank 1 on n2] ModuleNotFoundError: No module named 'gone'",
]
Judge = Callable[..., Verdict]


@pytest.fixture
def plan(tmp_path):
    launch, two = Launch("srun", ["srun"]), {"learners": 2}
    batch = Batch("slurm")
    return Job(tmp_path, None, job="train.py", launch=launch, resources=two, batch=batch).plan


@pytest.fixture
def judge(plan):
    """Judge two learners that were killed, of which one may have failed, with its last lines."""

    def judge(failed=None, words=(), logs=None, plan=plan):
        rank = -1 if failed is None else failed.rank
        statuses = [failed if n == rank and failed else status(n) for n in (0, 1)]
        return decide(plan, Observed(statuses, 137, list(words), None, logs or {}))

    return judge


def ended(*lines, rank=0, exit_code=1):
    return status(rank, State.FAILED, exit_code=exit_code, last_lines=[*lines])


def test_the_learner_that_printed_an_error_is_named_not_the_one_killed_with_it(judge):
    verdict = judge(None, ("srun: error: n1: task 0: Killed",), {0: ["epoch 1"], 1: SPOKE})
    assert (verdict.evidence.rank, verdict.evidence.host) == (1, "n2")
    assert verdict.reason.startswith("Learner 1 on n2 failed: ")
    assert "No module named 'gone'" in verdict.reason
    by_mpi = judge(None, WAITED_FOR_N2[:-1], {0: ["epoch 1"], 1: [*SPOKE, ABORTED]})
    assert by_mpi.reason.startswith("Learner 1 on n2 failed: "), "it was only: failed."
    assert (by_mpi.kind, by_mpi.evidence.rank) == ("user_error", 1)
    assert "requirements" in verdict.hint


def test_a_guess_at_the_memory_limit_has_the_memory_last_used(judge, plan):
    resources = replace(plan.resources, memory_bytes_per_learner=1 << 30)
    killed = status(0, State.FAILED, signal=9, metrics={"memory_bytes": 341 << 20})
    verdict = judge(killed, plan=replace(plan, resources=resources))
    assert verdict.reason.endswith(
        "signal 9, perhaps by its memory limit (1 GiB per learner; it last used 341 MiB)."
    )


@pytest.mark.parametrize(
    ("said", "named"), [("connection lost", 1), ("[rank 0 on n1] ValueError: no", 0)]
)
def test_a_printed_error_overrides_a_learner_that_failed_in_consequence(judge, said, named):
    """But not one that has printed its own error."""
    assert judge(ended(said), logs={1: SPOKE}).evidence.rank == named


@pytest.mark.parametrize(
    ("line", "reason", "hint"),
    [
        ("slurmstepd-n1: error: Exceeded job memory limit", "more memory", "--memory"),
        ("srun: error: Node failure on n2", "A node was lost", "dlctl resume t-"),
        ("srun: error: n1: task 0: Killed", "killed from outside", "--memory"),
    ],
)
def test_the_launchers_output_explains_why_all_learners_are_gone(judge, line, reason, hint):
    verdict = judge(None, (line, "srun: the end"))
    assert verdict.state is State.FAILED
    assert reason in verdict.reason
    assert hint in verdict.hint


WAITED_FOR_N2 = (
    "slurmstepd-n1: error: *** STEP 2.1 ON n1 CANCELLED AT 2026-11-29T06:57:32 ***",
    "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
    "srun: error: n1: task 0: Killed",
    "srun: launch/slurm: _step_signal: Terminating StepId=2.1",
    "srun: error: Timed out waiting for job step to complete",
)
"""Recorded where n2 was powered off and MPI on n1 ended the step before Slurm knew."""


def test_a_node_that_srun_waits_for_in_vain_is_lost(judge):
    """It was "Slurm ended the learners' step", and the next attempt got the same node."""
    verdict = judge(None, WAITED_FOR_N2)
    assert (verdict.kind, verdict.evidence.rank, verdict.evidence.host) == ("node_lost", 1, "n2")
    assert verdict.reason.startswith("A node was lost: n2 did not answer srun")
    assert judge(None, WAITED_FOR_N2[:-1]).kind == "scheduler"
    assert judge(None, [*WAITED_FOR_N2, "srun: error: n2: task 1: Killed"]).kind == "scheduler"


def test_the_node_whose_step_had_too_much_is_named_not_a_learner_that_was_killed_with_it(judge):
    """Slurm kills the whole step where it counts the memory of a node's part of it."""
    line = "slurmstepd-n1: error: StepId=2.1 exceeded memory limit (972316672 > 629145600), being"
    killed = replace(ended("epoch 1", rank=1, exit_code=None), signal=9)
    verdict = judge(killed, (line, "srun: error: n2: task 1: Killed"))
    assert (verdict.kind, verdict.evidence.host) == ("out_of_memory", "n1")
    assert verdict.reason.endswith(line) and "--memory" in verdict.hint
    assert verdict.evidence.role == "", "which of its learners used too much is not known"
    line = line.replace("n1", "n2")
    assert judge(killed, (line,)).reason.startswith(
        "Learner 1 on n2 was killed by signal 9, by its"
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("other", [State.TRAINING, State.FAILED])
def test_the_learner_that_took_the_memory_of_a_step_is_blamed_not_the_first_that_was_killed(
    plan, order, other
):
    """Learner 1 had filled n1, and "Learner 0 on n1 was killed … by its memory limit"."""
    resources = replace(plan.resources, memory_bytes_per_learner=1 << 30, learners_per_node=[2])
    plan = replace(plan, resources=resources)
    line = "slurmstepd-n1: error: StepId=11.1 exceeded memory limit (2165895168 > 2147483648), b"
    words = [line, "srun: error: n1: tasks 0-1: Killed"]
    killed = [replace(status(order[0], State.FAILED, signal=9), host="n1"),
              replace(status(order[1], other, signal=9), host="n1")]  # fmt: skip
    killed.sort(key=lambda each: each.rank)
    for used, rank in (({0: 3 << 28, 1: 5 << 28}, 1), ({0: 5 << 28, 1: 3 << 28}, 0)):
        verdict = decide(plan, Observed(killed, 137, words, None, most_bytes=used))
        assert (verdict.kind, verdict.evidence.rank) == ("out_of_memory", rank)
        assert verdict.reason.startswith(f"Learner {rank} on n1 was killed by signal 9, by its mem")
    for used in ({}, {0: 3 << 28, 1: 3 << 28}):
        verdict = decide(plan, Observed(killed, 137, words, None, most_bytes=used))
        assert (verdict.kind, verdict.evidence.host) == ("out_of_memory", "n1")
        assert verdict.reason.endswith(line) and verdict.evidence.role == ""


def test_a_line_that_names_another_learner_is_not_this_ones_own_word(judge):
    """A program that repeated it had its own error hidden: "failed …: ValueError: fake"."""
    verdict = judge(ended("[rank 0 on n1] ValueError: fake", *TRACEBACK, rank=1))
    assert verdict.reason.endswith("failed with exit code 1: train.py:9: ValueError: mine")


TRACEBACK = [
    "Traceback (most recent call last):", '  File "train.py", line 9, in <module>',
    "ValueError: mine",
]  # fmt: skip
MPI_NOISE = ["-----", "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", "-----"]
WHOLE_LOG = "See its whole log: dlctl logs ID --learner 1 --debug"


@pytest.mark.parametrize(
    ("said", "noise", "hint"),
    [
        (UserFault("no function build", hint="it returns a dict"), [], "it returns a dict"),
        (UserFault("no function build", hint="it returns a dict"), MPI_NOISE, "it returns a dict"),
        (UserFault("build returned 42"), MPI_NOISE, WHOLE_LOG),
    ],
)
def test_the_reason_and_hint_are_those_of_the_loops_error(judge, capsys, said, noise, hint):
    explain(said, 1)
    lines = [*capsys.readouterr().err.splitlines(), *noise]
    verdict = judge(ended(*lines, rank=1))
    assert verdict.reason == f"Learner 1 on n2 failed with exit code 1: {said.message}"
    assert verdict.hint == hint.replace("ID", TRAINING_ID)
    assert verdict.evidence.last_lines == lines


FULL = "unable to allocate shared memory(shm) for file </torch_67_2>: No space left on device (28)"
KILLED = (
    "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit."
)


@pytest.mark.parametrize(
    ("line", "begins", "holds"),
    [
        (f"RuntimeError: {FULL}", "Free /dev/shm on that node", ""),
        (f"RuntimeError: {KILLED}", "Free /dev/shm on that node", ""),
        ("OSError: [Errno 28] No space left on device", "Free space", "dlctl resume ID"),
    ],
)
def test_full_shared_memory_is_not_a_full_disk(judge, line, begins, holds):
    hint = judge(ended(line)).hint
    assert hint.startswith(begins) and hint.endswith(holds.replace("ID", TRAINING_ID))
    assert holds or "dlctl delete" not in hint


def test_an_error_in_the_users_program_is_shown_with_its_line(judge, capsys):
    program = "def build():\n    raise RuntimeError('no GPU here')\nbuild()"
    try:
        exec(compile(program, "a/t.py", "exec"))
    except RuntimeError as error:
        explain(error, 0)
    verdict = judge(ended(*capsys.readouterr().err.splitlines()))
    assert verdict.reason.endswith("exit code 1: a/t.py:2: RuntimeError: no GPU here")


def test_a_warning_of_the_loop_is_not_the_reason_of_its_end(judge):
    verdict = judge(ended("[rank 0 on n1] WARNING: no GPU", "mmap: permission denied"))
    assert verdict.reason.endswith("exit code 1: mmap: permission denied (its last line)")


@pytest.mark.parametrize(
    ("asked", "most", "more"),
    [
        (1 << 30, None, "2GiB"),
        (700 << 20, 1400 << 20, "1400MiB"),
        (None, None, "4GiB"),
        (None, 3900 << 20, "3900MiB"),
        (3000 << 20, 3900 << 20, "3900MiB"),
        (3900 << 20, 3900 << 20, ""),
    ],
)
@pytest.mark.parametrize(
    "end",
    [{"signal": 9, "last_lines": ["epoch 1"]}, {"exit_code": 1, "last_lines": ["MemoryError"]}],
)
def test_the_hint_on_memory_is_twice_what_it_had_as_far_as_the_nodes_have_it(
    judge, plan, asked, most, more, end
):
    resources = replace(
        plan.resources, memory_bytes_per_learner=asked, most_memory_bytes_per_learner=most
    )
    verdict = judge(status(0, State.FAILED, **end), plan=replace(plan, resources=resources))
    if more:
        assert verdict.hint.endswith(f": dlctl resume {TRAINING_ID} --memory {more}")
    else:
        assert "no node there has room for more than 3.81 GiB" in verdict.hint
        assert "dlctl" not in verdict.hint


def test_a_warning_of_a_completed_training_is_shown(plan):
    warned = [status(r, State.COMPLETED, reason="the loss is nan since step 1") for r in (0, 1)]
    verdict = decide(plan, Observed(warned, 0, [], None))
    assert verdict.state is State.COMPLETED
    assert verdict.reason == (
        "All 2 learners ended with exit code 0; the loss is nan since step 1."
    )


def test_a_failure_in_spite_of_exit_code_0_comes_before_other_warnings(plan):
    unheeded = f"{UNHEEDED} 1 ends with a traceback (KeyError: 'x')"
    ended = [status(0, State.COMPLETED, reason="a pipe"), status(1, State.COMPLETED,
                                                                 reason=unheeded)]  # fmt: skip
    assert decide(plan, Observed(ended, 0, [], None)).reason.endswith(f"code 0; {unheeded}.")


def test_a_loop_that_did_not_finish_has_failed(judge):
    verdict = judge(status(0, State.FAILED, exit_code=0, reason=UNFINISHED))
    assert verdict.state is State.FAILED
    assert verdict.reason == "Learner 0 on n1 ended before the training loop had finished."
    assert "`build`" in verdict.hint


def test_no_learner_of_an_ended_attempt_is_shown_as_training(plan, tmp_path):
    (tmp_path / status_file(1, "learner", 0)).parent.mkdir(parents=True)
    known = [status(0), status(1), status(2, State.COMPLETED, exit_code=0)]
    verdict = decide(plan, Observed(known, 137, [], None, {1: SPOKE}))
    for each in known:
        write_whole(tmp_path / status_file(1, "learner", each.rank), to_json(each))
    Statuses(tmp_path, 1).close(len(known), verdict.failed_rank)
    rulings = read_record(Rulings, tmp_path / rulings_file(1))
    closed = [rulings.on("learner", rank, known[rank]) for rank in (0, 1)]
    assert [(s.state, s.reason, s.heartbeat_at) for s in closed] == [
        (State.CANCELLED, "ended with the others", 5.0),
        (State.FAILED, "killed from outside", 4.0),
    ]
    assert len(rulings.presumed) == 2 and not rulings.statuses


@pytest.mark.parametrize(("command", "hint"), [
    ("torchrun --nnodes 2 train.py", "Use python instead of torchrun"),
    ("python train.py", "Another program had the port"),
])  # fmt: skip
def test_torchruns_that_meet_at_one_port_are_the_commands_fault(judge, plan, command, hint):
    plan = replace(plan, framework=replace(plan.framework, command=command, job=None))
    taken = "torch.distributed.DistNetworkError: port: 29500, name: EADDRINUSE"
    assert judge(ended(taken, rank=1), plan=plan).hint.startswith(hint)
