"""The runtime that travels with a job: learner, psrv and the contract of this version."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dlctl.files.archive import Entry

_PACKAGE = Path(__file__).resolve().parents[1]


def runtime_entries() -> tuple[str, list[Entry]]:
    """Return the runtime's content hash and its files, in order of their names."""
    files = {"dlctl/__init__.py": _PACKAGE / "__init__.py"}
    for package in ("dlctl/contract", "learner", "psrv"):
        folder = _PACKAGE.parent / package
        for path in [*folder.rglob("*.py"), *folder.rglob("*.c")]:
            files[f"{package}/{path.relative_to(folder).as_posix()}"] = path
    digest = hashlib.sha256()
    entries = []
    for name, path in sorted(files.items()):
        content = path.read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
        entries.append(Entry(name, content))
    return digest.hexdigest()[:32], entries
