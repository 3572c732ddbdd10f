"""The health of a node: checks that run at once, before a training, within a few seconds.

Each check is a function in a file by its subject that adds to `Findings`; to add one, write it and
name it here. A fault names what is wrong; the supervisor decides whose fault it is, because a node
does not know what the others have found (`learner.supervisor.preflight.node_health`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from learner.agent.health import gpu, node
from learner.agent.health.network import Meeting
from learner.agent.health.node import Findings, Here

CHECKS: tuple[Callable[[Here, Findings], None], ...] = (
    gpu.check_driver,
    gpu.check_memory,
    node.check_temporary_folder,
    node.check_job_directory,
    node.check_shared_memory,
    node.check_memory,
)


def examine(here: Here, address: str, found: Findings) -> Callable[[], None]:
    """Begin all checks; return a function that waits for them.

    Args:
        address: by which the other nodes reach this one.
    """
    jobs = [partial(check, here, found) for check in CHECKS]
    if here.is_first and here.plan.resources.nodes > 1:
        jobs.append(partial(Meeting(here, address), found))
    threads = [threading.Thread(target=_run, args=(job, found), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()

    def wait() -> None:
        for thread in threads:
            thread.join()

    return wait


def _run(job: Callable[[], None], found: Findings) -> None:
    try:
        job()
    except Exception as error:  # a check that fails must not end a training
        found.remarks.append(f"could not be checked: {' '.join(str(error).split())}")


__all__ = ["CHECKS", "Findings", "Here", "examine"]
