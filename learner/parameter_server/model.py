"""A model whose parameters are on a parameter server, as one learner works with it.

With a solver that takes gradients a learner runs Downpour SGD (Dean et al., Large Scale Distributed
Deep Networks, 2012, algorithm 1): after each batch it takes a step of plain SGD on its own copy and
adds up the gradient; it pushes the sum every `push_every` batches, and replaces the copy by the
server's weights every `pull_every` batches. With a solver that takes weights the learner's own
optimizer steps, and the weights themselves are pushed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from dlctl.contract import ParameterServer
from learner.data_parallel.flat_parameters import FlatParameters
from learner.parameter_server.solver import AnySolver
from psrv.client import Client
from psrv.errors import ServerError
from psrv.solvers.solver import RoundSolver


class ModelOnServers:
    """One learner's model, whose parameters the server holds.

    Args:
        flat: The model's parameters, with gradients if the solver takes those.
        connect: Joins the server; called again after `leave`.
        write_rows: Has primaries on other nodes write the solver's rows, for `solver_rows`.
        warn: Gets a line when a checkpoint or a validation has to use older values.
    """

    def __init__(
        self,
        flat: FlatParameters,
        solver: AnySolver,
        settings: ParameterServer,
        connect: Callable[[], Client],
        write_rows: Callable[[], object] = lambda: None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.flat, self._solver, self._connect = flat, solver, connect
        self._write_rows, self._warn = write_rows, warn
        self._timeout_s = settings.timeout_s
        self._client: Client | None = None
        self._pull_every = max(1, settings.pull_every // settings.push_every)
        """Pushes between two pulls."""
        self.in_rounds = isinstance(solver, RoundSolver)
        """Whether all learners push together."""
        self.others_wait = self.in_rounds or settings.staleness is not None
        """Whether others wait for a learner that has joined and does not push."""
        self.sends_weights = solver.sends_weights
        """Whether the learner's own optimizer takes the steps."""
        self._own_weights: torch.Tensor | None = None
        self.stats = ServerStats()

    def join(self) -> None:
        """Join the server and pull, unless this learner has joined."""
        if self._client is None:
            self._client = self._connect()
            self.pull()

    def leave(self) -> None:
        """Leave the server, so that nobody waits for this learner."""
        if self._client is not None:
            client, self._client = self._client, None
            client.leave()

    def pull(self, *, fresh: bool = False) -> None:
        """Pull the server's weights; with `fresh`, as the primaries have them now."""
        if fresh:
            client, timeout_s = self._joined(), self._timeout_s
            self._or_warn(
                lambda: client.refresh(timeout_s), "using this node's replica of the weights"
            )
        self._joined().pull(self.flat.flat)
        self.flat.scatter()

    # A group of batches -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a group of batches: wait for slow learners, if staleness is bounded."""
        self.stats.waited(self._joined().wait_for_others())

    def begin_batch(self) -> None:
        """Clear the gradients, if the server takes them; otherwise the optimizer clears them."""
        if not self.sends_weights:
            self.flat.clear()

    def step(self, rate: float, *, last: bool) -> None:
        """Apply a batch: after its backward pass, or after the optimizer's step.

        Args:
            rate: The learning rate of this moment.
            last: Whether `exchange` comes next.
        """
        if self.sends_weights:
            return
        self.flat.collect()
        if not (last and self._pull_is_next()):  # the pull would overwrite the step
            self.flat.descend(rate)

    def exchange(self, rate: float) -> None:
        """Push the group's result, and pull if that is due; return when both are done.

        Raises:
            UserFault: The model has changed, or its parameters have moved.
        """
        client, flat = self._joined(), self.flat
        flat.check()
        others, began = client.pushes_by_others(), time.monotonic()
        if self.sends_weights:
            weights = flat.gather()
            client.push_pull(weights, weights, rate)
            flat.scatter()
        elif self._pull_is_next():
            client.push_pull(flat.gradient(), flat.flat, rate)
            flat.scatter()
        else:
            client.push(flat.gradient(), rate)
        flat.clear_sum()
        self.stats.pushed(others, time.monotonic() - began)

    def _pull_is_next(self) -> bool:
        return (self.stats.pushes + 1) % self._pull_every == 0

    # Validation and checkpoints of learner 0
    # -------------------------------------------------------

    @contextmanager
    def as_on_server(self) -> Iterator[None]:
        """Put the server's weights into the model meanwhile; then restore the learner's own."""
        weights = self.flat.gather()
        if self._own_weights is None:
            self._own_weights = torch.empty_like(weights)
        self._own_weights.copy_(weights)
        self.pull(fresh=True)
        try:
            yield
        finally:
            self.flat.flat.copy_(self._own_weights)
            self.flat.scatter()

    def solver_rows(self) -> torch.Tensor:
        """Return the solver's rows on the server: shape (rows, count)."""
        rows = self.empty_rows()
        if self._solver.rows:
            self._or_warn(
                self._write_rows, "the checkpoint has older rows of the solver, as saved last"
            )
            self._joined().solver_rows(rows)
        return rows

    def empty_rows(self) -> torch.Tensor:
        """Return uninitialised memory for `solver_rows`."""
        return torch.empty(self._solver.rows, self.flat.count, dtype=self.flat.dtype, device="cpu")

    def _or_warn(self, work: Callable[[], object], otherwise: str) -> None:
        try:
            work()
        except ServerError as error:
            self._warn(f"{error.message}; {otherwise}")

    def _joined(self) -> Client:
        assert self._client is not None, "has not joined"
        return self._client


class ServerStats:
    """Statistics of a learner's work with the server."""

    def __init__(self) -> None:
        self.pushes = 0
        """All since this process began."""
        self._exchange_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._pushes = self._others = 0
        self._waited_s = 0.0

    def waited(self, seconds: float) -> None:
        """Count time spent waiting for others."""
        self._waited_s += seconds
        self._exchange_s += seconds

    def pushed(self, others: int, seconds: float) -> None:
        """Count a push, its seconds, and the others' pushes that the weights had had."""
        self.pushes += 1
        self._pushes += 1
        self._others += others
        self.waited(seconds)

    def read_exchange_s(self) -> float:
        """Return the seconds spent waiting since the last call."""
        exchange_s, self._exchange_s = self._exchange_s, 0.0
        return exchange_s

    def read(self) -> dict[str, float]:
        """Return the means since the last call.

        `staleness`: pushes of others that the weights had had since this learner's pull, when it
        pushed; `wait_share`: the share of the time spent waiting for others and for the server.
        """
        elapsed_s = max(time.monotonic() - self._since, 1e-9)
        values = {
            "pushes": float(self.pushes),
            "pushes_per_s": self._pushes / elapsed_s,
            "wait_share": min(1.0, self._waited_s / elapsed_s),
        }
        if self._pushes:
            values["staleness"] = self._others / self._pushes
        self._begin()
        return values
