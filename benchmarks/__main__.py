"""Run benchmarks and write their tables in docs/benchmarks.md (`make bench`).

    python -m benchmarks [--quick] [GROUP …]      all groups, or only these; other tables stay

Prints each result as one line of JSON, as each benchmark does by itself. The table of a group that
fails stays as it was. `--quick` runs one round of each benchmark and writes nothing to the page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from benchmarks import page
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.report import end_in_order, say

_CLIENT = ("dlctl", "typer", "rich", "pydantic", "paramiko")
_LEARNERS = ("torch", "mpi4py", "numpy")
PACKAGES = {
    "start_up": _CLIENT,
    "client": _CLIENT,
    "client_logs": _CLIENT,
    "client_many": _CLIENT,
    "fetching": _CLIENT,
    "lifecycle": (*_CLIENT, *_LEARNERS),
    "models": _CLIENT,
    "metrics": (*_CLIENT, "starlette", "tensorboard"),
    "exchange": _LEARNERS,
    "training": _LEARNERS,
    "checkpoint": (*_LEARNERS, "h5py"),
    "cursor": (*_LEARNERS, "h5py"),
    "psrv": _LEARNERS,
    "stores": ("obstore",),
    "search": ("grpcio", "protobuf"),
}
"""The groups (each is a module here), and the packages whose versions each table lists."""
PROGRAMS = {
    "client": (("ssh", "-V"), ("slurmctld", "-V")),
    "client_logs": (("ssh", "-V"), ("slurmctld", "-V"), PeerEnvironment("client").versions),
    "client_many": (("ssh", "-V"), ("slurmctld", "-V"), PeerEnvironment("client").versions),
    "fetching": (("ssh", "-V"), ("sh", "-c", "rsync -V | head -n 1")),
    "lifecycle": (("slurmctld", "-V"),),
    "exchange": (("slurmctld", "-V"),),
    "search": (PeerEnvironment("search").versions,),
}


def main() -> None:
    """Measure the groups, print the results and write the tables; exit 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(PACKAGES))
    parser.add_argument("--quick", action="store_true", help="one round; write nothing")
    given = parser.parse_args()
    if unknown := set(given.groups) - set(PACKAGES):
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(PACKAGES)}")
    end_in_order()
    failed = [group for group in given.groups or PACKAGES if not _run(group, given.quick)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _run(group: str, quick: bool) -> bool:
    results = []
    try:
        for result in importlib.import_module(f"benchmarks.{group}").measure(quick):
            say(result)
            results.append(result)
    except Exception:
        traceback.print_exc()
        return False
    if not quick:
        mpi = "mpi4py" in PACKAGES[group]
        conditions = page.conditions(PACKAGES[group], PROGRAMS.get(group, ()), mpi)
        page.write(group, f"{conditions}\n\n{page.table(results)}")
    return True


if __name__ == "__main__":
    main()
