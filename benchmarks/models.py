"""What stored models take: `python -m benchmarks.models`.

models_20    bytes below `models/` of 20 versions that share 90 % of their contents; floor: the
             unique bytes; peer: MLflow's artifacts after the same versions

MODEL_PEERS names a Python with mlflow-skinny, sqlalchemy and alembic; without it there is no peer.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Load, Result, leave_out, main
from dlctl.contract import MODELS
from dlctl.lifecycle import open_session
from dlctl.models.create import Wish, from_folder
from dlctl.models.reading import read_models
from dlctl.sites.files import parse_site

_VERSIONS, _FILES, _FILE_BYTES = (20, 3, 2), 50, 200_000
_SITE = """\
transport: {{kind: local}}
root: {root}
scheduler: {{kind: local}}
launcher: {{kind: mpirun}}
environment: {{python: auto}}
"""


_MLFLOW = """\
import mlflow, sys
mlflow.set_tracking_uri("sqlite:///" + sys.argv[2] + "/mlflow.db")
if mlflow.get_experiment_by_name("bench") is None:
    mlflow.create_experiment("bench", artifact_location="file://" + sys.argv[2] + "/artifacts")
mlflow.set_experiment("bench")
with mlflow.start_run():
    mlflow.log_artifacts(sys.argv[1])
"""
_PEERS = {"MLflow": (_MLFLOW, "artifacts")}
"""Of each peer: what stores one version, and the folder with the contents."""


def measure(load: Load) -> Iterator[Result]:
    """Yield the result."""
    with tempfile.TemporaryDirectory(prefix="dlctl-models.") as name:
        yield _twenty(Path(name), _VERSIONS[load])


def _twenty(place: Path, versions: int) -> Result:
    """Store versions of which each replaces a tenth of the files of the one before it."""
    folder, draw = place / "folder", random.Random(1)  # noqa: S311
    folder.mkdir()
    peers = [name for name in _PEERS if _has(name)]
    if absent := _PEERS.keys() - set(peers):
        leave_out(*absent, why="MODEL_PEERS names no Python that has it")
    contents = 0
    session = open_session(parse_site("bench", _SITE.format(root=place / "root")))
    try:
        for version in range(versions):
            changed = draw.sample(range(_FILES), _FILES // 10) if version else range(_FILES)
            for number in changed:
                (folder / f"layer-{number}.bin").write_bytes(draw.randbytes(_FILE_BYTES))
            contents += len(changed)
            models = read_models(session)
            from_folder(session, folder, Wish("bench", model=models[0] if models else None))
            for name in peers:
                _store(name, folder, place / name)
    finally:
        session.close()
    theirs = {name: _size_bytes(place / name / _PEERS[name][1]) for name in peers}
    ours = _size_bytes(place / "root" / MODELS)
    return Result("models_20", "B", ours, contents * _FILE_BYTES, theirs, versions)


def _has(name: str) -> bool:
    """Return whether the peers' Python has a peer."""
    argv = [os.environ.get("MODEL_PEERS", "false"), "-c", f"import {name.lower()}"]
    return subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _store(name: str, folder: Path, place: Path) -> None:
    """Store a version with a peer, in a folder of its own: it may replace files by links."""
    mine = place / "folder"
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(folder, mine)
    argv = [os.environ["MODEL_PEERS"], "-c", _PEERS[name][0], str(mine), str(place)]
    subprocess.run(argv, check=True, capture_output=True)


def _size_bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


if __name__ == "__main__":
    main(measure)
