"""Keep what a job needs from being purged while it runs, and check what was sent before it starts.

Sites remove files from scratch file systems that nobody has changed for some weeks, and a training
may run, or wait in the queue, for longer.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, VerdictKind
from dlctl.contract.ground.whole_files import sha256_of
from learner.job.directives import is_gone
from learner.job.outcome import Outcome, failed
from learner.storage.progress import Tick

TOUCH_EVERY_S = 6 * 3600.0
_FRESH_S = 24 * 3600.0
"""No site removes files that are younger, and Python compiles a touched module again."""
_RESTORE_EVERY_S = 5.0
_SHOWN = 3


def check_code(plan: Plan, job_dir: Path, attempt: int) -> tuple[Outcome | None, str]:
    """Return the outcome that ends the attempt if its code is not what was sent, and a remark.

    A program may change files of its own folder, so later attempts only get a remark about that.
    """
    folder = job_dir / contract.CODE
    if len(plan.code_digest) != contract.DIGEST_LENGTH:
        return None, ""  # from an older dlctl, or made by hand
    try:
        index = (folder / contract.SENT_INDEX).read_bytes()
        files = contract.parse_index(index) if _is_of(plan, index) else None
    except (OSError, ValueError):
        files = None
    if files is None:
        return _damaged(plan, [contract.SENT_INDEX], "missing or not what was sent"), ""
    if missing := contract.missing_files(folder, files):
        return _damaged(plan, missing, "missing"), ""
    changed = contract.changed_files(folder, files)
    if changed and attempt == 1:
        _distrust_store(plan)
        return _damaged(plan, changed, "not what was sent"), ""
    return None, f"changed since it was sent: {_names(changed)}" if changed else ""


def check_weights(plan: Plan, job_dir: Path, tick: Tick) -> Outcome | None:
    """Return the outcome that ends the attempt if its stored weights are not what was stored."""
    if plan.weights is None:
        return None
    path, blob = (
        job_dir / plan.weights.file,
        Path(contract.blob_path(plan.root, plan.weights.sha256)),
    )
    try:
        found = sha256_of(path, tick)
    except OSError as error:
        found = error.strerror or str(error)
    if found == plan.weights.sha256:
        return None
    for damaged in (path, blob):  # so that the same file can be stored again
        with contextlib.suppress(OSError):
            if damaged == path or sha256_of(blob, tick) != plan.weights.sha256:
                damaged.replace(f"{damaged}{contract.DAMAGED_BLOB}")
    model, _, _ = plan.weights.model.partition("@")
    problem = "its SHA-256 differs" if len(found) == 64 else found
    return failed(
        VerdictKind.SITE,
        f"{plan.weights.path} of the model {plan.weights.model} is not what was stored: {problem}.",
        f"Store the same file again: dlctl models update {model} FOLDER; then continue: "
        f"dlctl resume {plan.training_id}",
    )


def _distrust_store(plan: Plan) -> None:
    """Make dlctl send the code again: its copy at the site may be what is damaged.

    The login side compares sizes and times only, which may not show it; an empty index does.
    """
    with contextlib.suppress(OSError):
        os.truncate(Path(plan.root, "store", plan.code_digest, contract.SENT_INDEX), 0)


def _is_of(plan: Plan, index: bytes) -> bool:
    return contract.index_digest(index) == plan.code_digest


def _damaged(plan: Plan, names: list[str], what: str) -> Outcome:
    return failed(
        VerdictKind.SITE,
        f"{_names(names)} in the code folder {plan.job_dir}/{contract.CODE}: {what}.",
        f"Send your folder again and continue: dlctl resume --code {plan.training_id}",
    )


def _names(paths: list[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(map(repr, paths[:_SHOWN])) + more


class Keeper:
    """Restores the files that describe a running attempt, and marks dlctl's files as in use."""

    def __init__(
        self, plan: Plan, job_dir: Path, attempt: int, touch_every_s: float = TOUCH_EVERY_S
    ) -> None:
        self._plan, self._job_dir, self._touch_every_s = plan, job_dir, touch_every_s
        self._touch_at = 0.0  # it may have waited in the queue for weeks
        self._restore_at = 0.0
        self._thread: threading.Thread | None = None
        self._contents: dict[Path, bytes] = {}
        for name in (contract.plan_file, contract.manifest_file, contract.script_file):
            path = job_dir / name(attempt)
            with contextlib.suppress(OSError):
                self._contents[path] = path.read_bytes()

    def keep(self) -> list[str]:
        """Restore and touch what is due; return the paths of the files that were restored."""
        now = time.monotonic()
        if now >= self._touch_at and not (self._thread and self._thread.is_alive()):
            self._touch_at = now + self._touch_every_s
            # A slow file system must not hold up the heartbeat.
            self._thread = threading.Thread(target=self.touch, name="dlctl-touch", daemon=True)
            self._thread.start()
        if now < self._restore_at:
            return []
        self._restore_at = now + _RESTORE_EVERY_S
        return [str(path) for path, content in self._contents.items() if _restore(path, content)]

    def touch(self) -> None:
        """Give dlctl's files the time of now: not the user's results, nor the data."""
        root = Path(self._plan.root)
        for folder in (self._job_dir, Path(self._plan.runtime_dir), self._environment(),
                       root / "secrets" / self._plan.training_id):  # fmt: skip
            files = list(self._files(folder)) if folder else []
            oldest, now = min(map(_changed_at, files), default=math.inf), time.time()
            if oldest > now - _FRESH_S:
                continue
            # All get the same time: no file may become newer than its index. The first claim stays
            # older than what a program may have changed.
            first = self._job_dir / contract.claim(1)
            for path in files:
                at = now - 1 if path == first else now
                with contextlib.suppress(OSError):
                    os.utime(path, (at, at), follow_symlinks=False)

    def _files(self, folder: Path) -> Iterator[Path]:
        attempts = (self._job_dir / contract.attempt_dir(1)).parent
        for path, folders, names in os.walk(folder):
            if Path(path) == self._job_dir or Path(path).parent == attempts:
                folders[:] = [name for name in folders if name != contract.RESULTS]
            yield from (Path(path, name) for name in names)

    def _environment(self) -> Path | None:
        """Return the folder of the job's Python if dlctl made it for the manifest."""
        environments = Path(self._plan.root) / contract.ENVIRONMENTS
        made = self._plan.made_environment
        python = Path((made or self._plan.environment).python)
        if environments in python.parents:
            return environments / python.relative_to(environments).parts[0]
        return None


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return math.inf


def _restore(path: Path, content: bytes) -> bool:
    if not is_gone(path) or is_gone(path.parent):
        return False
    with contextlib.suppress(OSError):
        contract.write_whole(path, content)
        return True
    return False
