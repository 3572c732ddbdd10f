from dlctl.scheduler.base import JobState
from dlctl.scheduler.rows import SHORT_WORDS, WORDS, job_state

# job_state_string() and job_state_string_compact() of Slurm 20.02 to 25.11, word by word.
TEXT = """
PENDING PD RUNNING R SUSPENDED S COMPLETED CD CANCELLED CA FAILED F TIMEOUT TO NODE_FAIL NF
PREEMPTED PR BOOT_FAIL BF DEADLINE DL OUT_OF_MEMORY OOM COMPLETING CG CONFIGURING CF RESIZING RS
REQUEUED RQ REQUEUE_FED RF REQUEUE_HOLD RH SPECIAL_EXIT SE STOPPED ST REVOKED RV RESV_DEL_HOLD RD
SIGNALING SI STAGE_OUT SO LAUNCH_FAILED LF UPDATE_DB UD POWER_UP_NODE PN RECONFIG_FAIL
EXPEDITING EX
"""
SLURM_WORDS = TEXT.split()


def test_every_word_of_slurm_has_a_meaning():
    for word in SLURM_WORDS:
        assert job_state(word) is not JobState.UNKNOWN, word
        assert job_state(word.lower()) is job_state(word), word


def test_the_table_holds_slurms_words_and_no_other():
    assert set(WORDS) | set(SHORT_WORDS) == set(SLURM_WORDS)
    assert set(SHORT_WORDS.values()) <= set(WORDS)


def test_cut_and_tailed_words():
    for word, state in {
        "CANCELLED by 1000": JobState.CANCELLED, "CANCELLED+": JobState.CANCELLED,
        "OUT_OF_ME+": JobState.OUT_OF_MEMORY, "NODE_FAIL+": JobState.NODE_FAIL,
        "  TIMEOUT ": JobState.TIMEOUT, "PREEMPTED": JobState.PREEMPTED,
        "COMPLETI+": JobState.ENDING,
        "COMPLET+": JobState.UNKNOWN,  # COMPLETED or COMPLETING: not an end
    }.items():  # fmt: skip
        assert job_state(word) is state, word
    for word in ("RE+", "+", "", "ASCENDED", "FAILEDISH"):
        assert job_state(word) is JobState.UNKNOWN, word


def test_each_cut_of_a_word_is_its_meaning_or_unknown():
    for word, state in WORDS.items():
        for length in range(1, len(word)):
            assert job_state(word[:length] + "+") in (state, JobState.UNKNOWN) or (
                word[:length] in SHORT_WORDS or word[:length] in WORDS
            )


def test_only_ends_are_final():
    over = {state for state in JobState if state.final}
    assert over.isdisjoint({JobState.PENDING, JobState.RUNNING, JobState.ENDING,
                            JobState.SUSPENDED, JobState.UNKNOWN})  # fmt: skip
    assert JobState.PREEMPTED in over
