"""What Slurm says of a job that it is ending: time limit, preemption, lost node, or scancel.

The learners save meanwhile: a thread asks, and the verdict waits for its answer for a moment only.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from dataclasses import dataclass, replace

from dlctl.contract import Evidence, Plan, VerdictKind
from learner.job.outcome import Outcome
from learner.job.slurm import slurm_command

ASK_S = 5.0
"""How long Slurm may take to answer. Of Slurm's KillWait (30 s) the learners get 20 s."""
WAIT_S = 3.0
"""How long the verdict waits for the answer after the learners have ended."""
UNEXPLAINED = "the scheduler ended the job (time limit, preemption or scancel)"
WARNED = "the scheduler signalled that the time limit is near"
BY_A_SIGNAL = "halted by a signal"
BY_THEMSELVES = "the learners saved and stopped"


@dataclass(frozen=True)
class Word:
    """Slurm's answer, and what it means."""

    state: str
    reason: str
    kind: VerdictKind
    sentence: str
    left_s: float | None = None
    """How long the job may still run; None: no limit is known."""


def read(text: str, restarts: int = 0) -> Word | None:
    """Return what `scontrol show job` says of a job that got a signal; None if it says nothing.

    While Slurm ends a job its state is COMPLETING, whatever the cause. A preemption has a time of
    its own, unless the job is requeued, which counts its restarts; a time limit and a lost node
    have a reason; scancel has none of these.

    Args:
        restarts: how often Slurm had restarted the job when it began.
    """
    fields = dict(
        re.findall(r"\b(JobState|Reason|PreemptTime|Restarts|RunTime|TimeLimit)=(\S+)", text)
    )
    state, reason = fields.get("JobState", ""), fields.get("Reason", "None")
    if not state:
        return None
    kind, why = VerdictKind.SCHEDULER, ""
    if state == "PREEMPTED" or fields.get("PreemptTime", "None") not in ("None", "N/A"):
        kind, why = VerdictKind.PREEMPTED, "another job preempted it"
        state = "PREEMPTED"
    elif state in ("PENDING", "REQUEUED") or int(fields.get("Restarts", 0)) > restarts:
        kind = VerdictKind.PREEMPTED
        why = "it is in the queue again, preempted by another job or requeued by somebody"
        state = "REQUEUED"
    elif state in ("TIMEOUT", "DEADLINE") or reason == "TimeLimit":
        kind, why = VerdictKind.TIME_LIMIT, "its time limit was reached"
        state = "TIMEOUT"
    elif state == "NODE_FAIL" or re.search(r"Node(?:Down|Fail)", reason):
        kind, why = VerdictKind.NODE_LOST, "one of its nodes was lost"
        state = "NODE_FAIL"
    elif state in ("COMPLETING", "CANCELLED") and reason == "None":
        kind, why = VerdictKind.CANCELLED, "somebody cancelled it by scancel"
        state = "CANCELLED"
    sentence = f"the scheduler ended the job: {why}" if why else UNEXPLAINED
    ran_s, limit_s = (_seconds(fields.get(name, "")) for name in ("RunTime", "TimeLimit"))
    left_s = None if ran_s is None or limit_s is None else limit_s - ran_s
    return Word(state, "" if reason == "None" else reason, kind, sentence, left_s)


def _seconds(text: str) -> float | None:
    """Return a duration in Slurm's form, `1-02:03:04`; None for another word, as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60.0 + seconds


class Question:
    """A question to Slurm, asked in a thread of its own.

    Args:
        early_s: how long before the time limit Slurm's warning may come.
    """

    def __init__(self, plan: Plan, early_s: float = 0.0) -> None:
        self._early_s = early_s
        self._word: Word | None = None
        scontrol = slurm_command(plan, "scontrol")
        self._argv = [scontrol, "-o", "show", "job", os.environ.get("SLURM_JOB_ID", "")]
        self._thread = threading.Thread(target=self._ask, name="ask Slurm", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            done = subprocess.run(self._argv, capture_output=True, text=True, timeout=ASK_S)
        except (OSError, subprocess.TimeoutExpired):
            return
        self._word = read(done.stdout, int(os.environ.get("SLURM_RESTART_COUNT") or 0))

    def explain(self, outcome: Outcome) -> Outcome:
        """Return the outcome with Slurm's word; its kind counts if nothing else is known."""
        self._thread.join(WAIT_S)
        word = self._word
        if word is None:
            return outcome
        evidence = replace(
            outcome.evidence or Evidence(),
            scheduler_state=word.state, scheduler_reason=word.reason,
        )  # fmt: skip
        outcome = replace(outcome, evidence=evidence)
        if told_of_limit := self._limit_of(word, outcome):
            return told_of_limit
        openings = (UNEXPLAINED, BY_A_SIGNAL, BY_THEMSELVES)
        told = outcome.reason[:1].lower() + outcome.reason[1:]
        opening = next((each for each in openings if told.startswith(each)), "")
        if word.kind is VerdictKind.SCHEDULER or (
            outcome.kind is not VerdictKind.SCHEDULER
            and opening != BY_THEMSELVES
            # A signal may warn of a preemption; a cancel is no reason to distrust it.
            and not (opening == BY_A_SIGNAL and word.kind is VerdictKind.PREEMPTED)
        ):
            return outcome
        if opening:
            told = word.sentence + told[len(opening) :]
        return replace(outcome, kind=word.kind, reason=told[:1].upper() + told[1:])

    def _limit_of(self, word: Word, outcome: Outcome) -> Outcome | None:
        """Return the outcome if the signal warned of a limit that was changed after the start."""
        lowered = outcome.reason[:1].lower() + outcome.reason[1:]
        if not lowered.startswith(BY_A_SIGNAL) or word.left_s is None:
            return None
        if word.left_s > self._early_s or word.kind is not VerdictKind.SCHEDULER:
            return None
        told = WARNED + lowered[len(BY_A_SIGNAL) :]
        return replace(outcome, kind=VerdictKind.TIME_LIMIT, reason=told[:1].upper() + told[1:])
