"""Remember for the site which nodes have failed a training: a file for each, below its root.

The script that submits a job avoids these nodes until their files expire (`dlctl.scheduler`);
`dlctl sites nodes` lists and forgets them.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable
from pathlib import Path

from dlctl import contract
from dlctl.contract import BAD_NODE_S, BadNode, Plan, Verdict, VerdictKind
from learner.job.batch import batch_system

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_REMEMBERED = {VerdictKind.GPU_ERROR}
"""Of faults that end a training. (A lost node is the batch system's to remember.)"""


def of_verdict(plan: Plan, verdict: Verdict) -> list[BadNode]:
    """Return the nodes that a verdict blames for good."""
    hosts = list(verdict.bad_hosts)
    if not hosts and verdict.kind in _REMEMBERED and verdict.evidence and verdict.evidence.host:
        hosts = [verdict.evidence.host]
    return [bad_node(plan, verdict.attempt, each, verdict.kind, verdict.reason) for each in hosts]


def bad_node(plan: Plan, attempt: int, host: str, kind: str, reason: str) -> BadNode:
    """Return the record of a node that is to be avoided from now on."""
    now = time.time()
    return BadNode(host, str(kind), reason, plan.training_id, attempt, now, now + BAD_NODE_S)


def remember(plan: Plan, nodes: Iterable[BadNode]) -> None:
    """Write a file for each node; a file system that refuses costs only the memory."""
    if not batch_system(plan).allocates:
        return
    folder = Path(plan.root) / contract.NODES
    for node in nodes:
        if _HOST.fullmatch(node.host):
            with contextlib.suppress(OSError):
                contract.write_whole(folder / f"{node.host}.json", contract.to_json(node))
