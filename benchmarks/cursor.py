"""Chunks that two learners take from the global cursor (`python -m benchmarks.cursor`).

    cursor_file_2  two processes: a locked file with leases. The floor counts in a locked file,
                   without leases; `sqlite` counts in a database (WAL).

Each chunk is reported done in the call that takes the next one. `zookeeper` increments a counter,
like the paper's cursor; it runs where Debian's `zookeeper` and Python's `kazoo` are installed.

    python -m benchmarks.cursor --accounting 50    kill learners instead (see cursor_accounting)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from benchmarks import cursor_accounting, zookeeper
from benchmarks.learners import REPOSITORY
from benchmarks.report import (
    Load,
    Result,
    compare,
    end_in_order,
    leave_out,
    options,
    rounds,
    say,
)

PROCESSES = 2
UNIT = "chunks/s"
_ROUNDS = rounds(11)
_COUNTS = {
    "ours": (20_000, 20_000, 100), "floor": (20_000, 20_000, 100),
    "sqlite": (4000, 4000, 20), "zookeeper": (100, 100, 5),
}  # fmt: skip
"""Chunks that a process takes per turn."""


class Processes:
    """Two processes that take chunks by one method, and sleep between their turns."""

    def __init__(self, kind: str, where: str, count: int) -> None:
        self._count = count
        argv = [sys.executable, "-m", "benchmarks.cursor_process", kind, where, str(count)]
        self._processes = [
            subprocess.Popen(argv, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(PROCESSES)
        ]

    def __enter__(self) -> Processes:
        for process in self._processes:
            self._read(process)  # it is ready
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for process in self._processes:
            if kind is not None:
                process.kill()
            process.communicate()

    def chunks_per_s(self) -> float:
        """Let each take its chunks; return the chunks per second of both."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(b"go\n")
            process.stdin.flush()
        spans = [tuple(map(float, self._read(process).split())) for process in self._processes]
        start, end = min(span[0] for span in spans), max(span[1] for span in spans)
        return PROCESSES * self._count / (end - start)

    @staticmethod
    def _read(process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{process.args!r} ended with code {process.wait()}")
        return line


def measure(load: Load) -> Iterator[Result]:
    """Yield the one result."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlctl-bench-")))
        places = {kind: str(folder / kind) for kind in ("ours", "floor", "sqlite")}
        if zookeeper.is_installed():
            places["zookeeper"] = stack.enter_context(zookeeper.server(folder))
        else:
            leave_out("zookeeper", why="it or kazoo is not installed")
        ways = {
            kind: stack.enter_context(Processes(kind, where, _COUNTS[kind][load])).chunks_per_s
            for kind, where in places.items()
        }
        yield compare("cursor_file_2", ways.pop("ours"), ways.pop("floor"), ways,
                      rounds=_ROUNDS[load], unit=UNIT)  # fmt: skip


def account(rounds: int) -> bool:
    """Kill learners for `rounds` rounds, print the account, and return whether it balances."""
    result = cursor_accounting.account_file(rounds)
    print(result.to_json(), flush=True)
    return result.missing == result.twice == 0 and result.passes_finished > 0


def main() -> None:
    """Print each result as a line."""
    parser = options("benchmarks.cursor")
    parser.add_argument("--accounting", type=int, metavar="ROUNDS",
                        help="kill learners at random for so many rounds instead")  # fmt: skip
    given = parser.parse_args()
    end_in_order()
    if given.accounting is not None:
        sys.exit(0 if account(given.accounting) else 1)
    for result in measure(given.load):
        say(result.to_json())


if __name__ == "__main__":
    main()
