"""Kill learners with -9 at random, and account for every sample that they trained on.

The *surviving history* of a training is what remains of it after a crash. A learner on a
FileCursor trains on a chunk, writes it to its journal (fsync) and then reports it done. The
cursor's file counts the chunks that each learner reported. Of a killed learner's journal, as many
chunks survive as this count says. What it had trained on but not yet reported is lost with it, and
is given out again. (A learner whose weights outlive it would continue from those that it had when
it had reported that many.)

The history must be exactly what the cursor says was done: each sample of each finished pass once,
and once each sample of the passes in progress that is not given out again.

    python -m benchmarks.cursor --accounting 50
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from psrv.cursor.base import Chunk, CursorState, read_state
from psrv.cursor.file import FileCursor

SAMPLES = 997  # no chunk size divides it
PASSES = 10**6  # more than are ever finished, so that no learner ends by itself
LEARNERS = 3
REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Account:
    """The outcome of many rounds of killing."""

    what: str
    rounds: int
    killed: int
    """Learners that were killed."""
    lost_chunks: int
    """Chunks that killed learners had trained on and that did not survive."""
    passes_finished: int
    samples_in_history: int
    missing: int
    """Samples that count as done but are not in the surviving history."""
    twice: int
    """Samples that the history has more than once per pass."""

    def to_json(self) -> str:
        """Return it as one line."""
        return json.dumps(asdict(self))


def settle(state: CursorState, history: Iterable[Chunk]) -> dict[str, int]:
    """Compare a history with what a cursor says was done."""
    counts: Counter[int] = Counter()
    for chunk in history:
        first = chunk.pass_number * state.samples
        counts.update(range(first + chunk.start, first + chunk.stop))
    undone = {position for part in state.undone for position in range(*part)}
    expected = Counter(position for position in range(state.next) if position not in undone)
    finished = min([state.next, *undone]) // state.samples
    return {"passes_finished": finished, "samples_in_history": counts.total(),
            "missing": (expected - counts).total(),
            "twice": (counts - expected).total()}  # fmt: skip


def file_learner(path: str, journals: str, size: str) -> None:
    """Train forever, holding one chunk and the next, as ChunkLoader does."""
    with FileCursor(path, SAMPLES, PASSES, look_every_s=0.01) as cursor:
        journal = os.open(Path(journals) / str(cursor.learner), os.O_WRONLY | os.O_CREAT, 0o600)
        chunk = cursor.take(int(size))
        ahead = cursor.take(int(size))
        (Path(journals) / f"of-{os.getpid()}").touch()
        while chunk is not None:
            os.write(journal, f"{chunk.pass_number} {chunk.start} {chunk.stop}\n".encode())
            os.fsync(journal)
            chunk, ahead = ahead, cursor.take(int(size), chunk)


def account_file(rounds: int, seed: int = 0) -> Account:
    """Kill independent learners at random, `rounds` times, and restart them."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path, journals = Path(folder) / "cursor", Path(folder) / "journals"
        journals.mkdir()
        # This process takes no chunks: its cursor only reads the file.
        with FileCursor(path, SAMPLES, PASSES) as cursor, _learners(path, journals) as learners:
            killed = 0
            for _ in range(rounds):
                if draw.random() < 0.75:  # in the other rounds some are killed while they start
                    _wait(learners.all_run)
                time.sleep(draw.uniform(0.0, 0.1))
                victims = draw.sample(range(LEARNERS), draw.choice([1, 1, 1, 2, LEARNERS]))
                stopped = [p for place, p in enumerate(learners.processes) if place not in victims]
                if stopped and draw.random() < 0.3:  # a stopped learner is alive
                    stopped[0].send_signal(signal.SIGSTOP)
                for place in victims:
                    learners.kill(place)
                    killed += 1
                for process in stopped[:1]:
                    process.send_signal(signal.SIGCONT)
                for place in victims:
                    learners.start(place)
            _wait(lambda: learners.all_run() and cursor.state()["next"] > 2 * SAMPLES)
            for place in range(LEARNERS):
                learners.kill(place)
            history, lost = _surviving(cursor, journals)
            state = read_state(cursor.state(), SAMPLES, PASSES)
    return Account("cursor_file", rounds, killed, lost, **settle(state, history))


class _Learners:
    def __init__(self, path: Path, journals: Path) -> None:
        self._arguments = [str(path), str(journals)]
        self._journals = journals
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, place: int) -> None:
        size = str((64, 32, 9)[place])  # a slow learner uses fewer
        program = "from benchmarks.cursor_accounting import file_learner as f; import sys; "
        process = subprocess.Popen(
            [sys.executable, "-c", program + "f(*sys.argv[1:])", *self._arguments, size],
            cwd=REPOSITORY,
        )
        self.processes[place : place + 1] = [process]

    def all_run(self) -> bool:
        """Return whether all have begun to train; fail if one has ended."""
        if any(process.poll() is not None for process in self.processes):
            raise RuntimeError("a learner ended by itself")
        return all((self._journals / f"of-{process.pid}").exists() for process in self.processes)

    def kill(self, place: int) -> None:
        self.processes[place].kill()
        code = self.processes[place].wait()
        if code != -signal.SIGKILL:
            raise RuntimeError(f"a learner ended by itself, with code {code}")


@contextmanager
def _learners(path: Path, journals: Path) -> Iterator[_Learners]:
    learners = _Learners(path, journals)
    try:
        for place in range(LEARNERS):
            learners.start(place)
        yield learners
    finally:
        for process in learners.processes:
            process.kill()
            process.wait()


def _surviving(cursor: FileCursor, journals: Path) -> tuple[list[Chunk], int]:
    """Return the chunks in all journals that were reported done, and the number of the others."""
    reported = {entry.learner: entry.reported for entry in cursor.learners()}
    history, lost = [], 0
    for journal in journals.glob("[0-9]*"):
        whole = journal.read_text().rpartition("\n")[0].splitlines()
        chunks = [Chunk(*map(int, line.split())) for line in whole]
        count = reported[int(journal.name)]
        if not count <= len(chunks) <= count + 1:
            raise RuntimeError(f"a learner reported {count} chunks and wrote down {len(chunks)}")
        history += chunks[:count]
        lost += len(chunks) - count
    return history, lost


def _wait(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"learners did not come so far within {limit_s:g} s")
        time.sleep(0.005)
