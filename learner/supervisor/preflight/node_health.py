"""Find the nodes that are not fit for their job, from the reports of all of them. Pure.

A fault that all nodes have is the site's or the request's, unless it is certain: then the node is
to blame alone. Of a connection that fails, either end may be the cause: the one with more failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dlctl.contract import NodeFault, Preflight, VerdictKind

CLOCK_S = 60.0
"""A clock that differs by more than this makes logs, leases and certificates useless."""
_CLOCK_REMARK_S = 2.0


@dataclass(frozen=True)
class Unfit:
    """A node that is not fit for the training."""

    host: str
    """The scheduler's name for it."""
    rank: int
    """The rank of the first learner there."""
    fault: NodeFault


def unfit_nodes(reports: Sequence[Preflight], began_at: float, ended_at: float) -> list[Unfit]:
    """Return the nodes that are to blame for a fault, in the order of their reports.

    Args:
        began_at: when the preflight began, in Unix seconds on the supervisor's clock.
    """
    first: dict[str, Preflight] = {}
    for report in reports:
        first.setdefault(name_of(report), report)
    faults = {host: list(_faults(host, reports)) for host in first}
    for host, report in first.items():
        if (skew_s := _skew_s(report, began_at, ended_at)) and abs(skew_s) > CLOCK_S:
            faults[host].append(NodeFault(VerdictKind.SITE, _clock(skew_s), certain=False))
    for host, fault in _unreachable(reports):
        faults[host].append(fault)
    kinds = {host: {fault.kind for fault in faults[host]} for host in first}
    found = []
    for host, report in first.items():
        for fault in faults[host]:
            shared = all(fault.kind in kinds[other] for other in first)
            if fault.certain or (len(first) > 1 and not shared):
                found.append(Unfit(host, report.rank, fault))
                break
    return found


def remarks(reports: Sequence[Preflight], began_at: float, ended_at: float) -> list[str]:
    """Return sentences about what is odd and ends no training."""
    lines = [f"{name_of(r)} {remark}" for r in reports for remark in r.remarks]
    for report in reports:
        skew_s = _skew_s(report, began_at, ended_at)
        if abs(skew_s) > _CLOCK_REMARK_S:
            lines.append(f"{name_of(report)} {_clock(skew_s)}")
    return list(dict.fromkeys(lines))


def name_of(report: Preflight) -> str:
    """Return the scheduler's name for a report's node, or else its host's."""
    return report.node or report.host


def _faults(host: str, reports: Sequence[Preflight]) -> list[NodeFault]:
    return [fault for each in reports if name_of(each) == host for fault in each.faults]


def _skew_s(report: Preflight, began_at: float, ended_at: float) -> float:
    """Return by how much a node's clock is certainly ahead (or behind, if negative)."""
    if not report.clock_at:
        return 0.0
    if report.clock_at > ended_at:
        return report.clock_at - ended_at
    return min(0.0, report.clock_at - began_at)


def _clock(skew_s: float) -> str:
    how = "ahead of" if skew_s > 0 else "behind"
    return f"has a clock that is {abs(skew_s):.0f} s {how} the first node's"


def _unreachable(reports: Sequence[Preflight]) -> list[tuple[str, NodeFault]]:
    """Return the nodes that others can't reach, though connections work elsewhere."""
    hosts = {report.node_rank: name_of(report) for report in reports}
    failed = {(r.node_rank, other) for r in reports for other in r.unreached if other in hosts}
    works = {each for r in reports for other in r.reached for each in (other, r.node_rank)}
    if not failed or not works:
        return []  # a site may well let its nodes talk over another network only
    touched = Counter(node for pair in failed for node in pair)
    most = max(touched.values())
    worst = [node for node, count in touched.items() if count == most]
    if len(worst) > 1:  # as in a job of two nodes: those to which nothing works
        worst = [node for node in worst if node not in works]
    found = []
    for node in sorted(worst):
        others = sorted({hosts[a if b == node else b] for a, b in failed if node in (a, b)})
        what = f"has no connection with {' and '.join(others)}"
        found.append((hosts[node], NodeFault(VerdictKind.NETWORK, what)))
    return found
