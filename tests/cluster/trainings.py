"""Small trainings and changed sites for the tests of bad input and of faults."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import wait_until

from dlctl import contract

REPOSITORY = Path(__file__).resolve().parents[2]
COUNTER = """\
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["CHECKPOINT_DIR"])
mine = folder / ("count-" + os.environ["RANK"])
count = int(mine.read_text()) if mine.exists() else 0
print("begins at", count, flush=True)
def save(*_):
    mine.with_suffix(".new").write_text(str(count))
    mine.with_suffix(".new").rename(mine)
def halt(*_):
    save()
    print("saved", count, flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR2, halt)
while count < int(sys.argv[1]):
    time.sleep(0.1)
    count += 1
    save()
print("done at", count, flush=True)
"""
"""A program that counts from its checkpoint on, ten a second; saves and ends on SIGUSR2."""


def verdict(job_dir: Path, attempt: int) -> contract.Verdict | None:
    """Return the verdict on an attempt, or None if there is none yet."""
    return contract.read_record(contract.Verdict, job_dir / contract.verdict_file(attempt))


def assert_no_step_twice(log: str) -> None:
    """Check that each link of a program that counts began where the one before it had ended.

    A halt may come when the program has just done its last step: it says `done at` then, is too
    late to say `saved`, and the next link has nothing left to do.
    """
    told = re.findall(r"\| (begins|saved|done) at (\d+)$|\| (saved) (\d+)$", log, re.MULTILINE)
    reached = 0
    for what, count in ((first or second, int(one or two)) for first, one, second, two in told):
        if what == "begins":
            assert count == reached, f"a step was done twice, or one is missing:\n{log}"
        reached = count
    assert any("done" in line for line in told), log


ON_THE_CLUSTER = pytest.mark.parametrize(
    "site",
    [
        pytest.param("local", marks=pytest.mark.long),
        pytest.param("cluster", marks=pytest.mark.cluster),
    ],
    indirect=True,
)
"""For what does not depend on the scheduler: `make test-all` proves it on the real one only."""


def write_training(
    folder: Path, framework: Mapping[str, Any], files: Mapping[str, str] | None = None, **keys: Any
) -> Path:
    """Write a manifest (JSON is YAML: any character has a form there) and its files."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = {"name": "fault", "memory": "768MiB", "time": "5m"} | keys
    asked["framework"] = {"name": "pytorch", **framework}
    (folder / "manifest.yml").write_text(json.dumps(asked, ensure_ascii=True))
    for name, text in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def search_of_digits(folder: Path, trials: int = 2, jobs: str = "1") -> Path:
    """Write a small search whose trials are trainings of two learners; return search.yml."""
    shutil.copytree(REPOSITORY / "examples/hpo-digits", made := folder / "hpo")
    text = (made / "search.yml").read_text()
    for old, new in (("learners: 1", "learners: 2"), ("epochs: 9", "epochs: 2"),
                     ("trials: 24", f"trials: {trials}"), ("jobs: 1..4", f"jobs: {jobs}"),
                     ("1.0e-5, 1.0e-1", "1.0e-3, 1.0e-2")):  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    (made / "search.yml").write_text(text)
    return made / "search.yml"


def write_counter(folder: Path, goal: int, program: str = COUNTER, **keys: Any) -> Path:
    """Write a training of `COUNTER`, or of a program like it."""
    command = {"command": f"exec python3 counter.py {goal}"}
    return write_training(folder, command, {"counter.py": program}, **keys)


def count_of(job_dir: Path, rank: int = 0) -> int:
    """Return how far a learner of `COUNTER` has saved."""
    path = job_dir / f"checkpoints/count-{rank}"
    return int(path.read_text() or 0) if path.exists() else 0


def node_of(dlctl: Any, training_id: str, rank: int = 0) -> int:
    """Return the number of the cluster's node on which a learner is."""
    learners = dlctl("show", training_id, "--json", ok=True).json["learners"]
    (host,) = (each["host"] for each in learners if each["rank"] == rank)
    return int(host.removeprefix("n"))


def change_site(site: Any, config: Path, name: str = "changed", **changes: Any) -> Any:
    """Write a site like `site`, with some settings of some sections replaced."""
    own = config / f"dlctl/sites/{site.name}.yml"
    file = own if own.exists() else REPOSITORY / f"site_configs/{site.name}.yml"
    settings = yaml.safe_load(file.read_text())
    for section, values in changes.items():
        if isinstance(values, dict) and isinstance(settings.get(section), dict):
            settings[section] |= values
        else:
            settings[section] = values
    changed = config / f"dlctl/sites/{name}.yml"
    changed.parent.mkdir(parents=True, exist_ok=True)
    changed.write_text(json.dumps(settings))
    root = Path(settings["root"]) if "root" in changes else site.root
    return dataclasses.replace(site, name=name, root=root)


def submit(dlctl: Any, site: Any, folder: Path, *options: str, **how: Any) -> str:
    """Submit a folder's manifest; return the training id."""
    done = dlctl(
        "submit", "manifest.yml", "--site", site.name, *options, cwd=folder, ok=True, **how
    )
    return str(done.stdout.strip())


def run(
    dlctl: Any, site: Any, folder: Path, *options: str, cwd: Path | None = None, ok: bool = False
) -> tuple[Any, str]:
    """Submit and follow to the end; return how the command ended, and the training id.

    With `cwd` it is done from there: `python -m dlctl` would import the files beside a manifest.
    """
    manifest = folder / "manifest.yml" if cwd else "manifest.yml"
    where = cwd or folder
    done = dlctl("submit", manifest, "--site", site.name, "--follow", *options, cwd=where, ok=ok)
    return done, done.stdout.split("\n", 1)[0]


def complete(dlctl: Any, site: Any, folder: Path, *options: str) -> str:
    """Submit a folder's manifest, and wait for the end; return the training id."""
    training_id = submit(dlctl, site, folder, *options)
    wait_for_state(dlctl, training_id, "COMPLETED")
    return training_id


def begin(dlctl: Any, site: Any, folder: Path, *options: str) -> tuple[str, Path]:
    """Submit a folder's manifest; return the training id and the job directory."""
    training_id = submit(dlctl, site, folder, *options)
    return training_id, site.job_dir(training_id)


def halt(dlctl: Any, training_id: str) -> dict[str, Any]:
    """Halt a training, and return the record once it is halted."""
    dlctl("halt", training_id, ok=True)
    return wait_for_state(dlctl, training_id, "HALTED")


def state_of(dlctl: Any, training_id: str) -> dict[str, Any]:
    """Return what `dlctl status --json` says."""
    return dict(dlctl("status", training_id, "--json", ok=True).json)


def command_lines() -> list[bytes]:
    """Return the command lines of all processes of this machine and, seen from here, the nodes."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append((process / "cmdline").read_bytes())
    return found


ENDED = ("FAILED", "CANCELLED", "HALTED", "COMPLETED")
PATIENCE_S = 2.0
"""Not every end leaves a verdict: so often dlctl is asked all the same."""


def files_tell(job_dir: Path, attempt: int, state: str) -> bool:
    """Return whether the job directory says that an attempt has come to this state, or has ended.

    Reading a file costs nothing; a command costs as much of a core as a small training.
    """
    if (job_dir / contract.verdict_file(attempt)).exists():
        return True
    status = job_dir / contract.status_file(attempt, "supervisor", 0)
    supervisor = contract.read_record(contract.Status, status) if state not in ENDED else None
    return supervisor is not None and supervisor.state == state


def wait_for_state(
    dlctl: Any, training_id: str, *states: str, timeout_s: float = 90
) -> dict[str, Any]:
    """Return the record once the training is in one of these states; another end fails the test.

    Waits for the job directory's files, and asks dlctl once they tell.
    """
    record = dlctl.record(training_id)
    asked_at = time.monotonic()

    def reached() -> dict[str, Any] | None:
        nonlocal asked_at
        told = any(files_tell(Path(record.job_dir), record.attempt, state) for state in states)
        if not told and time.monotonic() - asked_at < PATIENCE_S:
            return None
        now = state_of(dlctl, training_id)
        asked_at = time.monotonic()
        if now["state"] in ENDED:
            assert now["state"] in states, (now, dlctl("logs", training_id).stdout[-3000:])
        return now if now["state"] in states else None

    found = wait_until(reached, timeout_s, interval_s=0.1, what=f"{training_id} to be {states}")
    return dict(found)


def wait_for_file(file: Path, timeout_s: float = 90) -> str:
    """Return a file's content once it is there and not empty."""
    wait_until(lambda: file.exists() and file.stat().st_size, timeout_s, what=str(file))
    return file.read_text()
