"""The runtime that travels with a job: learner, psrv, search and the contract of this version."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from dlctl import contract
from dlctl.contract import SentFile
from dlctl.files.archive import Entry

_ENDINGS = ("py", "c", "binpb", "proto")
_PACKAGE = Path(__file__).resolve().parents[1]


@functools.cache
def runtime_entries() -> tuple[str, list[Entry]]:
    """Return the runtime's digest and its files, in order of their names, and their index."""
    files = {"dlctl/__init__.py": _PACKAGE / "__init__.py"}
    for package in ("dlctl/contract", "learner", "psrv", "search"):
        folder = _PACKAGE.parent / package
        for path in [found for ending in _ENDINGS for found in folder.rglob(f"*.{ending}")]:
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    contents = {name: path.read_bytes() for name, path in sorted(files.items())}
    index = contract.index_text(
        SentFile(hashlib.sha256(content).hexdigest(), len(content), "f", name)
        for name, content in contents.items()
    )
    entries = [Entry(name, content) for name, content in contents.items()]
    return contract.index_digest(index), [*entries, Entry(contract.SENT_INDEX, index)]
