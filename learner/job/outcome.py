"""The outcome of an attempt, what explains it, and how it becomes a `Verdict`.

A launcher's error lines say what ended its step. The batch system says why it ends a job: the
learners save meanwhile, so a thread asks, and the verdict waits for its answer for a moment only.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from dlctl.contract import CACHES, Evidence, Plan, State, Verdict, VerdictKind, look_at_made
from dlctl.contract.ground.safe_text import without_prefix
from dlctl.contract.programs.advice import with_id
from dlctl.contract.programs.verdict_rules import (
    OVER_MEMORY,
    UNREACHED,
    Place,
    first_match,
    without_checkpoint,
)
from dlctl.contract.search import FRAMEWORK
from learner.errors import SiteFault, UserFault
from learner.job.batch.base import UNEXPLAINED, BatchSystem, Ending
from learner.job.context import job_id


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt: a verdict without the attempt's number, job id and time."""

    state: State
    """COMPLETED, FAILED, HALTED or CANCELLED."""
    kind: VerdictKind
    reason: str
    """One sentence: what happened."""
    hint: str = ""
    """One sentence: what to do next."""
    evidence: Evidence | None = None
    bad_hosts: tuple[str, ...] = ()
    """The nodes that are to blame, by the scheduler's names."""

    @property
    def failed_rank(self) -> int | None:
        """The rank of the learner whose failure ended the attempt, if any."""
        evidence = self.evidence
        if self.state is not State.FAILED or evidence is None or evidence.role != "learner":
            return None
        return evidence.rank


def failed(
    kind: VerdictKind, reason: str, hint: str = "", evidence: Evidence | None = None
) -> Outcome:
    """Return the outcome of an attempt that failed."""
    return Outcome(State.FAILED, kind, reason, hint, evidence)


def fault_outcome(fault: UserFault) -> Outcome:
    """Return the outcome of an attempt ended by an error in the user's file, data or site."""
    kind = VerdictKind.SITE if isinstance(fault, SiteFault) else VerdictKind.USER_ERROR
    if found := first_match(Place.JOB, [fault.message]):  # a full disk, for instance
        kind = found[0].kind
    return failed(kind, fault.message, fault.hint)


def verdict_of(job_dir: Path, attempt: int, outcome: Outcome) -> Verdict:
    """Return the verdict on an attempt of this job."""
    return Verdict(
        attempt=attempt,
        job_id=job_id(job_dir, attempt),
        state=outcome.state,
        reason=with_id(outcome.reason, job_dir.name),
        hint=with_id(outcome.hint, job_dir.name),
        evidence=outcome.evidence,
        kind=outcome.kind,
        bad_hosts=list(outcome.bad_hosts),
    )


def last_verdict(
    job_dir: Path, attempt: int, outcome: Outcome, plan: Plan | None = None
) -> Verdict:
    """Return the verdict on an attempt that has just ended, with what the training has made.

    Args:
        plan: The attempt's; None if it can't be read.
    """
    made = look_at_made(job_dir, plan.output_caches if plan else CACHES)
    hint = outcome.hint
    if made is not None and not made.checkpoints.files:
        hint = without_checkpoint(hint)
    verdict = verdict_of(job_dir, attempt, replace(outcome, hint=hint))
    return replace(verdict, finished_at=time.time(), made=made)


WAIT_S = 3.0
"""How long the verdict waits for the answer after the learners have ended."""
WARNED = "the scheduler signalled that the time limit is near"
BY_A_SIGNAL = "halted by a signal"
BY_THEMSELVES = "the learners saved and stopped"


class Question:
    """A question to the batch system, asked in a thread of its own.

    Args:
        early_s: how long before the time limit its warning may come.
    """

    def __init__(self, system: BatchSystem, early_s: float = 0.0) -> None:
        self._early_s = early_s
        self._answer: Ending | None = None
        self._system = system
        self._thread = threading.Thread(target=self._ask, name="ask for the end", daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        self._answer = self._system.ending()

    def explain(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the answer; its kind counts if nothing else is known."""
        self._thread.join(WAIT_S)
        word = self._answer
        if word is None:
            return outcome
        evidence = replace(
            outcome.evidence or Evidence(),
            scheduler_state=word.state, scheduler_reason=word.reason,
        )  # fmt: skip
        outcome = replace(outcome, evidence=evidence)
        if at_limit := self._limit_of(word, outcome):
            return at_limit
        openings = (UNEXPLAINED, BY_A_SIGNAL, BY_THEMSELVES)
        reason = outcome.reason[:1].lower() + outcome.reason[1:]
        opening = next((each for each in openings if reason.startswith(each)), "")
        if word.kind is VerdictKind.SCHEDULER or (
            outcome.kind is not VerdictKind.SCHEDULER
            and opening != BY_THEMSELVES
            # A signal may warn of a preemption; a cancel is no reason to distrust it.
            and not (opening == BY_A_SIGNAL and word.kind is VerdictKind.PREEMPTED)
        ):
            return outcome
        if opening:
            reason = word.sentence + reason[len(opening) :]
        return replace(outcome, kind=word.kind, reason=reason[:1].upper() + reason[1:])

    def _limit_of(self, word: Ending, outcome: Outcome) -> Outcome | None:
        """Return the outcome if the signal warned of a limit that was changed after the start."""
        lowered = outcome.reason[:1].lower() + outcome.reason[1:]
        if not lowered.startswith(BY_A_SIGNAL) or word.left_s is None:
            return None
        if word.left_s > self._early_s or word.kind is not VerdictKind.SCHEDULER:
            return None
        reason = WARNED + lowered[len(BY_A_SIGNAL) :]
        return replace(outcome, kind=VerdictKind.TIME_LIMIT, reason=reason[:1].upper() + reason[1:])


_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out on send/recv operation", re.IGNORECASE
)
_BUSY = re.compile(r"Memory required by task is not available", re.IGNORECASE)
_LOST = re.compile(r"node fail(ure)?\b", re.IGNORECASE)


def says_lost(words: list[str]) -> str:
    """Return the line in which srun reports that a node is gone, or an empty text."""
    lost = (line.strip() for line in words if _LOST.search(line) or UNREACHED.search(line))
    return next(lost, "")


def says_away(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm's controller did not answer."""
    return any(_AWAY.search(line) for line in words)


def says_busy(words: list[str]) -> bool:
    """Return whether srun could not begin because Slurm had not yet cleaned up an ended step."""
    return any(_BUSY.search(line) for line in words)


def says_full(words: list[str]) -> str:
    """Return the line in which Slurm reports that a step ran out of memory, or an empty text."""
    return next((line.strip() for line in words if OVER_MEMORY.search(line)), "")


_REASON, _HINT = "dlctl: ", "  HINT: "


def is_hub(plan: Plan) -> bool:
    """Return whether the job is a search's hub."""
    return plan.framework.name == FRAMEWORK


def resume_command(plan: Plan) -> str:
    """Return the command that goes on with a training, or with a search."""
    return f"dlctl resume {plan.training_id}"


def last_words(lines: Iterable[str]) -> tuple[str, str]:
    """Return why a search can't go on, and what to do, as its model said last; empty: nothing."""
    words = {_REASON: "", _HINT: ""}
    for line in lines:
        for mark in words:
            if line.startswith(mark):
                words[mark] = without_prefix(line, mark).rstrip(".")
    return words[_REASON], words[_HINT]
