"""Each kind of verdict has a test that makes it happen, on a real Slurm where that is possible."""

import pytest
from repository import REPOSITORY

from dlctl.contract import VerdictKind

USER, KINDS, CONTROL = (
    f"tests/cluster/test_{name}.py" for name in ("user_faults", "verdict_kinds", "control")
)
PROOFS = {
    "user_error": (USER, "test_a_syntax_error_is_found_before_training"),
    "not_a_number": (
        CONTROL,
        "test_a_loss_that_is_no_number_is_named_with_its_step_and_not_retried",
    ),
    "out_of_memory": (USER, "test_more_memory_than_asked_for"),
    "loss_spike": (CONTROL, "test_a_loss_that_jumps_is_rolled_back"),
    "plateau": (CONTROL, "test_a_plateau_ends_a_training_early_with_its_results"),
    "budget": (CONTROL, "test_hours_that_are_used_up_halt_the_training"),
    "gpu_out_of_memory": (
        KINDS,
        "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed",
    ),
    "gpu_error": (
        "tests/cluster/test_bad_nodes.py",
        "test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered",
    ),
    "disk_full": (
        "tests/cluster/test_full_disk.py",
        "test_a_disk_that_is_full_for_a_while_is_waited_for",
    ),
    "node_lost": (
        "tests/cluster/test_between_links.py",
        "test_a_lost_node_ends_no_training_whichever_it_is",
    ),
    "network": (KINDS, "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed"),
    "hung": (
        "tests/cluster/test_hung_learners.py",
        "test_a_learner_that_blocks_is_named_and_the_attempt_retried",
    ),
    "time_limit": (
        "tests/cluster/test_between_links.py",
        "test_a_job_that_asks_slurm_for_another_run_is_both_links",
    ),
    "preempted": (KINDS, "test_a_job_that_is_preempted_goes_on"),
    "try_again": (
        "tests/cluster/test_going_on.py",
        "test_a_cancel_between_two_links_ends_the_chain",
    ),
    "scheduler": (KINDS, "test_a_step_that_somebody_cancels_is_the_schedulers_doing"),
    "site": ("tests/cluster/test_site_faults.py", "test_a_wrong_pmi_stops_before_training"),
    "requested": (
        "tests/cluster/test_main_road.py",
        "test_halted_and_resumed_is_bit_equal_to_uninterrupted",
    ),
    "cancelled": (KINDS, "test_a_cancelled_training"),
    "superseded": (
        "tests/unit/learner/supervisor/test_late_attempt.py",
        "test_a_superseded_attempt_says_so",
    ),
    "internal": (
        "tests/unit/learner/supervisor/test_finish.py",
        "test_a_fault_of_the_supervisor_itself_is_told_as_one",
    ),
    "unknown": (KINDS, "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed"),
}
"""Recorded logs of real failures, and where each comes from, are in
`tests/unit/learner/supervisor/recorded/`. No node here has a GPU: `gpu_out_of_memory` is a program
that prints what CUDA prints, `gpu_error` a GPU of the test cluster that answers no more."""


@pytest.mark.parametrize("kind", [kind.value for kind in VerdictKind if kind.value])
def test_each_kind_of_verdict_has_a_test_that_makes_it_happen(kind):
    path, name = PROOFS[kind]
    assert f"def {name}(" in (REPOSITORY / path).read_text()
