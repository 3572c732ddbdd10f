"""Which node is to blame for what the preflight has found."""

from __future__ import annotations

import dataclasses

from dlctl.contract import NodeFault, Preflight, VerdictKind
from learner.supervisor.preflight.node_health import remarks, unfit_nodes

LOST = NodeFault(VerdictKind.GPU_ERROR, "has a dead GPU")
UNSURE = NodeFault(VerdictKind.GPU_ERROR, "shows 0 of 1 GPUs", certain=False)


def report(node, **fields):
    return Preflight(
        rank=node, host=f"n{node + 1}.example.org", node=f"n{node + 1}", node_rank=node,
        python="3.11", launcher_size=4, mpi_size=4, mpi_rank=node, clock_at=100.0, **fields,
    )  # fmt: skip


def unfit(*reports):
    return [(each.host, each.fault.kind) for each in unfit_nodes(reports, 99.0, 101.0)]


def test_a_certain_fault_is_the_nodes_even_if_all_have_it():
    assert unfit(report(0), report(1, faults=[LOST])) == [("n2", "gpu_error")]
    assert unfit(report(0, faults=[LOST])) == [("n1", "gpu_error")]


def test_what_all_nodes_have_is_no_nodes_fault():
    assert unfit(report(0, faults=[UNSURE]), report(1, faults=[UNSURE])) == []
    assert unfit(report(0), report(1, faults=[UNSURE])) == [("n2", "gpu_error")]
    assert unfit(report(0, faults=[UNSURE])) == []


def test_a_clock_that_is_wrong_is_named():
    late = dataclasses.replace(report(1), clock_at=500.0)
    assert unfit(report(0), late) == [("n2", "site")]
    slight = dataclasses.replace(report(1), clock_at=90.0)
    assert unfit(report(0), slight) == []
    assert remarks([report(0), slight], 99.0, 101.0) == [
        "n2 has a clock that is 9 s behind the first node's"
    ]


def test_the_node_that_nobody_reaches_is_to_blame():
    ring = [
        report(0, reached=[3], unreached=[1]),
        report(1, unreached=[0, 2]),
        report(2, reached=[3], unreached=[1]),
        report(3, reached=[0, 2]),
    ]
    found = unfit_nodes(ring, 99.0, 101.0)
    assert [(each.host, each.fault.what) for each in found] == [
        ("n2", "has no connection with n1 and n3")
    ]


def test_a_site_without_connections_between_nodes_blames_none():
    assert unfit(report(0, unreached=[1]), report(1, unreached=[0])) == []
