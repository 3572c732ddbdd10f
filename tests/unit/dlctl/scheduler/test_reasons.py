"""Each word of Slurm for why a job waits is a sentence, and says what to do where something is."""

import pytest

from dlctl.scheduler.reasons import why_it_waits

WORDS = """
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
    for word in WORDS.split():
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


def test_nodes_that_are_missing_are_named():
    told = why_it_waits("ReqNodeNotAvail, UnavailableNodes:n[1-4]")
    assert told.sentence.endswith("(ReqNodeNotAvail, UnavailableNodes:n[1-4])")
