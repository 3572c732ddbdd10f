"""The built-in loop's program on a parameter server: how a learner begins and ends.

No MPI: learners know one another by the shards, the cursor and the job directory only. Learner 0
writes the first snapshots of the shards, from the model as it was built or from the newest
checkpoint. A restarted learner joins what is there and continues with other chunks.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from typing import cast

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dlctl import contract
from dlctl.contract import ParameterServer
from learner.checkpoint.rng import seed_all
from learner.checkpoint.writer_process import WriterProcess
from learner.data.chunk_loader import raise_as_user_fault
from learner.data_parallel.consistency import describe
from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault
from learner.exchange.single import SingleExchange
from learner.job.directives import HaltTime
from learner.model.device import prepare
from learner.model.lr_schedule import UsedRate
from learner.parameter_server.checkpoint_state import SavedServer, ServerTraining, cursor_at
from learner.parameter_server.coordinator import Coordinator
from learner.parameter_server.loop import ServerLoop
from learner.parameter_server.model import ModelOnServers
from learner.parameter_server.ordered_cursor import OrderedCursor
from learner.parameter_server.rendezvous import (
    any_restarted,
    has_begun,
    join_server,
    make_parameters,
    name_stragglers,
    open_cursor,
    publish_parameters,
    set_cursor,
    wait_for_coordinator,
    write_remote_rows,
)
from learner.parameter_server.solver import find_solver
from learner.system.memory import keep_freed_memory
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Position, Trained
from learner.training.setup import TrainingJob
from psrv.cursor.file import FileCursor
from psrv.errors import LateError
from psrv.push.waiting import WaitPolicy

_LONGEST_HALT_S = 10.0
"""How long learner 0 waits at a halt for the others to push what they are working on: half of the
shortest time that a halt leaves it (learner.supervisor.control), since it also has to save."""


def train_on_server(job: TrainingJob, halt: HaltFlag) -> bool:
    """Train to the end (True) or to a halt (False)."""
    writer = WriterProcess() if job.rank == 0 else None  # before torch's threads
    keep_freed_memory()
    device = prepare(job.plan.resources, int(os.environ.get("LOCAL_RANK", "0")), job.warn)
    with raise_as_user_fault():
        return _Learner(job, halt, device, writer).run()


class _Learner:
    """One learner of the built-in loop."""

    def __init__(
        self, job: TrainingJob, halt: HaltFlag, device: torch.device, writer: WriterProcess | None
    ) -> None:
        settings = job.plan.parameter_server
        assert settings is not None
        self._job = job
        self._halt = halt
        self._server: ParameterServer = settings
        self._learners = job.plan.resources.learners
        self._parts = parts = job.build(device)
        self._solver = find_solver(
            settings, self._learners, parts.solver, nodes=job.plan.resources.nodes
        )
        self._check()
        self._rate = UsedRate(parts.optimizer, self._own_rate())
        weights = self._solver.sends_weights
        self._flat = FlatParameters(
            parts.model.parameters(), gradients=not weights, accrue=settings.push_every > 1
        )
        self._parameters = make_parameters(self._flat, self._solver, settings, describe(parts))
        self._server_model = ModelOnServers(
            self._flat, self._solver, settings,
            lambda: join_server(job, self._parameters, self._solver),
            lambda: write_remote_rows(job), job.warn,
        )  # fmt: skip
        self._saved = SavedServer(
            f"{settings.solver}, {type(self._solver).__name__}", self._server_model, job.say,
            is_coordinator=job.rank == 0,
        )  # fmt: skip
        self._trained = Trained(parts, job.schedule(parts), device, server=self._saved)
        self._keeper = job.keeper(parts, SingleExchange(), writer)

    def run(self) -> bool:
        """Train; see train_on_server."""
        self._keeper.check(self._trained)
        if self._job.rank == 0:
            again = has_begun(self._job, self._server.timeout_s)
            began = self._rejoin() if again else self._begin()
        else:
            began = self._begin_after_coordinator()
        if (position := began) is None:
            return self._halt_early()
        job, training = self._job, self._job.plan.training
        with contextlib.closing(
            open_cursor(job, len(self._parts.train), training.epochs)
        ) as cursor:
            try:
                self._server_model.join()
            except LateError:  # large shards take minutes to make
                return self._halt_early()
            # A learner that continues, or was restarted, draws other random numbers than before.
            done = cursor.next if any_restarted(job) else position.step
            seed_all(training.seed, job.rank, *([done] if done else []))
            if job.rank == 0:
                return self._coordinate(cursor, position)
            finished = self._loop(self._training(), cursor, None).run()
            self._server_model.leave()
        return finished

    def _halt_early(self) -> bool:
        self._job.say("halted before the training began")
        self._keeper.close()
        return False

    def _coordinate(self, cursor: FileCursor, position: Position) -> bool:
        job = self._job
        training = self._training()
        coordinator = Coordinator(
            training, cursor, self._keeper, self._note, self._server.timeout_s,
            lambda stop: name_stragglers(job, cursor, stop),
        )  # fmt: skip
        coordinator.begin(position)
        finished = self._loop(training, cursor, coordinator).run() and coordinator.finish()
        if not finished:
            longest_s = min(_LONGEST_HALT_S, job.plan.resources.halt_margin_s / 4)
            late = HaltTime(job.directory, job.attempt)
            saved = coordinator.save_last(WaitPolicy(longest_s, late=late))
            job.say_halted(position, saved=saved)
        self._server_model.leave()
        self._keeper.close()
        if finished:
            job.export(self._parts, position)
        return finished

    def _loop(
        self, training: ServerTraining, cursor: FileCursor, coordinator: Coordinator | None
    ) -> ServerLoop:
        batch = self._server.batch_samples
        sizes = (batch * self._server.push_every, batch)
        return ServerLoop(training, self._ordered(cursor, sizes[0]), sizes, coordinator)

    def _training(self) -> ServerTraining:
        return ServerTraining(
            self._job.plan.training,
            self._trained,
            self._server_model,
            self._saved,
            self._rate,
            self._job.reports(),
            self._halt,
            self._learners,
        )

    def _ordered(self, cursor: FileCursor, chunk_samples: int) -> FileCursor:
        """Return the cursor; with a solver in rounds, one whose chunks are taken in rank order."""
        if not self._server_model.in_rounds:
            return cursor
        began = self._saved.cursor or {}
        gaps = bool(began.get("undone"))
        return cast(FileCursor, OrderedCursor(
            cursor, self._job.rank, self._learners, chunk_samples,
            lambda: gaps or self._halt.is_set or any_restarted(self._job), self._server.timeout_s,
            int(began.get("next", 0)),
        ))  # fmt: skip

    # What there is ------------------------------------------------------------------------------

    def _check(self) -> None:
        job, parts = self._job, self._parts
        if isinstance(parts.schedule, ReduceLROnPlateau):
            raise UserFault(
                "build returned the schedule ReduceLROnPlateau, which needs the validation loss, "
                "and with a parameter_server learner 0 alone has that",
                hint="use another schedule, or training.learning_rate_schedule in the manifest",
            )
        if parts.solver is not None and self._server.solver != "own":
            job.say(f"build's solver is not used: the manifest has {self._server.solver}")
        group, kind = parts.optimizer.param_groups[0], type(parts.optimizer).__name__
        plain = kind == "SGD" and not (group["momentum"] or group["weight_decay"])
        one = len({float(group["lr"]) for group in parts.optimizer.param_groups}) == 1
        if not self._solver.sends_weights and not (plain and one):
            own = self._own_rate()
            used = f"its learning rate ({float(group['lr']):g})" if own is None else "nothing"
            job.say(
                f"with {self._server.solver} the server takes the steps: of the optimizer {kind} "
                f"{used} is used"
            )

    def _own_rate(self) -> float | None:
        """Return the learning rate that the manifest has for the server's steps."""
        return None if self._server.solver == "diloco" else self._server.learning_rate

    # How it begins ------------------------------------------------------------------------------

    def _begin(self) -> Position | None:
        """Begin the attempt on learner 0, from the newest checkpoint or from nothing.

        Returns:
            None if a halt comes first: the other learners, which see it too, would not join any
            more.
        """
        job, saved = self._job, self._saved
        position = self._start()
        samples, training = len(self._parts.train), job.plan.training
        assert saved.cursor is not None
        set_cursor(job, samples, training.epochs, saved.cursor)
        rows = saved.rows
        if rows is None:
            rows = torch.zeros(
                self._solver.rows, self._flat.count, dtype=self._flat.dtype, device="cpu"
            )
        mine, halted = [self._flat.gather(), *rows], lambda: self._halt.is_set
        saved.rows = None
        return position if publish_parameters(job, self._parameters, mine, halted) else None

    def _rejoin(self) -> Position:
        """Continue after a restart of learner 0: the server's and the cursor's states are newer."""
        job = self._job
        wait_for_coordinator(job, self._parameters, self._server.timeout_s)
        position = self._start()
        self._saved.rows = None  # the server has the rows
        noted = job.directory / contract.position_file(job.attempt)
        with contextlib.suppress(OSError):  # there is none yet, or it is unreadable now
            position = max(position, Position(**json.loads(noted.read_text())), key=_position_order)
        job.say(f"learner 0 was started again, in epoch {position.epoch + 1}")
        return position

    def _begin_after_coordinator(self) -> Position | None:
        """Wait for learner 0, and begin where it begins; return None if a halt comes first."""
        job, timeout_s = self._job, self._server.timeout_s
        if not wait_for_coordinator(job, self._parameters, timeout_s, lambda: self._halt.is_set):
            return None
        try:
            return self._start()
        except UserFault as fault:
            if not any_restarted(job):  # at the beginning, fail as an allreduce would
                raise
            job.warn(f"continues without the newest checkpoint: {fault.message}")
        job.take_weights(self._parts.model)  # frozen parameters are in no shard
        return Position()

    def _start(self) -> Position:
        """Load buffers, frozen parameters and the optimizer's state from the newest checkpoint.

        Without a checkpoint, load the given weights: see TrainingJob.start.
        """
        position = self._job.start(self._keeper, self._trained)
        if self._saved.cursor is None:  # the checkpoint is of a training without a server
            self._saved.scheduled = position.epoch
            training = self._job.plan.training
            self._saved.cursor = cursor_at(
                len(self._parts.train), training.epochs, position.epoch, position.batch,
                training.batch_size, position.done,
            )  # fmt: skip
        return position

    def _note(self, position: Position) -> None:
        path = self._job.directory / contract.position_file(self._job.attempt)
        with contextlib.suppress(OSError):  # a full disk
            contract.write_whole(path, json.dumps(asdict(position)))


def _position_order(position: Position) -> tuple[int, int, int]:
    """Return the sort key of a position; validated positions come after unvalidated ones."""
    newest = position.history[-1] if position.history else {}
    return position.epoch, len(newest), position.step
