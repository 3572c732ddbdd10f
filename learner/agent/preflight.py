"""The preflight of one rank: `python -m learner.agent.preflight <job dir> <attempt>`.

It runs in its own job step: a process that has called MPI_Init must not start another MPI program.
It writes a report, which the supervisor judges (`learner.supervisor.preflight.judgement`). A
problem is two lines: what was seen, and what to do next. Names are quoted with repr, so neither
line contains a line break.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import ipaddress
import os
import socket
import sys
import time
from pathlib import Path

from dlctl import contract
from dlctl.contract import (
    MPI_PENDING,
    NodeFault,
    Plan,
    Preflight,
    VerdictKind,
    preflight_file,
    to_json,
    write_whole,
)
from dlctl.contract.ground.interfaces import own_addresses
from learner.agent.health import Findings, Here, examine
from learner.errors import Mistake, UserFault
from learner.frameworks import FrameworkRunner, framework_of
from learner.job.batch import node_name
from learner.job.context import find_ranks, read_plan, starts_mpi
from learner.job.environment import resolve_secrets
from learner.storage import data_problems
from learner.system.networks import address_on, free_port
from learner.system.segments import make_segment_folder, remove_earlier


def main(arguments: list[str]) -> int:
    """Check this rank's node and write the report; return 0 even if there are problems."""
    job_dir, attempt = Path(arguments[0]), int(arguments[1])
    try:
        plan = read_plan(job_dir, attempt)
        ranks = find_ranks(plan)
    except UserFault as fault:
        print(f"dlctl: on {socket.gethostname()}: {fault.message} {fault.hint}", file=sys.stderr)
        return 1
    began_at, began = time.time(), time.monotonic()
    found, address = Findings(), own_address(plan)
    wait = examine(Here(plan, job_dir, attempt, ranks), address, found)
    problems = find_problems(plan, job_dir)  # meanwhile
    found.faults += gpu_faults(plan)
    wait()
    report = Preflight(
        rank=ranks.rank,
        host=socket.gethostname(),
        python="{}.{}.{}".format(*sys.version_info[:3]),
        launcher_size=ranks.size,
        mpi_size=None,
        mpi_rank=None,
        port=free_port(),
        address=address,
        problems=problems,
        mistakes=[problem for problem in problems if isinstance(problem, Mistake)],
        node=node_name(),
        node_rank=ranks.node_rank,
        clock_at=began_at,
        took_s=time.monotonic() - began,
        **vars(found),
    )
    path = job_dir / preflight_file(attempt, ranks.rank)
    if plan.launch.step_per_learner:
        remove_earlier(plan.training_id, attempt)
    if wants_mpi(plan):
        write_whole(path, to_json(dataclasses.replace(report, mpi_library=MPI_PENDING)))
        os.environ.update(make_segment_folder(plan.training_id, attempt))
        report = ask_mpi(plan, report)
    write_whole(path, to_json(report))
    return 0


def find_problems(plan: Plan, job_dir: Path) -> list[str]:
    """Return everything that would end the training later, two lines each."""
    framework = framework_of(plan)
    found = [
        *_check_folders(job_dir),
        *framework.problems(plan, job_dir),
        *map(Mistake, data_problems(plan)),
        *_check_gpus(plan, framework),
    ]
    try:
        resolve_secrets(plan, os.environ)
    except UserFault as fault:
        found.append(Mistake(f"{fault.message}\n{fault.hint}"))
    try:
        if plan.parameter_server is not None:
            bound_address(plan)
    except UserFault as fault:
        found.append(f"{fault.message}\n{fault.hint}")
    return found


def wants_mpi(plan: Plan) -> bool:
    """Return whether to compare the size of the MPI world with the plan."""
    if not starts_mpi(plan) or plan.resources.learners == 1:
        return False
    return importlib.util.find_spec("mpi4py") is not None


def ask_mpi(plan: Plan, report: Preflight) -> Preflight:
    """Return the report with MPI's size, rank and library, or a problem if MPI can't be loaded."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        what = f"MPI can't be loaded on {report.host}: {_one_line(error)}."
        hint = (
            "Add the MPI library of its mpi4py to the container's image."
            if plan.environment.container
            else "Load an MPI in the site file (`environment.modules`), or run `dlctl sites setup "
            f"{plan.site}`."
        )
        return dataclasses.replace(report, problems=[*report.problems, f"{what}\n{hint}"])
    return dataclasses.replace(
        report,
        mpi_size=MPI.COMM_WORLD.size,
        mpi_rank=MPI.COMM_WORLD.rank,
        mpi_library=MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\x00 ")[:60],
    )


def own_address(plan: Plan) -> str:
    """Return the name by which the other learners reach this host."""
    if plan.resources.nodes == 1:
        return "127.0.0.1"
    for name in (socket.gethostname(), os.environ.get("SLURMD_NODENAME", "")):
        try:
            socket.getaddrinfo(name or None, 0)
        except OSError:
            continue
        if name:
            return name
    return _route_address() or socket.gethostname()  # no name that resolves


def bound_address(plan: Plan) -> str:
    """Return the address or name to which a server here binds, and by which others reach it.

    A name that resolves to a loopback address on this host, as in Debian's /etc/hosts (127.0.1.1),
    is never returned: no other host can reach a server that is bound to it.

    Raises:
        UserFault: the host has no address on the network that the site file names.
    """
    name = own_address(plan)
    if plan.resources.nodes == 1:
        return name
    if plan.parameter_server is not None and plan.parameter_server.network is not None:
        return address_on(plan.parameter_server.network, plan.site)
    try:
        found = [str(each[4][0]) for each in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)]
    except OSError:
        return name
    if found and not _is_loopback(found[0]):
        return name
    others = (address for address in found if not _is_loopback(address))
    if address := next(others, None) or _route_address():
        return address
    interfaces = own_addresses()  # nodes of a cluster may have no default route
    return str(interfaces[0][1]) if interfaces else name


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _route_address() -> str | None:
    """Return this host's source address on its default route, or None without such a route."""
    for family, anywhere in (socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))
            return str(probe.getsockname()[0])
    return None


def _check_folders(job_dir: Path) -> list[str]:
    found = []
    if not os.access(job_dir / contract.CODE, os.R_OK | os.X_OK):
        found.append(
            f"The code folder {str(job_dir / contract.CODE)!r} is not readable.\n"
            "The site's root folder must be on a file system that all nodes share."
        )
    for name in (contract.RESULTS, contract.CHECKPOINTS, contract.METRICS, contract.LOGS):
        if not os.access(job_dir / name, os.W_OK | os.X_OK):
            found.append(
                f"The folder {str(job_dir / name)!r} is not writable.\n"
                "Check the permissions of the site's root folder on the nodes."
            )
    return found


def gpu_faults(plan: Plan) -> list[NodeFault]:
    """Return a fault if this learner sees too few GPUs: the node's, if it is not so on all."""
    wanted = plan.resources.gpus_per_learner
    if wanted == 0 or (visible := framework_of(plan).visible_gpus()) >= wanted:
        return []
    what = f"shows a learner {visible} of the {wanted} GPUs asked for"
    return [NodeFault(VerdictKind.GPU_ERROR, what, certain=False)]


def _check_gpus(plan: Plan, framework: FrameworkRunner) -> list[str]:
    wanted = plan.resources.gpus_per_learner
    if wanted == 0:
        return []
    visible = framework.visible_gpus()
    if visible >= wanted:
        return []
    return [
        f"The plan asks for {wanted} GPUs per learner, but this learner sees {visible}.\n"
        "Check the partition's GRES and that the node's torch is built for its GPUs."
    ]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
