"""Move a training's data outside its job: `python -m learner.supervisor.bring VERB JOB_DIR N`.

The login side runs this on the login node if the nodes can't reach the stores. The verb is `load`
or `store`, and N the attempt. `lay-out` only says which files are to be stored, and as what.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.programs import answers
from learner import storage
from learner.job.context import read_plan
from learner.storage import scripted
from learner.storage.to_store import lay_out

_EVERY_S = 2.0


class _Told:
    """Prints a sentence of progress to standard error, not too often."""

    def __init__(self) -> None:
        self._last = ""
        self._due = 0.0

    def show(self, moving: storage.Moving) -> None:
        text, now = moving.sentence, time.monotonic()
        if text and text != self._last and now >= self._due:
            self._last, self._due = text, now + _EVERY_S
            print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> list[str] | dict[str, object]:
    """Run the scripts of all stores here; return one line for each."""
    verb, job_dir, attempt = arguments[0], Path(arguments[1]), int(arguments[2])
    plan, told = read_plan(job_dir, attempt), _Told()
    if verb == "load":
        done = []
        for store in plan.data_stores:
            if store.scripts and scripted.load(
                store, Path(plan.root), job_dir, _no_tick, told.show
            ):
                done.append(f"{store.id}: {scripted.told_of(job_dir, store)}")
        return done
    if verb == "lay-out":
        wanted = any(store.takes_checkpoints for store in plan.data_stores)
        files = _laid_out(lay_out(plan, job_dir, attempt, wanted), job_dir.resolve())
        return {"files": files, "state": _state(job_dir, attempt)}
    here = [dataclasses.replace(store, via="node") for store in plan.data_stores]
    plan = dataclasses.replace(plan, data_stores=here)
    publication = storage.Publication(attempt, _no_tick, _no_tick)
    return storage.save_all(plan, job_dir, _state(job_dir, attempt), publication, told.show)


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
