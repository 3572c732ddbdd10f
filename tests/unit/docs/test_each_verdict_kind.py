"""Each kind of verdict has a test that makes it happen, on a real Slurm where that is possible."""

import pytest
from repository import REPOSITORY

from dlctl.contract import VerdictKind

PROOFS = {
    "user_error": "test_a_syntax_error_is_found_before_training",
    "not_a_number": "test_a_loss_that_is_no_number_is_named_with_its_step_and_not_retried",
    "out_of_memory": "test_more_memory_than_asked_for",
    "loss_spike": "test_a_loss_that_jumps_is_rolled_back",
    "plateau": "test_a_plateau_ends_a_training_early_with_its_results",
    "budget": "test_hours_that_are_used_up_halt_the_training",
    "gpu_out_of_memory": "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed",
    "gpu_error": "test_a_node_with_a_dead_gpu_is_named_avoided_and_remembered",
    "disk_full": "test_a_disk_that_is_full_for_a_while_is_waited_for",
    "node_lost": "test_a_lost_node_ends_no_training_whichever_it_is",
    "network": "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed",
    "hung": "test_a_learner_that_blocks_is_named_and_the_attempt_retried",
    "time_limit": "test_a_job_that_asks_slurm_for_another_run_is_both_links",
    "preempted": "test_a_job_that_is_preempted_goes_on",
    "try_again": "test_a_cancel_between_two_links_ends_the_chain",
    "scheduler": "test_a_step_that_somebody_cancels_is_the_schedulers_doing",
    "site": "test_a_wrong_pmi_stops_before_training",
    "requested": "test_halted_and_resumed_is_bit_equal_to_uninterrupted",
    "cancelled": "test_a_cancelled_training",
    "superseded": "test_a_superseded_attempt_says_so",
    "internal": "test_a_fault_of_the_supervisor_itself_is_told_as_one",
    "unknown": "test_what_a_learner_says_is_the_kind_and_slurm_calls_the_job_failed",
}
"""Recorded logs of real failures, and where each comes from, are in
`tests/unit/learner/supervisor/recorded/`. No node here has a GPU: `gpu_out_of_memory` is a program
that prints what CUDA prints, `gpu_error` a GPU of the test cluster that answers no more."""


@pytest.fixture(scope="session")
def tests():
    """The text of all files that may hold such a test."""
    folders = [REPOSITORY / "tests" / name for name in ("cluster", "unit/learner/supervisor")]
    return "".join(path.read_text() for each in folders for path in each.glob("test_*.py"))


@pytest.mark.parametrize("kind", [kind.value for kind in VerdictKind if kind.value])
def test_each_kind_of_verdict_has_a_test_that_makes_it_happen(kind, tests):
    assert tests.count(f"def {PROOFS[kind]}(") == 1
