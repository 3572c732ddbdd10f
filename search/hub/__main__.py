"""The hub's process: `python -m search.hub JOB_DIR`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.metrics import Source
from search.errors import SearchError
from search.hub.progress import Progress
from search.hub.recruit import Recruiter
from search.protocol.children import Child
from search.protocol.settings import load_spec

TICK_S = 0.1
TELL_S = 1.0
_PATIENCE_S = 10.0


def main() -> int:
    """Keep the search's processes alive until the model is done, or until a signal."""
    parser = argparse.ArgumentParser(prog="search.hub")
    parser.add_argument("job_dir", type=Path)
    job_dir = parser.parse_args().job_dir
    try:
        spec = load_spec(job_dir)
    except SearchError as error:
        sys.stderr.write(f"dlctl: {error}\n")
        return names.EXIT_WRONG
    halted = threading.Event()

    def note(number: int, frame: types.FrameType | None) -> None:
        del number, frame
        halted.set()

    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    return Hub(job_dir, spec).run(halted)


class Hub:
    """The processes of one hub."""

    def __init__(self, job_dir: Path, spec: names.Spec) -> None:
        self._job_dir, self._spec = job_dir, spec
        folder, logs = str(job_dir), job_dir / names.LOGS
        final = frozenset({0, names.EXIT_WRONG})
        self._model = Child("model", ["search.model", folder], logs, final)
        self._children = [
            Child("nameserver", ["search.nameserver", folder], logs),
            Child("broker", ["search.broker", folder, "--name", names.FIRST_BROKER], logs),
            self._model,
        ]
        self._progress = Progress(job_dir, spec)
        self._recruiter = Recruiter(job_dir, spec, self._progress.work)
        self._told_ticks = 0

    def run(self, halted: threading.Event) -> int:
        """Return the exit code: 0 after a halt, or once the search is done."""
        logs = self._job_dir / names.LOGS
        code: int | None = None
        (self._job_dir / names.ENDED).unlink(missing_ok=True)
        self._recruiter.start()
        while code is None and not halted.is_set():
            for child in self._children:
                final = child.look()
                code = final if child is self._model and final is not None else code
            self._tell()
            halted.wait(TICK_S)
        self._recruiter.ended.set()
        if code is not None:
            contract.write_whole(self._job_dir / names.ENDED, "")  # workers leave
        for child in reversed(self._children):
            child.end(_PATIENCE_S)
        self._tell(now=True)
        if code == 0:
            self._save()
        elif code is not None:
            sys.stderr.write((logs / "model.log").read_text(errors="replace")[-2000:])
        return code or 0

    def _tell(self, *, now: bool = False) -> None:
        self._told_ticks -= 1
        if not now and self._told_ticks > 0:
            return
        self._told_ticks = round(TELL_S / TICK_S)
        rows = self._progress.look()
        for row in rows:
            numbers = {k: v for k, v in row.items() if k not in ("time", "group")}
            text = " ".join(f"{name}={value:g}" for name, value in numbers.items())
            sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # a full disk ends no search: what it tells is late
            self._write(rows)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        path = self._job_dir / contract.metrics_file(_attempt(), 0, Source.PROGRAM)
        if rows:
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
        self._progress.tell(
            {child.name: child.starts for child in self._children}, self._recruiter.told
        )

    def _save(self) -> None:
        """Write the results that `dlctl fetch results` brings."""
        results = os.environ.get("RESULT_DIR")
        if results is None:
            return
        contract.write_whole(Path(results, "best.json"), json.dumps(self._progress.best, indent=2))
        shutil.copy(self._job_dir / names.TRIALS, results)


def _attempt() -> int:
    """Return the attempt that this hub is of, by the folder of its results."""
    number = Path(os.environ.get("RESULT_DIR", "1/results")).parent.name
    return int(number) if number.isdecimal() else 1


if __name__ == "__main__":
    sys.exit(main())
