"""Each word of Slurm: for a state, and for why a job waits, which becomes a sentence."""

import pytest

from dlctl.scheduler.base import JobState
from dlctl.scheduler.reasons import why_it_waits
from dlctl.scheduler.rows import SHORT_WORDS, WORDS, job_state

REASONS = """
Prolog Priority Dependency Resources PartitionNodeLimit PartitionTimeLimit PartitionDown
PartitionInactive JobHeldAdmin JobHeldUser BeginTime Licenses AssociationJobLimit
AssociationResourceLimit AssociationTimeLimit Reservation ReqNodeNotAvail FrontEndDown SchedDefer
NodeDown BadConstraints SystemFailure JobLaunchFailure NonZeroExitCode RaisedSignal TimeLimit
InactiveLimit InvalidAccount InvalidQOS QOSUsageThreshold QOSJobLimit QOSResourceLimit
QOSTimeLimit Cleaning QOSNotAllowed AccountNotAllowed DependencyNeverSatisfied QOSGrpCpuLimit
QOSGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit QOSGrpJobsLimit QOSGrpMemLimit QOSGrpNodeLimit
QOSGrpSubmitJobsLimit QOSGrpWallLimit QOSMaxCpuPerJobLimit QOSMaxCpuMinutesPerJobLimit
QOSMaxNodePerJobLimit QOSMaxWallDurationPerJobLimit QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit
QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit QOSMinCpuNotSatisfied AssocGrpCpuLimit
AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpJobsLimit AssocGrpMemLimit
AssocGrpNodeLimit AssocGrpSubmitJobsLimit AssocGrpWallLimit AssocMaxJobsLimit
AssocMaxCpuPerJobLimit AssocMaxCpuMinutesPerJobLimit AssocMaxNodePerJobLimit
AssocMaxWallDurationPerJobLimit AssocMaxSubmitJobLimit JobHoldMaxRequeue JobArrayTaskLimit
BurstBufferResources BurstBufferStageIn BurstBufferOperation AssocGrpUnknown AssocMaxCpuPerNode
AssocGrpMemMinutes AssocGrpMemRunMinutes AssocMaxMemPerJob AssocMaxMemPerNode
AssocMaxMemMinutesPerJob AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocGrpEnergy AssocGrpGRES
AssocGrpGRESMinutes AssocGrpGRESRunMinutes AssocMaxGRESPerJob AssocMaxGRESPerNode AssocGrpLicense
AssocGrpBB AssocMaxBBMinutesPerJob QOSMaxMemoryPerUser QOSMinMemory QOSMinNode QOSGrpMemoryMinutes
QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser QOSMinGRES QOSGrpLicenseRunMinutes
QOSMaxLicensePerUser DeadLine MaxBBPerAccount MaxCpuPerAccount MaxEnergyPerAccount
MaxGRESPerAccount MaxNodePerAccount MaxLicensePerAccount MaxMemoryPerAccount MaxUnknownPerAccount
MaxJobsPerAccount MaxSubmitJobsPerAccount PartitionConfig AccountingPolicy FedJobLock OutOfMemory
MaxMemPerLimit AssocGrpBilling QOSGrpBillingRunMinutes ReservationDeleted ReservationInvalid
Constraints MaxBBRunMinsPerAccount MaxCpuRunMinsPerUser MaxPoweredUpNodes MpiPortsBusy
"""


def test_each_word_is_a_sentence_that_names_it():
    for word in REASONS.split():
        why = why_it_waits(word)
        sentence, named = why.sentence.rsplit(" (", 1)
        assert named == f"{word})"
        assert len(sentence.split()) >= 4, word
        assert why.todo or not why.never, word
        why.todo.format(id="t-1", job="7")


@pytest.mark.parametrize(
    ("reason", "sentence", "never"),
    [
        ("QOSMaxJobsPerUserLimit", "there are as many jobs as your jobs in its QOS together may "
         "have; it starts when others end (QOSMaxJobsPerUserLimit)", False),
        ("AssocGrpCPUMinutesLimit", "the jobs of your account together have used up their CPU "
         "minutes (AssocGrpCPUMinutesLimit)", True),
        ("AssocMaxGRESPerJob", "it asks for more GPUs than one job may use in your account "
         "(AssocMaxGRESPerJob)", True),
        ("MaxCpuPerAccount", "the jobs of your account together use as many CPUs as they may; it "
         "starts when others end (MaxCpuPerAccount)", False),
        ("launch_failed_requeued_held", "it could not be launched on a node, and is held "
         "(launch_failed_requeued_held)", True),
        ("Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
         "partitions", "nodes that it needs are down, drained or kept for jobs in partitions of "
         "higher priority (Nodes required for job are DOWN)", False),
        ("Quantum", "Quantum", False),
    ],
)  # fmt: skip
def test_some_in_full(reason, sentence, never):
    assert why_it_waits(reason)[::2] == (sentence, never)
    told = why_it_waits("ReqNodeNotAvail, UnavailableNodes:n[1-4]")
    assert told.sentence.endswith("(ReqNodeNotAvail, UnavailableNodes:n[1-4])")


# job_state_string() and job_state_string_compact() of Slurm 20.02 to 25.11, word by word.
STATES = """
PENDING PD RUNNING R SUSPENDED S COMPLETED CD CANCELLED CA FAILED F TIMEOUT TO NODE_FAIL NF
PREEMPTED PR BOOT_FAIL BF DEADLINE DL OUT_OF_MEMORY OOM COMPLETING CG CONFIGURING CF RESIZING RS
REQUEUED RQ REQUEUE_FED RF REQUEUE_HOLD RH SPECIAL_EXIT SE STOPPED ST REVOKED RV RESV_DEL_HOLD RD
SIGNALING SI STAGE_OUT SO LAUNCH_FAILED LF UPDATE_DB UD POWER_UP_NODE PN RECONFIG_FAIL
EXPEDITING EX
"""
SLURM_WORDS = STATES.split()


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
