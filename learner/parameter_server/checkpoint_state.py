"""The state of a training on a parameter server, for the loop, the coordinator and checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dlctl.contract import Training
from learner.data.sampling import batch_start, places_left
from learner.model.lr_schedule import Schedule, UsedRate
from learner.parameter_server.model import ModelOnServers
from learner.system.signals import HaltFlag
from learner.training.checkpoints import StateMissing, Trained
from learner.training.loop import Reports
from psrv.cursor.base import CursorState, make_state
from psrv.errors import LateError, ServerError


class SavedServer:
    """Implements learner.training.checkpoints.ServerState.

    Args:
        solver: Names the solver that the rows belong to.
        server_model: The model, joined when it is saved.
        say: Prints a line on learner 0.
        is_coordinator: Whether this is learner 0, which alone fills the shards.
    """

    def __init__(
        self,
        solver: str,
        server_model: ModelOnServers,
        say: Callable[[str], None],
        *,
        is_coordinator: bool,
    ) -> None:
        self._solver, self._server_model, self._say = solver, server_model, say
        self._is_coordinator = is_coordinator
        self._saving = False
        self.cursor: dict[str, Any] | None = None
        """The cursor's state: the one to save, or the one that was loaded."""
        self.rows: torch.Tensor | None = None
        """The solver's rows, if they were loaded: shape (rows, count)."""
        self.scheduled = 0
        """How often the user's schedule was stepped."""

    def step_schedule(self, schedule: Schedule, epochs: int) -> None:
        """Step the user's schedule to its state after this many epochs."""
        while self.scheduled < epochs:
            self.scheduled += 1
            schedule.after_epoch(float("nan"))

    @contextmanager
    def saving(self, cursor: CursorState) -> Iterator[None]:
        """Make `state_dict` return the state to save, meanwhile."""
        self.cursor, self._saving = cursor.to_dict(), True
        try:
            yield
        finally:
            self._saving = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state; outside `saving`, the rows have the right shape only."""
        try:
            rows = (
                self._server_model.solver_rows()
                if self._saving
                else self._server_model.empty_rows()
            )
        except LateError:
            raise
        except ServerError as error:  # the snapshots' file system may be unreachable
            raise StateMissing(error.message) from error
        return {
            "solver": self._solver,
            "rows": rows,
            "cursor": self.cursor,
            "scheduled": self.scheduled,
        }

    def needed(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state that this learner needs: all of it, or all but the rows."""
        return state if self._is_coordinator else {**state, "rows": []}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load a state; None if the checkpoint is of a training without a server."""
        if state is None:
            self._say(
                "the checkpoint is of a training without a parameter server: weights, optimizer "
                "and place in the data are taken over, what the solver keeps begins at zero"
            )
            return
        self.cursor, self.scheduled = state["cursor"], state["scheduled"]
        if state["solver"] == self._solver and self._is_coordinator:
            self.rows = state["rows"]
        elif len(state["rows"]):
            self._say(
                f"the checkpoint is of the solver {state['solver']}, and this attempt has "
                f"{self._solver}: what it keeps begins at zero"
            )


def passes_done(state: CursorState) -> int:
    """Return how many passes are over, with all their chunks done."""
    return min([state.next, *(start for start, _ in state.undone)]) // state.samples


def done_since(state: CursorState, epoch: int) -> list[tuple[int, int]]:
    """Return what is done of an epoch and of later ones: the ranges between the gaps.

    Args:
        state: All earlier epochs are done in it.
        epoch: Counted from 0.
    """
    done, begin = [], epoch * state.samples
    for start, stop in (*state.undone, (state.next, state.next)):
        if start > begin:
            done.append((begin, start))
        begin = max(begin, stop)
    return done


def cursor_at(
    samples: int,
    passes: int,
    epoch: int,
    batches: int = 0,
    batch_size: int = 1,
    done: Sequence[Sequence[int]] = (),
) -> dict[str, Any]:
    """Return the state of a cursor in which everything before a batch of an epoch is done.

    Args:
        epoch: Counted from 0.
        batches: Batches of this epoch that synchronous learners have done.
        batch_size: Samples of such a batch.
        done: Ranges, with gaps, that were done before these batches, in this epoch and later ones.
    """
    undone: list[tuple[int, int]] = []
    last = max([epoch, *((stop - 1) // samples for _, stop in done)])
    for each in range(epoch, last + 1):
        left = places_left(samples, each, done)
        gone = batch_start(len(left), batches, batch_size) if each == epoch else 0
        places = left[gone:] + each * samples
        runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        undone += [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
    next_ = (last + 1) * samples
    if undone and undone[-1][1] == next_:
        next_ = undone.pop()[0]
    return make_state(samples, passes, next_, undone).to_dict()


@dataclass(frozen=True)
class ServerTraining:
    """One learner's training on a parameter server."""

    settings: Training
    """The manifest's."""
    trained: Trained
    """The model and what belongs to it."""
    server_model: ModelOnServers
    """The model's parameters, which the server holds."""
    saved: SavedServer
    """The server's state that checkpoints keep."""
    rate: UsedRate
    """The learning rate of pushes."""
    reports: Reports
    """Where this learner reports its progress."""
    halt: HaltFlag
    """Ends the training after the current chunk, and a validation at once."""
    learners: int = 1
