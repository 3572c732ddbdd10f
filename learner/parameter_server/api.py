"""The parameter server for a user's own script, in a dlctl job or alone.

    from learner import parameter_server

    with parameter_server.join(model, train, epochs=10, batch_size=32, lr=0.05) as server:
        for inputs, targets in server.batches():
            loss(model(*inputs), targets).backward()
            server.step()

With a solver that takes weights (elastic averaging, say) the script's own optimizer steps before
`server.step()`, and the script clears the gradients itself. In a job, the manifest's
`parameter_server` has the settings, and the learners share the samples and the model. Alone, the
same script has a private server.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from dlctl.contract import Parameters, ParameterServer
from learner.data.chunk_loader import ChunkLoader
from learner.data.prefetch import Batch
from learner.data_parallel.consistency import describe_parameters
from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault
from learner.job.context import LearnerContext, find_context
from learner.job.directives import HaltTime
from learner.job.metrics import PROGRESS_INTERVAL_S, Progress
from learner.job.stacks import register
from learner.model.trainable import refuse_batch_statistics
from learner.parameter_server.model import ModelOnServers
from learner.parameter_server.rendezvous import (
    has_begun,
    join_server,
    make_parameters,
    open_cursor,
    publish_parameters,
    set_cursor,
    wait_for_coordinator,
    wait_until_alone,
    write_remote_rows,
)
from learner.parameter_server.solver import OWN, AnySolver, find_solver
from learner.system.segments import segment_folder
from psrv import client
from psrv.cursor.base import chunk_count
from psrv.cursor.file import FileCursor
from psrv.push.waiting import WaitPolicy, to_standard_error
from psrv.shard.format import PRIMARY, create_shard
from psrv.shard.private_folder import temporary_folder
from psrv.solvers import native
from psrv.solvers.partition import ShardSet, layout_of

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - shared memory is what it is for
_LINGER_S = 0.05
_ALONE_TIMEOUT_S = 60.0
_joined: set[tuple[Path, int]] = set()
"""The jobs and attempts whose servers this process has joined."""


def join(
    model: torch.nn.Module | Iterable[torch.nn.Parameter],
    dataset: Any,
    *,
    epochs: int,
    batch_size: int,
    seed: int = 0,
    lr: float | None = None,
    solver: Any = None,
    settings: ParameterServer | None = None,
    state: dict[str, Any] | None = None,
) -> Server:
    """Join the job's parameter server with a model, whose weights then come from the server.

    Args:
        model: The same on all learners. Its parameters become views of memory made here, so put it
            on its device, in its dtype, and unfreeze it before.
        dataset: The training samples, a map-style dataset; the same on all learners.
        epochs: Passes over it.
        batch_size: Samples of one learner's batch.
        seed: With the epoch, fixes the order of the samples.
        lr: The learning rate of the server's steps, if the manifest has none.
        solver: The user's own, for a script that runs alone.
        settings: What a manifest would contain; for a script that runs alone.
        state: From `Server.state`, to continue from, with the model's weights as they were; in a
            job, learner 0's counts, at its first start.

    Raises:
        UserFault: The job has no parameter server, this process has joined it before, or the
            learners' models differ.
        psrv.errors.ServerError: There is no server in time.
    """
    context = find_context()
    if context is not None and context.plan.parameter_server is None:
        if context.plan.resources.learners > 1:
            raise UserFault(
                "the manifest of this job has no parameter_server",
                hint="add one, or use learner.ddl",
            )
        settings = context.plan.alone_on_server or settings
        context = None  # one learner needs no server
    if context is not None:
        settings = context.plan.parameter_server
        if (context.directory, context.attempt) in _joined:  # all samples are given out already
            raise UserFault(
                "parameter_server.join() was called before: a job has one server, for one training",
                hint="join once, with all the epochs; another training is another job",
            )
    settings = settings or ParameterServer("downpour_sgd" if solver is None else OWN, [0])
    data = TrainingData(dataset, epochs, batch_size, seed)
    server = Server(context, settings, model, data, lr=lr, solver=solver, state=state)
    if context is not None:
        _joined.add((context.directory, context.attempt))
    return server


@dataclass(frozen=True)
class TrainingData:
    """The training data: the same samples in the same order on all learners."""

    dataset: Any
    """Map-style."""
    epochs: int
    batch_size: int
    """Samples of one learner's batch."""
    seed: int
    """With the epoch, fixes the order of the samples."""

    def describe(self) -> str:
        """Return the line that must be the same on all learners."""
        return (
            f"{self.epochs} epochs of {len(self.dataset)} samples in the order of seed {self.seed}"
        )


class Server(AbstractContextManager["Server"]):
    """One learner's connection to a parameter server, as `join` returns it."""

    def __init__(
        self,
        context: LearnerContext | None,
        settings: ParameterServer,
        model: torch.nn.Module | Iterable[torch.nn.Parameter],
        data: TrainingData,
        *,
        lr: float | None,
        solver: Any,
        state: dict[str, Any] | None,
    ) -> None:
        self._context = context
        self._settings = settings
        self.rank = 0 if context is None else context.rank
        self.size = 1 if context is None else context.plan.resources.learners
        self.epoch = 0
        """The epoch of the newest batch, counted from 0."""
        self._solver = find_solver(settings, self.size, solver)
        self._rate = lr if settings.learning_rate is None else settings.learning_rate
        if self._rate is None and not self._solver.sends_weights:
            raise UserFault(
                f"with {settings.solver} the server takes the steps, and there is no learning rate",
                hint="give lr, or parameter_server.learning_rate in the manifest",
            )
        if isinstance(model, torch.nn.Module) and self.size > 1:
            refuse_batch_statistics(model)
        named = list(model.named_parameters()) if isinstance(model, torch.nn.Module) else [
            (str(number), parameter) for number, parameter in enumerate(model)
        ]  # fmt: skip
        self._flat = FlatParameters(
            (parameter for _, parameter in named),
            gradients=not self._solver.sends_weights, accrue=settings.push_every > 1,
        )  # fmt: skip
        self._parameters = make_parameters(
            self._flat, self._solver, settings, [*describe_parameters(named), data.describe()]
        )
        self._server_model, self._cursor = self._begin(len(data.dataset), data.epochs, state)
        self._loader = ChunkLoader(
            data.dataset, self._cursor, samples=data.batch_size * settings.push_every,
            seed=data.seed, batch_samples=data.batch_size,
        )  # fmt: skip
        self._batch_size = data.batch_size
        self._last = False
        self._stepped = True
        self._left = False
        self._count = 0
        self._reported_at = 0.0
        progress = os.environ.get("DLCTL_PROGRESS_FILE")
        self._progress = Progress(Path(progress) if progress else None)
        register()
        self._server_model.join()

    # Training -----------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """Yield (inputs, targets) until all learners have done all epochs; call `step` after each.

        Inputs are the model's arguments, a tuple. The unfinished chunk of a learner that died is
        given to another learner.

        Raises:
            psrv.errors.LateError: A halt leaves no time to wait for other nodes (`step` raises it,
                too): save what you have, and leave.
        """
        while True:
            self._check_not_left()
            for chunk, batches in self._loader.chunks():
                self._server_model.join()
                self._server_model.begin()
                self.epoch = chunk.pass_number
                left = chunk_count(chunk.samples, self._batch_size)
                for batch in batches:
                    left -= 1
                    self._last, self._stepped = left == 0, False
                    self._server_model.begin_batch()
                    yield batch
                    self._check_not_left()
                    if not self._stepped:
                        raise UserFault(
                            "a batch was followed by no server.step()",
                            hint="call it once after each batch of server.batches()",
                        )
                self._report_progress(chunk.pass_number * self._cursor.samples + chunk.stop)
            if self._cursor.finished:
                return
            if self._server_model.others_wait:
                self._server_model.leave()
            time.sleep(_LINGER_S)

    def step(self, lr: float | None = None) -> None:
        """Apply the batch: after its backward pass, or after the optimizer's step.

        Args:
            lr: The learning rate from here on.
        """
        self._check_not_left()
        if self._stepped:  # the last batch's gradient would be pushed again
            raise UserFault(
                "server.step() came without a batch before it, or twice after one",
                hint="call it once after each batch of server.batches()",
            )
        self._rate = self._rate if lr is None else lr
        rate = self._rate or 0.0
        self._server_model.step(rate, last=self._last)
        if self._last:
            self._server_model.exchange(rate)
            self._loader.done()  # now, not when the next chunk is asked for: a script may save here
        self._stepped = True
        self._count += 1

    def _report_progress(self, samples: int) -> None:
        now = time.monotonic()
        if now - self._reported_at < PROGRESS_INTERVAL_S:
            return
        self._reported_at = now
        step = samples // (self._batch_size * self.size)
        values = {"batches": float(self._count), **self._server_model.stats.read()}
        self._progress.update(step, self.epoch + 1, values, force=True)

    # Validation, checkpoints, leaving
    # ---------------------------------------------------------------

    def as_on_server(self) -> AbstractContextManager[None]:
        """Put the server's weights into the model meanwhile, to validate or to save them."""
        self._check_not_left()
        self._server_model.join()
        return self._server_model.as_on_server()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep beside the model's weights; see `join`.

        Take it before the weights: they then include everything that it counts as done, except
        pushes of other nodes that are on their way.
        """
        self._check_not_left()
        self._server_model.join()
        return {"cursor": self._cursor.state(), "rows": self._server_model.solver_rows()}

    def pull(self) -> None:
        """Fetch the server's current weights, at the end."""
        self._check_not_left()
        self._server_model.join()
        self._server_model.pull(fresh=True)

    def leave(self) -> None:
        """Leave the server for good; unfinished chunks go to other learners."""
        self._left = True
        self._loader.close()
        self._server_model.leave()
        self._cursor.close()

    def _check_not_left(self) -> None:
        if self._left:
            raise UserFault(
                "this learner has left the parameter server",
                hint="use the server inside of its `with`, and call leave() last",
            )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Pull at the end of the training, and leave; learner 0 leaves last."""
        try:
            if kind is None and not self._left:
                self._end()
        finally:
            self.leave()

    def _end(self) -> None:
        context = self._context
        if context is not None and context.rank == 0 and self._cursor.finished:
            if self._server_model.others_wait:
                self._server_model.leave()
            late = HaltTime(context.directory, context.attempt)
            wait_until_alone(self._cursor, WaitPolicy(self._settings.timeout_s, late=late))
        self.pull()

    # How it begins ------------------------------------------------------------------------------

    def _begin(
        self, samples: int, epochs: int, state: dict[str, Any] | None
    ) -> tuple[ModelOnServers, FileCursor]:
        context, settings = self._context, self._settings
        if context is None:
            return self._begin_alone(samples, epochs, state)
        if context.rank == 0 and not has_begun(context, settings.timeout_s):
            if state is not None:
                set_cursor(context, samples, epochs, state["cursor"])
            publish_parameters(context, self._parameters, [self._flat.gather(), *self._rows(state)])
        wait_for_coordinator(context, self._parameters, settings.timeout_s)
        server_model = ModelOnServers(
            self._flat, self._solver, settings,
            lambda: join_server(context, self._parameters, self._solver),
            lambda: write_remote_rows(context), to_standard_error,
        )  # fmt: skip
        return server_model, open_cursor(context, samples, epochs)

    def _rows(self, state: dict[str, Any] | None) -> torch.Tensor:
        if state is not None:
            return state["rows"]  # type: ignore[no-any-return]
        return torch.zeros(
            self._solver.rows, self._flat.count, dtype=self._flat.dtype, device="cpu"
        )

    def _begin_alone(
        self, samples: int, epochs: int, state: dict[str, Any] | None
    ) -> tuple[ModelOnServers, FileCursor]:
        """Make a private server in this process; its files are removed once they are open."""
        with temporary_folder(_shared_memory(), f"dlctl-{os.getuid()}-alone") as folder:
            joined = _make_shard(folder, self._parameters, self._solver,
                                 [self._flat.gather(), *self._rows(state)])  # fmt: skip
            cursor = FileCursor(folder / "cursor", samples, epochs)
            if state is not None:
                cursor.restore(state["cursor"])
        return ModelOnServers(self._flat, self._solver, self._settings, lambda: joined), cursor


def _shared_memory() -> Path | None:
    """Return where a private server makes its files: in a job, where its watchdog removes them.

    A learner that is killed meanwhile, out of memory, removes nothing itself.
    """
    context = find_context()
    if context is not None:
        folder = segment_folder(context.plan.training_id, context.attempt)
        if folder.is_dir():
            return folder
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None


def _make_shard(
    folder: Path, parameters: Parameters, solver: AnySolver, rows: list[torch.Tensor]
) -> client.Client:
    """Make one shard that holds everything, and join it."""

    def fill(into: Any) -> None:
        for row, value in zip(into, rows, strict=False):  # the last row may be a sum
            row.copy_(value)

    layout = layout_of(parameters, 1, 0, solver, PRIMARY)
    native.build(folder, solver)
    create_shard(folder / "shard-0", layout, 1, learners=1, fill=fill)
    return client.join(ShardSet(folder, parameters, 1, 1), solver, WaitPolicy(_ALONE_TIMEOUT_S))
