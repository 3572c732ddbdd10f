"""Why a job waits, in words: each of Slurm's reasons as a sentence, and what to do. Pure.

The words are those of `job_state_reason_string` of Slurm 20 to 26, and the sentences that Slurm
puts in their place. About 120 of them name a limit: whose, of what, and how it counts.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Why(NamedTuple):
    """Why a job waits."""

    sentence: str
    """Without a full stop; Slurm's own word in parentheses, so that people can look it up."""
    todo: str = ""
    """What makes it start; `{job}` and `{id}` stand for the job's and the training's id. Empty:
    nothing needs to be done."""
    never: bool = False
    """Whether it can't start unless somebody does something."""


_SHORTER = "dlctl cancel {id}; dlctl resume {id} --time LESS"
_LESS = (
    "dlctl cancel {id}, then ask for less: dlctl resume {id} --nodes N, --learners N or --time T"
)
_RELEASE = "run `scontrol release {job}` on the login node"
_LIMITS = "`sacctmgr show associations user=$USER` on the login node lists your limits"
_ASK = "ask the site's administrators"
_AGAIN = "dlctl cancel {id}; dlctl resume {id}"
_PARTITION = (
    "wait, or take another partition: dlctl cancel {id}; dlctl resume {id} --partition NAME"
)

_WORDS: dict[str, Why] = {
    "Priority": Why("other jobs go first"),
    "Resources": Why("it is next, and waits until enough nodes, CPUs, memory or GPUs are free"),
    "Dependency": Why("it waits for another job to end"),
    "DependencyNeverSatisfied": Why(
        "it waits for a job that did not end as it should have", _AGAIN, never=True),
    "BeginTime": Why("it may not begin before a time that was set for it"),
    "Prolog": Why("the site's prolog is preparing it"),
    "Cleaning": Why("the site is still cleaning up after its last run"),
    "Licenses": Why("it waits for a licence that other jobs use"),
    "Reservation": Why("it waits for its reservation to begin"),
    "ReservationDeleted": Why("its reservation was deleted", _ASK, never=True),
    "ReservationInvalid": Why("its reservation is not valid", _ASK, never=True),
    "JobHeldUser": Why("you, or a program of yours, holds it", _RELEASE, never=True),
    "JobHeldAdmin": Why("an administrator holds it", _ASK, never=True),
    "JobHoldMaxRequeue": Why("it was requeued too often, and is held", _RELEASE, never=True),
    "JobArrayTaskLimit": Why("as many tasks of its array run as may run at a time"),
    "ReqNodeNotAvail": Why(
        "nodes that it needs are down, drained or reserved; a reservation for maintenance that "
        "begins before the job would end has the same effect",
        "wait, or " + _SHORTER),
    "NodeDown": Why("a node that it needs is down"),
    "FrontEndDown": Why("no front-end node of the site is up"),
    "PartitionDown": Why("its partition is closed at the moment", _PARTITION),
    "PartitionInactive": Why("its partition is inactive", _PARTITION),
    "PartitionNodeLimit": Why(
        "it asks for more, or fewer, nodes than its partition allows", _LESS, never=True),
    "PartitionTimeLimit": Why(
        "it asks for more time than its partition allows", _SHORTER, never=True),
    "PartitionConfig": Why("its partition does not allow what it asks for", _LESS, never=True),
    "BadConstraints": Why("no node can ever fit what it asks for", _LESS, never=True),
    "Constraints": Why("no node can ever fit what it asks for", _LESS, never=True),
    "MaxMemPerLimit": Why(
        "it asks for more memory for each CPU or node than is allowed", _LESS, never=True),
    "InvalidAccount": Why("its account is not valid here",
                          "set scheduler.account; " + _LIMITS, never=True),
    "InvalidQOS": Why("its QOS is not valid here", "set scheduler.qos; " + _LIMITS, never=True),
    "AccountNotAllowed": Why("its account may not use this partition",
                             "set scheduler.account or scheduler.partition", never=True),
    "QOSNotAllowed": Why("its QOS may not be used here",
                         "set scheduler.qos or scheduler.partition", never=True),
    "QOSUsageThreshold": Why("its QOS has used more than its share; it starts once that decays"),
    "AccountingPolicy": Why("a limit of the site's accounting holds it back", _LIMITS),
    "AssociationJobLimit": Why("as many jobs of your account run as may run at a time"),
    "AssociationResourceLimit": Why("your account uses as much as it may"),
    "AssociationTimeLimit": Why("your account has used up its time", _LIMITS, never=True),
    "QOSJobLimit": Why("as many jobs of its QOS run as may run at a time"),
    "QOSResourceLimit": Why("its QOS uses as much as it may"),
    "QOSTimeLimit": Why("its QOS has used up its time", _LIMITS, never=True),
    "BurstBufferResources": Why("it waits for room in the burst buffer"),
    "BurstBufferStageIn": Why("the burst buffer is loading its data"),
    "BurstBufferOperation": Why("the burst buffer failed", _ASK, never=True),
    "SchedDefer": Why("Slurm will look at it in its next round"),
    "FedJobLock": Why("the clusters of the federation are deciding where it runs"),
    "MaxPoweredUpNodes": Why("as many nodes are powered up as may be"),
    "MpiPortsBusy": Why("the ports that Slurm reserves for MPI are all in use"),
    "DeadLine": Why("it can't end before its deadline", _AGAIN, never=True),
    "InactiveLimit": Why("it was inactive for too long", _AGAIN, never=True),
    "SystemFailure": Why("a failure of the system held it up", _AGAIN),
    "JobLaunchFailure": Why("it could not be launched on its nodes", _RELEASE),
    "NonZeroExitCode": Why("its last run ended with an error"),
    "RaisedSignal": Why("a signal ended its last run"),
    "TimeLimit": Why("its last run reached its time limit"),
    "OutOfMemory": Why("its last run was out of memory"),
    "launch failed requeued held": Why(
        "it could not be launched on a node, and is held", _RELEASE, never=True),
    "job requeued in held state": Why(
        "you or an administrator requeued and held it", f"{_RELEASE}, or {_ASK}",
        never=True),
    "user env retrieval failed requeued held": Why(
        "a node could not get your environment, and the job is held", _RELEASE, never=True),
    "Nodes required for job are DOWN": Why(
        "nodes that it needs are down, drained or kept for jobs in partitions of higher priority",
        "wait, or " + _LESS),
}  # fmt: skip
_WORDS |= {"PrologSlurmctld": _WORDS["Prolog"], "JobHeld": _WORDS["JobHeldUser"]}

_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc|)(?P<how>Grp|Max|Min)"
    r"(?P<what>Cpu|CPU|Memory|Mem|Node|GRES|License|Billing|BB|Energy|Unknown|SubmitJobs?|Jobs?"
    r"|WallDuration|Wall)"
    r"(?P<minutes>RunMinutes|RunMins|Minutes)?(?:Per(?P<each>Job|Node|User|Account))?"
    r"(?:Limit|NotSatisfied)?"
)
_THINGS = {
    "cpu": "CPUs", "memory": "memory", "mem": "memory", "node": "nodes", "gres": "GPUs",
    "license": "licences", "billing": "billing units", "bb": "burst buffer", "energy": "energy",
    "unknown": "of a resource", "job": "jobs", "jobs": "jobs", "submitjob": "waiting jobs",
    "submitjobs": "waiting jobs", "wall": "wall-clock time", "wallduration": "wall-clock time",
}  # fmt: skip
_OF_ONE = {"cpu": "CPU", "node": "node", "gres": "GPU", "license": "licence", "billing": "billing",
           "bb": "burst-buffer", "unknown": "resource"}  # fmt: skip


def _of_limit(found: re.Match[str]) -> Why:
    """Return why a job waits that a limit of the accounting holds back."""
    key = found["what"].lower()
    thing, owner = _THINGS[key], {"QOS": "its QOS", "Assoc": "your account"}.get(found["whose"], "")
    if found["how"] == "Min":
        return Why(f"it asks for fewer {thing} than {owner} demands of a job",
                   _LESS.replace("less", "more"), never=True)  # fmt: skip
    if found["minutes"]:
        thing = f"{_OF_ONE.get(key, thing)} minutes"
    in_owner = f" in {owner}" if owner else ""
    if found["each"] in ("Job", "Node") or key == "wallduration":
        one = "node" if found["each"] == "Node" else "job"
        return Why(f"it asks for more {thing} than one {one} may use{in_owner}", _LESS, never=True)
    users = {
        "User": f"your jobs{in_owner} together",
        "Account": "the jobs of your account together",
    }.get(
        found["each"] or "",
        f"the jobs of {owner} together" if found["how"] == "Grp" else f"your jobs{in_owner}",
    )
    if found["minutes"] == "Minutes" or key == "wall":
        return Why(f"{users} have used up their {thing}", _LIMITS, never=found["how"] == "Grp")
    if found["minutes"]:
        return Why(f"the {thing} that {users} still have to run reach the limit; it starts as "
                   "those go on")  # fmt: skip
    if "job" in key:
        return Why(f"there are as many {thing} as {users} may have; it starts when others end")
    verb = "use as much" if thing in ("memory", "energy", "burst buffer") else "use as many"
    return Why(f"{users} {verb} {thing} as they may; it starts when others end")


def why_it_waits(reason: str) -> Why:
    """Return the sentence for a reason of the scheduler; an unknown one is told as it is."""
    reason = reason.strip()
    known = _WORDS.get(reason) or _WORDS.get(reason.replace("_", " "))
    word, _, more = reason.partition(",")
    if known is None:
        known = _WORDS.get(word) or _WORDS.get(word.replace("_", " "))
    if known is None and (found := _LIMIT.fullmatch(word)):
        known = _of_limit(found)
    if known is None:
        return Why(reason)
    tail = f", {more.strip()}" if more.strip() and word != "Nodes required for job are DOWN" else ""
    return known._replace(sentence=f"{known.sentence} ({word}{tail})")
