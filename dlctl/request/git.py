"""What git says about a folder: its commit, its branch, and whether it differs from the commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from dlctl.contract import GitState

_PATIENCE_S = 5.0
"""In a huge repository git may take longer; a submission does not wait for that."""


def git_state(folder: Path) -> GitState | None:
    """Return the state of a folder; None without git, outside a repository, or before a commit."""
    if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    command = ["git", "--no-optional-locks", "-C", str(folder), "status", "--porcelain=v2",
               "--branch", "--", "."]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=_PATIENCE_S, stdin=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_status(done.stdout.decode(errors="replace"))


def parse_status(text: str) -> GitState | None:
    """Return what `git status --porcelain=v2 --branch` has printed."""
    lines = text.splitlines()
    told = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = told.get("branch.oid", ""), told.get("branch.head", "")
    if not commit or commit == "(initial)":
        return None
    dirty = any(not line.startswith("# ") for line in lines)
    return GitState(commit, "" if branch == "(detached)" else branch, dirty)
