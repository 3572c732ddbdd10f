"""The files through which servers and learners find each other: shard placement and secret.

A shard's home is the node whose server holds the shard. Only the supervisor writes these files;
each change of the homes has a higher generation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
from collections import Counter
from pathlib import Path

from dlctl import contract
from dlctl.contract import Homes, Plan

SECRET_BYTES = 32


class ShardPlacement:
    """The homes of an attempt's shards now, and the file that tells servers and watchdogs."""

    def __init__(self, plan: Plan, job_dir: Path, attempt: int) -> None:
        self.homes = first_homes(plan)
        self._job_dir, self._attempt = job_dir, attempt
        self._written = False

    def change(self, homes: Homes) -> None:
        """Take new homes, and publish them."""
        self.homes = homes
        self.publish()

    def publish(self) -> None:
        """Write the homes; if the disk is full, `retry` tries again."""
        self._written = False
        with contextlib.suppress(OSError):
            write_homes(self._job_dir, self._attempt, self.homes)
            self._written = True

    def retry(self) -> None:
        """Write the homes if the last try failed."""
        if not self._written:
            self.publish()


def first_homes(plan: Plan) -> Homes:
    """Return the shards' homes as the plan sets them."""
    server = plan.parameter_server
    return Homes(1, list(server.shard_nodes) if server else [])


def without_node(homes: Homes, node: int, nodes: int) -> Homes:
    """Return the homes after the loss of a node: its shards move to the nodes with the fewest.

    Args:
        nodes: how many nodes the job had at its start.
    """
    lost = sorted({*homes.lost_nodes, node})
    left = [other for other in range(nodes) if other not in lost]
    load = Counter(home for home in homes.shard_nodes if home in left)
    places = list(homes.shard_nodes)
    for shard, home in enumerate(places):
        if home in lost and left:
            places[shard] = min(left, key=lambda other: (load[other], other))
            load[places[shard]] += 1
    return dataclasses.replace(
        homes, generation=homes.generation + 1, shard_nodes=places, lost_nodes=lost
    )


def without_learner(homes: Homes, rank: int) -> Homes:
    """Return the homes after a learner was given up whose node is still there."""
    lost = sorted({*homes.lost_learners, rank})
    return dataclasses.replace(homes, generation=homes.generation + 1, lost_learners=lost)


def at_the_end(homes: Homes) -> Homes:
    """Return the homes that make servers end by themselves; srun would kill their step."""
    return dataclasses.replace(homes, generation=homes.generation + 1, ended=True)


def write_homes(job_dir: Path, attempt: int, homes: Homes) -> None:
    """Write the homes, which servers and watchdogs read.

    Raises:
        OSError: the disk is full, or the job directory is gone.
    """
    contract.write_whole(job_dir / contract.homes_file(attempt), contract.to_json(homes))


def make_secret(job_dir: Path, attempt: int) -> None:
    """Create the secret that servers demand of each client; only this user can read it.

    Raises:
        FileExistsError: this attempt has a secret already, which somebody else made.
    """
    path = job_dir / contract.server_secret(attempt)
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(SECRET_BYTES))


def remove_what_is_of_no_use(job_dir: Path, attempt: int) -> None:
    """Remove an attempt's secret and shard snapshots: a later attempt starts from the checkpoint.

    Raises:
        OSError: a file can't be removed.
    """
    folder = job_dir / contract.server_dir(attempt)
    (job_dir / contract.server_secret(attempt)).unlink(missing_ok=True)
    for pattern in ("shard-*.rows", f"{contract.WRITING}*"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
