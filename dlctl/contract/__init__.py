"""The job directory: every file in it and every field, for both sides. Standard library only.

The login side and the nodes share no process and no socket, only this directory on the cluster's
shared file system (the paper's ZooKeeper tree; IBM Deep Learning Service, "Lifecycle Management").
Either side may crash at any moment. Every file is written whole (`write_whole`) or appended line
by line; every record carries a schema version.

This package exports everything: `from dlctl import contract` is all that callers need. A module is
imported when a program first uses one of its names: a command that lists trainings needs no plans.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlctl.contract.control import *  # noqa: F403
    from dlctl.contract.files import *  # noqa: F403
    from dlctl.contract.ground.amounts import *  # noqa: F403
    from dlctl.contract.ground.whole_files import *  # noqa: F403
    from dlctl.contract.lifecycle import *  # noqa: F403
    from dlctl.contract.log_times import *  # noqa: F403
    from dlctl.contract.models import *  # noqa: F403
    from dlctl.contract.names import *  # noqa: F403
    from dlctl.contract.notices import *  # noqa: F403
    from dlctl.contract.plan import *  # noqa: F403
    from dlctl.contract.programs.made import *  # noqa: F403
    from dlctl.contract.records import *  # noqa: F403
    from dlctl.contract.rehearsal import *  # noqa: F403
    from dlctl.contract.sent_files import *  # noqa: F403
    from dlctl.contract.states import *  # noqa: F403

_MODULES = (
    "names",
    "states",
    "ground.amounts",
    "ground.whole_files",
    "files",
    "log_times",
    "sent_files",
    "records",
    "programs.made",
    "control",
    "lifecycle",
    "notices",
    "models",
    "rehearsal",
    "plan",
)
"""The cheapest to import comes first."""


def __getattr__(name: str) -> object:
    if not (Path(__file__).parent / name).is_dir():  # its own rooms are imported by their names
        for module in _MODULES:
            found = vars(import_module(f"{__name__}.{module}"))
            if name in found:
                globals()[name] = found[name]
                return found[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
