"""Folders in shared memory for one attempt on one node: MPI's segments, and a server's shards.

An MPI rank that is killed leaves its segments in /dev/shm forever (seen with Open MPI 5). The
launchers, which outlive their learners, name a folder for them and remove it with all it holds.
A parameter server has a folder of its own; for one that was killed the supervisor runs
`python -m learner.system.segments <training id> <attempt>` on its node.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.safe_text import without_prefix
from psrv.shard.private_folder import make_private_folder

_VARIABLES = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_btl_vader_backing_directory")
"""Open MPI 5's, and Open MPI 4's."""


def segment_folder(training_id: str, attempt: int | str) -> Path:
    """Return the folder of one attempt."""
    return Path(contract.shared_memory(os.getuid(), training_id, attempt))


def server_folder(training_id: str, attempt: int, job_dir: Path) -> Path:
    """Return the folder of one attempt's shards; other users can't guess its name.

    They could otherwise make it first, and so prevent the training: anybody may create anything in
    /dev/shm. Servers and learners find the name by the attempt's secret.
    """
    folder = segment_folder(training_id, attempt)
    try:
        secret = (job_dir / contract.server_secret(attempt)).read_bytes().strip()
    except OSError:
        return folder
    mark = hashlib.sha256(b"shared memory " + secret).hexdigest()[:16]
    return folder.with_name(f"{folder.name}-{mark}")


def make_segment_folder(training_id: str, attempt: int) -> dict[str, str]:
    """Create the folder; return the variables that make MPI use it (none if it can't be created).

    That it can't either if another user has one of that name. What an earlier attempt left here,
    killed with its launchers, goes now.
    """
    folder = segment_folder(training_id, attempt)
    try:
        remove_earlier(training_id, attempt)
        make_private_folder(folder)
    except OSError:
        return {}
    return {name: str(folder) for name in _VARIABLES if name not in os.environ}


def remove_earlier(training_id: str, attempt: int) -> None:
    """Remove the folders of earlier attempts on this node, whose processes were all killed.

    Not those of later ones: this one may come late, on a node that was cut off.
    """
    folder = segment_folder(training_id, attempt)
    for other in folder.parent.glob(segment_folder(training_id, "*").name):
        number = without_prefix(other.suffix, ".").partition("-")[0]
        if number.isdecimal() and int(number) < attempt:
            shutil.rmtree(other, ignore_errors=True)


def remove_segment_folder(training_id: str, attempt: int) -> None:
    """Remove the folders; a process that has mapped a segment keeps it until it ends."""
    folder = segment_folder(training_id, attempt)
    for found in (folder, *folder.parent.glob(f"{folder.name}-*")):
        shutil.rmtree(found, ignore_errors=True)


if __name__ == "__main__":
    remove_earlier(sys.argv[1], int(sys.argv[2]))
    remove_segment_folder(sys.argv[1], int(sys.argv[2]))
