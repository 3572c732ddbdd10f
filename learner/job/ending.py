"""Why the batch system ends a job: time limit, preemption, lost node, or somebody's cancel.

The learners save meanwhile: a thread asks, and the verdict waits for its answer for a moment only.
"""

from __future__ import annotations

import threading
from dataclasses import replace

from dlctl.contract import Evidence, VerdictKind
from learner.job.batch.base import UNEXPLAINED, BatchSystem, Ending
from learner.job.outcome import Outcome

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

    def _limit_of(self, word: Ending, outcome: Outcome) -> Outcome | None:
        """Return the outcome if the signal warned of a limit that was changed after the start."""
        lowered = outcome.reason[:1].lower() + outcome.reason[1:]
        if not lowered.startswith(BY_A_SIGNAL) or word.left_s is None:
            return None
        if word.left_s > self._early_s or word.kind is not VerdictKind.SCHEDULER:
            return None
        told = WARNED + lowered[len(BY_A_SIGNAL) :]
        return replace(outcome, kind=VerdictKind.TIME_LIMIT, reason=told[:1].upper() + told[1:])
