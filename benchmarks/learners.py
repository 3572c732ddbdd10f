"""Start learners for a benchmark and return what they measured.

Learners are ordinary processes under mpiexec, one thread each. The first of them writes its results
to a file, one JSON object per line, so that no library's output gets mixed with them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
_SHARED_MEMORY = Path("/dev/shm")
_TIME_LIMIT_S = 900.0
_LAST_WORDS_S = 5.0
"""How long failing learners have to print their last output."""
PREFIX = "dlctl-bench-"
"""Prefix of the names of temporary folders."""


@dataclass(frozen=True)
class Started:
    """Learners that are running or have ended."""

    argv: Sequence[str]
    process: subprocess.Popen[bytes]
    output: Path

    def wait(self, limit_s: float) -> int:
        """Return mpiexec's exit code; minus SIGALRM if it takes longer than the limit."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return -signal.SIGALRM

    def failed(self, problem: str) -> RuntimeError:
        """Return an error with what was seen and the last output."""
        self.wait(_LAST_WORDS_S)
        output = self.output.read_text(errors="replace")[-4000:]
        return RuntimeError(f"{' '.join(self.argv)}: {problem}: {output}")


def run_learners(
    learners: int, module: str, *arguments: str, time_limit_s: float = _TIME_LIMIT_S
) -> list[dict[str, Any]]:
    """Run `python -m module arguments… FILE` in `learners` processes; return their results.

    However it ends, no process and no file is left. Raises RuntimeError with the last output.
    """
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        results = folder / "results.jsonl"
        with start_learners(folder, learners, module, *arguments, str(results)) as started:
            code = started.wait(time_limit_s)
            if code != 0:
                raise started.failed(f"exit code {code}")
        return read_results(results)


@contextlib.contextmanager
def start_learners(folder: Path, learners: int, module: str, *arguments: str) -> Iterator[Started]:
    """Run `python -m module arguments…` in `learners` processes during the `with` block.

    At the end no process is left, and no files outside `folder`.
    """
    shared = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    output = folder / "output"
    argv = [*_mpiexec(learners), *program(module), *arguments]
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, dir=shared) as memory,
        output.open("wb") as stream,
    ):
        process = subprocess.Popen(
            argv,
            env=_environment(learners, folder, Path(memory)),
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            yield Started(argv, process, output)
        finally:
            _end(process)


def program(module: str) -> list[str]:
    """Return the command of one learner; an exception in one ends all of them."""
    return [sys.executable, "-m", "mpi4py", "-m", module]


def read_results(file: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def _mpiexec(learners: int) -> list[str]:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    command = str(mpiexec) if mpiexec.exists() else "mpiexec"
    return [command, "-n", str(learners), "--oversubscribe", "--bind-to", "none"]


def _environment(learners: int, folder: Path, memory: Path) -> Mapping[str, str]:
    """Return the learners' environment: shared files go into two folders, deleted at the end."""
    crowded = learners > len(os.sched_getaffinity(0))
    kept = {name: text for name, text in os.environ.items() if not name.startswith("SLURM_")}
    return {
        **kept,
        **ONE_THREAD,
        "TMPDIR": str(folder),
        "PYTHONPATH": str(REPOSITORY),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": str(int(crowded)),
        "OMPI_MCA_btl_sm_backing_directory": str(memory),
        "OMPI_MCA_osc_sm_backing_directory": str(memory),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec, then all that is left of its session."""
    if process.poll() is None:
        process.terminate()  # mpiexec ends the learners
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    limit = time.monotonic() + 10
    while (left := _session(process.pid)) and time.monotonic() < limit:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _session(leader: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(int(stat.parent.name))
    return found
