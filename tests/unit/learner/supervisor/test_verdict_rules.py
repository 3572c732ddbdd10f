"""Each line that real failures left means one kind of failure, and has a hint."""

import pytest

from dlctl.contract import VerdictKind
from learner.supervisor.verdict_rules import (
    EXIT_CODES,
    LAUNCHER_LINES,
    LEARNER_LINES,
    SIGNALS,
    first_match,
)

K = VerdictKind
SEEN_IN_LEARNERS = [
    ("ModuleNotFoundError: No module named 'boto3'", K.USER_ERROR),
    ("ImportError: cannot import name 'x' from 'y'", K.USER_ERROR),
    ("    SyntaxError: invalid syntax", K.USER_ERROR),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'", K.USER_ERROR),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", K.OUT_OF_MEMORY),
    ("MemoryError", K.OUT_OF_MEMORY),
    ("fork: Cannot allocate memory", K.OUT_OF_MEMORY),
    ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
     "dataloader's workers are out of shared memory.", K.OUT_OF_MEMORY),
    ("OSError: [Errno 28] No space left on device", K.DISK_FULL),
    ("OSError: [Errno 122] Disk quota exceeded", K.DISK_FULL),
    ("RuntimeError: The server socket has failed to bind: Address already in use", K.NETWORK),
    ("torch.distributed.DistNetworkError: port: 29500, code: -98, name: EADDRINUSE", K.NETWORK),
]  # fmt: skip
SEEN_FROM_SRUN = [
    ("slurmstepd: error: Job 7 exceeded memory limit (9 > 4), being killed", K.OUT_OF_MEMORY),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0", K.OUT_OF_MEMORY),
    ("srun: error: Node failure on n2", K.NODE_LOST),
    ("slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-23T10:00:00 ***", K.SCHEDULER),
]


@pytest.mark.parametrize(("line", "kind"), SEEN_IN_LEARNERS)
def test_a_learners_last_lines_decide_the_kind(line, kind):
    found = first_match(LEARNER_LINES, ["epoch 1", line, "  at the very end"])
    assert found is not None and (found[0].kind, found[1]) == (kind, line)


@pytest.mark.parametrize(("line", "kind"), SEEN_FROM_SRUN)
def test_lines_of_srun_decide_the_kind(line, kind):
    found = first_match(LAUNCHER_LINES, [line, "srun: the end"])
    assert found is not None and (found[0].kind, found[1]) == (kind, line)
    assert found[0].reason


def test_every_rule_matches_a_line_of_a_real_failure():
    used = {id(first_match(LEARNER_LINES, [line])[0]) for line, _ in SEEN_IN_LEARNERS}
    used |= {id(first_match(LAUNCHER_LINES, [line])[0]) for line, _ in SEEN_FROM_SRUN}
    assert used == {id(rule) for rule in (*LEARNER_LINES, *LAUNCHER_LINES)}


def test_hints_have_placeholders_only_for_training_site_and_rank():
    hints = [rule.hint for rule in (*LEARNER_LINES, *LAUNCHER_LINES, *SIGNALS.values())]
    hints += [hint for _, hint in EXIT_CODES.values()]
    for hint in hints:
        assert "{" not in hint.format(id="t-1", site="here", rank=0)


def test_meaningless_lines_match_no_rule():
    assert first_match(LEARNER_LINES, ["epoch 1", "loss 0.3"]) is None
    assert first_match(LEARNER_LINES, []) is None
