"""See to data outside a job: `python -m learner.supervisor.site_data VERB …`, on the login node.

load | store | lay-out JOB_DIR ATTEMPT   move a training's data if its nodes can't reach the
stores; lay-out only says which files are to be stored
cache ROOT [BYTES [UNUSED_S]]            list the site's cache; with a number of bytes first
remove what no training uses, the longest unused first
check FILE                               ask data stores, as the JSON in FILE says: for each the
implementation, the variables, how long it may take
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan, State
from dlctl.contract.programs import answers
from dlctl.contract.stores import EXIT_TRY_LATER
from learner import storage
from learner.job.context import read_plan
from learner.storage import scripted
from learner.storage.eviction import evict, held, total_bytes
from learner.storage.to_store import lay_out

_EVERY_S = 2.0


def main(arguments: list[str]) -> Any:
    """Do what the verb asks for; return its answer."""
    verb, *words = arguments
    if verb == "check":
        return check(Path(words[0]))
    if verb == "cache":
        return cache(Path(words[0]), *words[1:])
    job_dir, attempt = Path(words[0]), int(words[1])
    plan = read_plan(job_dir, attempt)
    if verb == "load":
        return _load(plan, job_dir)
    if verb == "lay-out":
        wanted = any(store.takes_checkpoints for store in plan.data_stores)
        files = _laid_out(lay_out(plan, job_dir, attempt, wanted), job_dir.resolve())
        return {"files": files, "state": _state(job_dir, attempt)}
    here = [dataclasses.replace(store, via="node") for store in plan.data_stores]
    plan = dataclasses.replace(plan, data_stores=here)
    publication = storage.Publication(attempt, _no_tick, _no_tick)
    return storage.save_all(plan, job_dir, _state(job_dir, attempt), publication, _Progress().show)


def cache(root: Path, keep_bytes: str = "", unused_s: str = "0") -> dict[str, Any]:
    """Return what the cache holds now, and what was removed.

    Args:
        keep_bytes: how many bytes may stay; empty removes nothing.
        unused_s: for how many seconds nobody may have used what goes.
    """
    too_many = total_bytes(root) - int(keep_bytes) if keep_bytes else 0
    gone = evict(root, too_many, unused_s=float(unused_s)) if keep_bytes else []
    return {
        "held": [dataclasses.asdict(each.data) for each in held(root)],
        "removed": [dataclasses.asdict(each) for each in gone],
        "total_bytes": total_bytes(root),
    }


def check(file: Path) -> list[tuple[int, str]]:
    """Return for each question the exit code and the output of the store's own check."""
    questions = json.loads(file.read_text())
    shutil.rmtree(file.parent)  # it holds credentials
    return [_ask(each["uses"], each["variables"], each["limit_s"]) for each in questions]


def _ask(uses: str, variables: dict[str, str], limit_s: float) -> tuple[int, str]:
    argv = [sys.executable, "-m", "learner.storage", "check", uses]
    try:
        done = subprocess.run(
            argv, env={**os.environ, **variables}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return EXIT_TRY_LATER, f"it does not answer within {limit_s:.0f} s"
    return done.returncode, done.stdout + done.stderr


class _Progress:
    """Prints a sentence of progress to standard error, not too often."""

    def __init__(self) -> None:
        self._last = ""
        self._due = 0.0

    def show(self, moving: storage.Moving) -> None:
        text, now = moving.sentence, time.monotonic()
        if text and text != self._last and now >= self._due:
            self._last, self._due = text, now + _EVERY_S
            print(text, file=sys.stderr, flush=True)


def _load(plan: Plan, job_dir: Path) -> list[str]:
    """Run the scripts of all stores here; return one line for each."""
    progress, root = _Progress(), Path(plan.root)
    return [
        f"{store.id}: {scripted.last_sentence(job_dir, store)}"
        for store in plan.data_stores
        if store.scripts and scripted.load(store, root, job_dir, _no_tick, progress.show)
    ]


def _laid_out(folder: Path, job_dir: Path) -> dict[str, str]:
    """Return the path below the job directory of each file that is to be stored, by its name."""
    paths = (Path(place, name) for place, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix(): str(path.resolve().relative_to(job_dir))
            for path in paths}  # fmt: skip


def _state(job_dir: Path, attempt: int) -> str:
    """Return how an attempt has ended: one that has trained may have failed to store only."""
    for file in (contract.trained_file(attempt), contract.verdict_file(attempt)):
        if verdict := contract.read_record(contract.Verdict, job_dir / file):
            return verdict.state.value
    return State.FAILED.value


def _no_tick() -> None:
    """Do nothing: nobody watches this process's heartbeat."""


if __name__ == "__main__":
    sys.exit(answers.run(main))
