"""How the learners of a job are started: one class for each launcher.

A launcher is a contract between both sides: the plan writes its command line, and each process on
the nodes reads its rank from the variables that it sets. Both halves are therefore in one file that
uses only the standard library. To add a launcher, write its file and add its class here.
"""

from __future__ import annotations

from dlctl.contract.launchers.base import Lack, Launcher, LaunchError, LaunchRequest, Ranks
from dlctl.contract.launchers.direct import Direct
from dlctl.contract.launchers.mpirun import Mpirun
from dlctl.contract.launchers.srun import Srun

LAUNCHERS: dict[str, Launcher] = {
    launcher.kind: launcher for launcher in (Srun(), Mpirun(), Direct())
}
SITE_LAUNCHERS = tuple(kind for kind, launcher in LAUNCHERS.items() if launcher.for_sites)
"""Those that a site's file may name."""

__all__ = [
    "LAUNCHERS",
    "SITE_LAUNCHERS",
    "Lack",
    "LaunchError",
    "LaunchRequest",
    "Launcher",
    "Ranks",
]
