"""Run benchmarks and write their tables in docs/benchmarks.md (`make bench`).

    python -m benchmarks [--quick | --smoke] [GROUP …]     all groups, or these; other tables stay

Prints each result as one line of JSON, as each benchmark does by itself. The table of a group that
fails stays as it was. `--quick` runs one round of each benchmark and writes nothing to the page.
`--smoke` writes nothing either: it sees whether each benchmark works, see benchmarks/smoke.py.
"""

from __future__ import annotations

import importlib
import sys
import traceback

from benchmarks import page, smoke
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.report import Load, end_in_order, options, say

_CLIENT = ("dlctl", "typer", "rich", "pydantic", "paramiko")
_LEARNERS = ("torch", "mpi4py", "numpy")
PACKAGES = {
    "start_up": _CLIENT,
    "client": _CLIENT,
    "client_logs": _CLIENT,
    "client_many": _CLIENT,
    "guests": _CLIENT,
    "fetching": _CLIENT,
    "lifecycle": (*_CLIENT, *_LEARNERS),
    "models": _CLIENT,
    "metrics": (*_CLIENT, "starlette", "tensorboard"),
    "serve": (*_CLIENT, "starlette", "uvicorn"),
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
    "guests": (("ssh", "-V"), ("slurmctld", "-V")),
    "fetching": (("ssh", "-V"), ("sh", "-c", "rsync -V | head -n 1")),
    "lifecycle": (("slurmctld", "-V"),),
    "serve": (("ssh", "-V"), ("slurmctld", "-V"), PeerEnvironment("serve").versions),
    "exchange": (("slurmctld", "-V"),),
    "search": (PeerEnvironment("search").versions,),
}


def main() -> None:
    """Measure the groups, print the results and write the tables; exit 1 if one failed."""
    parser = options("benchmarks")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(PACKAGES))
    given = parser.parse_args()
    others = smoke.OTHERS if given.load is Load.SMOKE else ()
    if unknown := set(given.groups) - {*PACKAGES, *others}:
        parser.error(f"no group {', '.join(sorted(unknown))}: there are {', '.join(PACKAGES)}")
    end_in_order()
    groups = given.groups or [*others, *PACKAGES]
    if given.load is Load.SMOKE:
        sys.exit(0 if smoke.run(groups) else 1)
    failed = [group for group in groups if not _run(group, given.load)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def _run(group: str, load: Load) -> bool:
    results = []
    try:
        for result in importlib.import_module(f"benchmarks.{group}").measure(load):
            say(result.to_json())
            results.append(result)
    except Exception:
        traceback.print_exc()
        return False
    if load is Load.FULL:
        mpi = "mpi4py" in PACKAGES[group]
        conditions = page.conditions(PACKAGES[group], PROGRAMS.get(group, ()), mpi)
        page.write(group, f"{conditions}\n\n{page.table(results)}")
    return True


if __name__ == "__main__":
    main()
