"""The verdict on an attempt whose supervisor was killed."""

from __future__ import annotations

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import State, VerdictKind
from learner.supervisor.aftermath import judge

K = VerdictKind
FULL = "slurmstepd-n1: error: StepId=1.batch exceeded memory limit (529694720 > 209715200)"


@pytest.mark.parametrize(
    ("word", "output", "kind", "reason"),
    [
        ("FAILED", FULL, K.OUT_OF_MEMORY, "(505 MiB; asked for 200 MiB)"),
        ("CANCELLED", FULL, K.OUT_OF_MEMORY, "(505 MiB; asked for 200 MiB)"),
        ("CANCELLED", "epoch 1", K.CANCELLED, "cancelled, but not by dlctl"),
        ("NODE_FAIL", FULL, K.NODE_LOST, "A node of the job was lost."),
        ("FAILED", "slurmstepd: *** JOB 7 ON n1 CANCELLED AT x DUE TO TIME LIMIT ***",
         K.TIME_LIMIT, "time limit"),
        ("FAILED", "epoch 1", K.UNKNOWN, "it was killed"),
    ],
)  # fmt: skip
def test_the_schedulers_word_and_the_jobs_output_say_why(tmp_path, word, output, kind, reason):
    job = Job(tmp_path, "true")
    path = job.dir / contract.job_output(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"12:00:00 TRAINING: train.py\n{output}\n")
    verdict = judge(job.dir, job.plan, 1, word)
    assert verdict.kind == kind
    assert reason in verdict.reason
    assert verdict.hint or kind is K.CANCELLED
    assert verdict.state is (State.CANCELLED if kind is K.CANCELLED else State.FAILED)
    assert verdict.evidence is not None and verdict.evidence.scheduler_state == word
