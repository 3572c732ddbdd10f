"""The line format of job listings and the words of states, shared by all schedulers.

Every word that Slurm has for a state is mapped once, and the other schedulers use those words. The
separators of cells are those of ASCII (record 036, unit 037). They occur in no name, so names with
spaces, bars, tabs or newlines, and banners around the answer, can't break the parsing.
"""

from __future__ import annotations

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SchedulerUnavailable
from dlctl.scheduler.base import Job, JobState

RECORD = "\036"
UNIT = "\037"
QUEUE_FIELDS = 6
"""Job id, name, state, reason, nodes, comment. The local queue adds the exit code, Slurm leaves it
empty and adds the time of the start and the partition."""


def parse_rows(text: str) -> list[Job]:
    """Return the jobs of a listing whose rows begin with RECORD; anything else is skipped."""
    jobs = []
    for row in text.split(RECORD)[1:]:
        cells = row.split(UNIT)
        if len(cells) < QUEUE_FIELDS:
            continue  # the answer was cut off in the middle of a row
        job_id, name, word, reason, nodes = cells[:5]
        comment, exit_code, starts, partition = (*cells[5:9], "", "", "")[:4]
        jobs.append(Job(
            job_id.strip(), name, job_state(word), word.strip(), plain(reason), plain(nodes),
            exit_code.strip(), plain(comment.split("\n")[0]),
            starts_at=float(starts) if starts.strip().isdecimal() else 0.0,
            partition=plain(partition),
        ))  # fmt: skip
    return jobs


def plain(cell: str) -> str:
    """Return a cell, or "" if it has one of the scheduler's words for nothing."""
    text = cell.strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "Unknown") else text


def unavailable(what: str, exit_code: int, stderr: str) -> SchedulerUnavailable:
    """Return the error of a command that got no answer from its controller."""
    text = " ".join(line.strip() for line in lines_of(stderr.strip())[-3:]) or "nothing"
    return SchedulerUnavailable(
        f"{what} ended with exit code {exit_code} and printed: {text}",
        hint="The jobs themselves continue; try again in a minute, or run `dlctl doctor`.",
    )


_MEANT = {
    # its nodes are booting; requeued, held by its exit code, or (25.11) ahead of others
    JobState.PENDING: "PENDING CONFIGURING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD "
                      "RESV_DEL_HOLD SPECIAL_EXIT EXPEDITING",
    JobState.RUNNING: "RUNNING RESIZING SIGNALING UPDATE_DB",
    JobState.ENDING: "COMPLETING STAGE_OUT",  # the latter: its burst buffer is being written back
    JobState.SUSPENDED: "STOPPED SUSPENDED",
    JobState.COMPLETED: "COMPLETED",
    JobState.FAILED: "FAILED LAUNCH_FAILED RECONFIG_FAIL",
    JobState.TIMEOUT: "TIMEOUT DEADLINE",
    JobState.OUT_OF_MEMORY: "OUT_OF_MEMORY",
    JobState.NODE_FAIL: "NODE_FAIL BOOT_FAIL",
    JobState.PREEMPTED: "PREEMPTED",
    # a federated sibling is REVOKED when the job runs on another cluster
    JobState.CANCELLED: "CANCELLED REVOKED",
}  # fmt: skip
WORDS = {word: state for state, words in _MEANT.items() for word in words.split()}

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
