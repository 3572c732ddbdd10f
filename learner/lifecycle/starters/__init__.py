"""Who starts the next attempt: one file for each way.

To add a way, write its file, add its name to `StarterKind` and its object here.
"""

from __future__ import annotations

from learner.lifecycle.starters.base import Situation, Starter
from learner.lifecycle.starters.client import Client
from learner.lifecycle.starters.in_allocation import InAllocation
from learner.lifecycle.starters.job import Job
from learner.lifecycle.starters.requeue import Requeue
from learner.lifecycle.starters.successor import Successor

ALL: dict[str, Starter] = {
    str(starter.kind): starter
    for starter in (InAllocation(), Job(), Successor(), Requeue(), Client())
}


def candidates(situation: Situation) -> list[Starter]:
    """Return who can start the next attempt, the first choice first; the client always can."""
    if not situation.in_job:  # a login node, which may submit whatever the nodes may
        return [each for each in (ALL["job"], ALL["client"]) if not each.objection(situation)]
    allowed = list(situation.plan.lifecycle.starters if situation.plan.lifecycle else [])
    if situation.is_fresh:  # the job was given its nodes for this
        allowed.insert(0, str(InAllocation.kind))
    known = [ALL[name] for name in allowed if name in ALL]
    return [*(each for each in known if not each.objection(situation)), ALL["client"]]


__all__ = ["ALL", "Situation", "Starter", "candidates"]
