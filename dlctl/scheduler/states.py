"""Every word that Slurm uses for a job's state, mapped once. Knows no command or format."""

from __future__ import annotations

from dlctl.scheduler.base import JobState

WORDS: dict[str, JobState] = {
    # waiting
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,  # allocated; its nodes are booting
    "POWER_UP_NODE": JobState.PENDING,
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,  # requeued and held by its exit code: may be released
    "EXPEDITING": JobState.PENDING,  # 25.11: requeued ahead of others
    # there
    "RUNNING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "UPDATE_DB": JobState.RUNNING,
    "COMPLETING": JobState.ENDING,
    "STAGE_OUT": JobState.ENDING,  # its burst buffer is being written back
    "STOPPED": JobState.SUSPENDED,
    "SUSPENDED": JobState.SUSPENDED,
    # over
    "COMPLETED": JobState.COMPLETED,
    "FAILED": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.OUT_OF_MEMORY,
    "NODE_FAIL": JobState.NODE_FAIL,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "PREEMPTED": JobState.PREEMPTED,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,  # a federated sibling: the job runs on another cluster
}

SHORT_WORDS: dict[str, str] = {
    "BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING",
    "CG": "COMPLETING", "DL": "DEADLINE", "EX": "EXPEDITING", "F": "FAILED",
    "LF": "LAUNCH_FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING",
    "PN": "POWER_UP_NODE", "PR": "PREEMPTED", "R": "RUNNING", "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD", "RQ": "REQUEUED", "RS": "RESIZING",
    "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT", "SI": "SIGNALING",
    "SO": "STAGE_OUT", "ST": "STOPPED", "TO": "TIMEOUT", "UD": "UPDATE_DB",
}  # fmt: skip


def job_state(word: str) -> JobState:
    """Return what a word means: long, short, cut (`OUT_OF_ME+`) or with a tail (`CANCELLED by 7`).

    A word that matches nothing, or a cut word with two meanings, is UNKNOWN: never an end.
    """
    parts = word.split()
    if not parts:
        return JobState.UNKNOWN
    head = parts[0].upper()
    if head in WORDS:
        return WORDS[head]
    if head in SHORT_WORDS:
        return WORDS[SHORT_WORDS[head]]
    if not head.endswith("+"):
        return JobState.UNKNOWN
    # `+` ends a cut word. Some versions join flags with it (COMPLETING+…), which the prefix covers.
    meanings = {state for long, state in WORDS.items() if long.startswith(head.rstrip("+"))}
    return meanings.pop() if len(meanings) == 1 else JobState.UNKNOWN
