"""How the learners of a job are started, a class for each launcher.

A launcher is an agreement between the sides: the plan writes its command line, and each process on
the nodes reads its rank in the variables that it sets. So both halves stand in one file, and use
the standard library only. To add a launcher, write its file and name its class here.
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
