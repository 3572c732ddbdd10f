"""The health of a node: checks that run at once, before a training, within a few seconds.

Each check is a function in a file by its subject that adds to `Findings`; to add one, write it and
name it here. A fault names what is wrong; the supervisor decides whose fault it is, because a node
does not know what the others have found (`learner.supervisor.preflight.node_health`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from learner.agent.health import disk, gpu, memory
from learner.agent.health.base import Check, Findings, Here
from learner.agent.health.network import Meeting

CHECKS: tuple[Check, ...] = (
    gpu.check_driver,
    gpu.check_memory,
    disk.check_temporary_folder,
    disk.check_job_directory,
    memory.check_shared_memory,
    memory.check_memory,
)


def examine(here: Here, address: str, found: Findings) -> Callable[[], None]:
    """Begin all checks; return a function that waits for them.

    Args:
        address: by which the other nodes reach this one.
    """
    jobs: list[Callable[[], None]] = [_bound(check, here, found) for check in CHECKS]
    if here.is_first and here.plan.resources.nodes > 1:
        meeting = Meeting(here, address)
        jobs.append(lambda: meeting(found))
    threads = [threading.Thread(target=_guarded(job, found), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


def _bound(check: Check, here: Here, found: Findings) -> Callable[[], None]:
    return lambda: check(here, found)


def _guarded(job: Callable[[], None], found: Findings) -> Callable[[], None]:
    def run() -> None:
        try:
            job()
        except Exception as error:  # a check that fails must not end a training
            found.remarks.append(f"could not be checked: {' '.join(str(error).split())}")

    return run


__all__ = ["CHECKS", "Check", "Findings", "Here", "examine"]
