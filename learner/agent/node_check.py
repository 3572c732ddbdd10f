"""Check one node: `python -m learner.agent.node_check <job dir> <attempt>`, once on each node.

It runs before the preflight if the job has spare nodes, and writes a report of the same form.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

from dlctl.contract import Plan, Preflight, node_report_file, to_json, write_whole
from dlctl.contract.launchers import LAUNCHERS, LaunchError, Ranks
from learner.agent.health import Findings, Here, examine
from learner.agent.preflight import gpu_faults, own_address
from learner.errors import UserFault
from learner.job.batch import node_name
from learner.job.context import read_plan


def main(arguments: list[str]) -> int:
    """Check this node and write the report; return 0 even if it is bad."""
    job_dir, attempt = Path(arguments[0]), int(arguments[1])
    began_at, began = time.time(), time.monotonic()
    try:
        plan = read_plan(job_dir, attempt)
        ranks = LAUNCHERS[plan.launch.kind].ranks(os.environ, plan.resources)
    except (UserFault, LaunchError) as fault:
        print(f"dlctl: on {socket.gethostname()}: {fault}", file=sys.stderr)
        return 1
    plan = _of_whole_nodes(plan, ranks.size)
    found, address = Findings(), own_address(plan)
    here = Here(plan, job_dir, attempt, Ranks(ranks.rank, ranks.size, 0, 1, ranks.rank))
    wait = examine(here, address, found)
    found.faults += gpu_faults(plan)
    wait()
    report = Preflight(
        rank=ranks.rank, host=socket.gethostname(), python="{}.{}.{}".format(*sys.version_info[:3]),
        launcher_size=ranks.size, mpi_size=None, mpi_rank=None, address=address, node=node_name(),
        node_rank=ranks.rank, clock_at=began_at, took_s=time.monotonic() - began,
        faults=found.faults, remarks=found.remarks, reached=found.reached,
        unreached=found.unreached,
    )  # fmt: skip
    write_whole(job_dir / node_report_file(attempt, ranks.rank), to_json(report))
    return 0


def _of_whole_nodes(plan: Plan, nodes: int) -> Plan:
    """Return the plan as if one learner had all that the job has on each node."""
    resources = replace(plan.resources, nodes=nodes, gpus_per_learner=plan.resources.gpus_per_node)
    return replace(plan, resources=resources)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
