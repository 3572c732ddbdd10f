"""Arranges the files of an attempt that go to a store, as a tree of links.

The layout is that of the service's open-source successor: the results at the top, a folder
`learner-<number>` for each learner's log, counted from 1, `_submitted_code/model.zip`, `_output/`
with what the program has written into its own folder, and, if the manifest wants them,
`_checkpoints/`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import zipfile
from collections.abc import Container
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.stores import storing_dir
from learner.storage.index import result_files

LOG_NAME = "training-log.txt"
CODE_NAME = "_submitted_code/model.zip"
CHECKPOINTS_NAME = "_checkpoints"
OUTPUT_NAME = "_output"
_OLDEST = (1980, 1, 1, 0, 0, 0)
"""The time of each file in the archive: the same code is the same archive."""


def lay_out(plan: Plan, job_dir: Path, attempt: int, checkpoints: bool = False) -> Path:
    """Make the folder with links to all that an attempt stores, and return it.

    Args:
        checkpoints: Whether those are stored, too: all that are there now, as they are.
    """
    folder = job_dir / storing_dir(attempt)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    results = job_dir / contract.results_dir(attempt)
    for path in result_files(results)[0]:
        _link(folder, path.relative_to(results).as_posix(), path.resolve())
    for rank in range(plan.resources.learners):
        for number in range(attempt, 0, -1):  # of two logs the newer one counts
            log = job_dir / contract.learner_log(number, rank)
            _link(folder, f"learner-{rank + 1}/{LOG_NAME}", log)
    if checkpoints:
        kept = job_dir / contract.CHECKPOINTS
        for path in result_files(kept)[0]:
            _link(folder, f"{CHECKPOINTS_NAME}/{path.relative_to(kept).as_posix()}", path.resolve())
    code = job_dir / contract.CODE
    output = contract.own_output(job_dir, plan.output_caches)
    for name in output:
        _link(folder, f"{OUTPUT_NAME}/{name}", (code / name).resolve())
    _pack(code, folder / CODE_NAME, output)
    return folder


def _link(folder: Path, name: str, target: Path) -> None:
    """Link to a file that is there; of two with one name the results' counts."""
    link = folder / name
    if target.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(target)


def _pack(code: Path, archive: Path, output: Container[str]) -> None:
    """Pack the code as the program has left it, less what it has written there."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for folder, folders, names in os.walk(code.resolve()):
            folders.sort()
            for path in (Path(folder, name) for name in sorted(names)):
                name = path.relative_to(code.resolve()).as_posix()
                if name == contract.SENT_INDEX or "__pycache__" in name or not path.is_file():
                    continue
                if name in output:
                    continue
                info = zipfile.ZipInfo(name.encode("utf-8", "replace").decode(), _OLDEST)
                info.external_attr = (path.stat().st_mode & 0o777) << 16
                packed.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
