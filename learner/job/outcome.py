"""The outcome of an attempt; the one place that turns an outcome into a `Verdict`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from dlctl.contract import CACHES, Evidence, Plan, State, Verdict, VerdictKind, look_at_made
from dlctl.contract.programs.verdict_rules import Place, first_match, without_checkpoint
from learner.errors import SiteFault, UserFault
from learner.job.context import job_id


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: a verdict without the attempt's number, job id and time."""

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
        reason=outcome.reason,
        hint=outcome.hint,
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
