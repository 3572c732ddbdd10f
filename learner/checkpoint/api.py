"""Checkpoints for a script of the user's own: `save(step, state)` and `load()`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from learner.checkpoint.engine import CheckpointEngine, Keep
from learner.checkpoint.load import Loaded, filled
from learner.checkpoint.newest import Learners
from learner.checkpoint.writer_process import WriterProcess


class Checkpoints:
    """Checkpoints in a directory. Every learner calls every method.

        checkpoints = Checkpoints(os.environ["CHECKPOINT_DIR"])
        step, state = checkpoints.load() or (0, None)
        checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    A state is nested dicts and lists of tensors, arrays, numbers and text, and all learners have
    the same.
    """

    def __init__(
        self,
        directory: str | Path,
        keep: int = 2,
        *,
        keep_every_steps: int | None = None,
        learners: Learners | None = None,
        writer: WriterProcess | None = None,
    ) -> None:
        """Open a directory, which need not be there.

        Args:
            directory: On a file system that all learners see.
            keep: How many of the newest stay, at least two.
            keep_every_steps: Those of steps that are a multiple of this stay for ever.
            learners: How the learners agree; a single one by default.
            writer: One that was started before MPI; it is started here otherwise.
        """
        if learners is None:
            from learner.exchange.single import SingleExchange

            learners = SingleExchange()
        self._rank = learners.rank
        self._unfinished = False
        if self._rank == 0:  # at a save there is only the folder itself to make
            with contextlib.suppress(OSError):
                Path(directory).parent.mkdir(parents=True, exist_ok=True)
        self._engine = CheckpointEngine(
            Path(directory), learners, self._say, Keep(keep, keep_every_steps),
            writer or WriterProcess(),
        )  # fmt: skip

    def _say(self, text: str) -> None:
        if self._rank == 0:
            print(text, flush=True)

    def save(self, step: int, state: dict[str, Any], *, wait: bool = False) -> bool:
        """Save a state; return once it is copied in memory, or with `wait` once it is safe.

        Returns:
            False if nothing was saved: the last one is still being written, or (with `wait`) it
            could not be written, as the warning says.
        """
        if wait:
            self._wait()
        self._unfinished = begun = self._engine.save(step, state)
        return self._wait() if wait else begun

    def _wait(self) -> bool:
        self._unfinished = False
        return self._engine.wait()

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and state of the newest whole checkpoint; None if there is none."""
        return self._engine.load(_read)

    def close(self) -> None:
        """Wait for the last one, and end the writer.

        While an error is handled the other learners may be gone: they are not waited for then.
        """
        if self._unfinished and sys.exc_info()[0] is None:
            self._wait()
        self._engine.close()

    def __enter__(self) -> Checkpoints:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def _read(loaded: Loaded) -> tuple[int, dict[str, Any]]:
    return loaded.marker.step, dict(filled(loaded.tree()))
