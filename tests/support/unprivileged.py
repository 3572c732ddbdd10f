"""A folder in which permissions hold for the tests, too, even where root runs them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

_NOBODY = 65534


@contextlib.contextmanager
def unprivileged(job_dir: Path) -> Iterator[Path]:
    """Yield a copy of a folder that the user owns whom this process is meanwhile."""
    is_root = os.getuid() == 0
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # noqa: S108 - pytest's is root's alone
        copy = Path(shutil.copytree(job_dir, Path(folder, "copy"), symlinks=True))
        if is_root:
            for path in (Path(folder), copy, *copy.rglob("*")):
                os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
            os.setresuid(_NOBODY, _NOBODY, 0)
        try:
            with mock.patch.dict(os.environ, HOME=folder):
                yield copy
        finally:
            if is_root:
                os.setresuid(-1, 0, -1)
                os.setresuid(0, 0, 0)
            for path in (each for each in copy.rglob("*") if each.is_dir()):
                path.chmod(0o700)
