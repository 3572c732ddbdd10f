"""Checkpoints for a user's own script: `save(step, state)` and `load()`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from learner.checkpoint.engine import CheckpointEngine, Keep
from learner.checkpoint.load import Learners, Loaded, filled
from learner.checkpoint.writer_process import WriterProcess


class Checkpoints(contextlib.AbstractContextManager["Checkpoints"]):
    """Checkpoints in a directory. Every learner must call every method.

        checkpoints = Checkpoints(os.environ["CHECKPOINT_DIR"])
        step, state = checkpoints.load() or (0, None)
        checkpoints.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})

    A state consists of nested dicts and lists of tensors, arrays, numbers and text. All learners
    must pass the same state.
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
        """Open a directory, which need not exist.

        Args:
            directory: on a file system that all learners see.
            keep: how many of the newest checkpoints stay, at least two.
            keep_every_steps: checkpoints at multiples of this step count stay forever.
            learners: how the learners communicate; a single learner by default.
            writer: a writer process that was started before MPI; by default one is started here.
        """
        if learners is None:
            from learner.exchange.single import SingleExchange

            learners = SingleExchange()
        self._rank = learners.rank
        self._unfinished = False
        if self._rank == 0:  # a save creates only the folder itself, no folders above it
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
        """Save a state; return once it is copied in memory, or with `wait` once it is on disk.

        Returns:
            False if nothing was saved: the last checkpoint is still being written, or (with
            `wait`) this one could not be written, and a warning gives the reason.
        """
        if wait:
            self._wait()
        self._unfinished = begun = self._engine.save(step, state)
        return self._wait() if wait else begun

    def _wait(self) -> bool:
        self._unfinished = False
        return self._engine.wait()

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and state of the newest complete checkpoint; None if there is none."""
        return self._engine.load(_read)

    def close(self) -> None:
        """Wait for the last checkpoint, then end the writer.

        While an exception is being handled, `close` does not wait: the other learners may be gone.
        """
        if self._unfinished and sys.exc_info()[0] is None:
            self._wait()
        self._engine.close()

    def __exit__(self, *_: object) -> None:
        """Close the checkpoints."""
        self.close()


def _read(loaded: Loaded) -> tuple[int, dict[str, Any]]:
    return loaded.marker.step, dict(filled(loaded.tree()))
