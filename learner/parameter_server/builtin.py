"""The built-in loop's program where there is a parameter server: how a learner begins and ends.

No MPI: learners know each other by the shards, the cursor and the job directory only. Learner 0
writes the first snapshots of the shards, from the model as it was built or from the newest
checkpoint. Whoever is started again joins what is there and goes on with other chunks.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dlctl import contract
from dlctl.contract import ParameterServer
from learner.checkpoint.rng import seed_all
from learner.checkpoint.writer_process import WriterProcess
from learner.data.chunk_loader import told_as_fault
from learner.data_parallel.consistency import describe
from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault
from learner.exchange.single import SingleExchange
from learner.job.directives import HaltTime
from learner.model.device import prepare
from learner.model.lr_schedule import UsedRate
from learner.parameter_server.checkpoint_state import SavedServer, cursor_at
from learner.parameter_server.coordinator import FirstLearner
from learner.parameter_server.loop import ServerLoop
from learner.parameter_server.model import ServedModel
from learner.parameter_server.ordered_cursor import CursorInTurn
from learner.parameter_server.rendezvous import (
    any_restarted,
    has_begun,
    join_server,
    make_parameters,
    open_cursor,
    set_cursor,
    tell,
    wait_for_first,
    who_is_at,
    write_remote_rows,
)
from learner.parameter_server.solver import AnySolver, find_solver
from learner.system.malloc import keep_freed_memory
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Position, Trained
from learner.training.setup import Job
from psrv.client import Client
from psrv.cursor.base import Cursor
from psrv.cursor.file import FileCursor
from psrv.errors import LateError
from psrv.push.waiting import Patience

_LONGEST_HALT_S = 10.0
"""So long learner 0 waits at a halt until the others have pushed what they were at: half of the
shortest time that a halt leaves it (learner.supervisor.control), since it has to save as well."""


def train_on_server(job: Job, halt: HaltFlag) -> bool:
    """Train to the end (True) or to a halt (False)."""
    writer = WriterProcess() if job.rank == 0 else None  # before torch's threads
    keep_freed_memory()
    device = prepare(job.plan.resources, int(os.environ.get("LOCAL_RANK", "0")), job.warn)
    with told_as_fault():
        return _Learner(job, halt, device, writer).run()


class _Learner:
    """What one learner has."""

    def __init__(
        self, job: Job, halt: HaltFlag, device: torch.device, writer: WriterProcess | None
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
        self._served = ServedModel(
            self._flat, self._solver, settings, self._connect, self._write_rows, job.warn
        )
        self._saved = SavedServer(
            _name(settings, self._solver), self._served, job.say, first=job.rank == 0
        )
        self._trained = Trained(parts, job.schedule(parts), device, server=self._saved)
        self._keeper = job.keeper(parts, SingleExchange(), writer)

    def run(self) -> bool:
        """Train; see train_on_server."""
        self._keeper.check(self._trained)
        if self._job.rank == 0:
            again = has_begun(self._job, self._server.timeout_s)
            began = self._begin_again() if again else self._begin()
        else:
            began = self._begin_later()
        if (position := began) is None:
            return self._halt_early()
        job, training = self._job, self._job.plan.training
        with contextlib.closing(
            open_cursor(job, len(self._parts.train), training.epochs)
        ) as cursor:
            try:
                self._served.join()
            except LateError:  # large shards are made for minutes
                return self._halt_early()
            # Who goes on, or was started again, is to draw other random numbers than before.
            done = cursor.next if any_restarted(job) else position.step
            seed_all(training.seed, job.rank, *([done] if done else []))
            if job.rank == 0:
                return self._train_first(cursor, position)
            finished = self._loop(cursor, None).run()
            self._served.leave()
        return finished

    def _halt_early(self) -> bool:
        self._job.say("halted before the training began")
        self._keeper.close()
        return False

    def _train_first(self, cursor: FileCursor, position: Position) -> bool:
        job = self._job
        first = FirstLearner(
            job.plan.training, self._trained, self._served, self._rate, self._saved, cursor,
            self._keeper, job.reports(), self._halt, self._note, self._server.timeout_s,
            lambda stop: who_is_at(job, cursor, stop),
        )  # fmt: skip
        first.begin(position)
        finished = self._loop(cursor, first).run() and first.finish()
        if not finished:
            longest_s = min(_LONGEST_HALT_S, job.plan.resources.halt_margin_s / 4)
            late = HaltTime(job.directory, job.attempt)
            saved = first.save_last(Patience(longest_s, late=late))
            job.say_halted(position, saved=saved)
        self._served.leave()
        self._keeper.close()
        if finished:
            job.export(self._parts, position)
        return finished

    def _loop(self, cursor: FileCursor, first: FirstLearner | None) -> ServerLoop:
        training = self._job.plan.training
        batch = self._server.batch_samples
        sizes = (batch * self._server.push_every, batch)
        return ServerLoop(
            training, self._trained, self._served, self._saved, self._rate,
            self._in_turn(cursor, sizes[0]), sizes, self._job.reports(), self._halt, first,
        )  # fmt: skip

    def _in_turn(self, cursor: FileCursor, chunk_samples: int) -> Cursor:
        """Return the cursor, for solvers in rounds one whose chunks are taken in turn."""
        if not self._served.in_rounds:
            return cursor
        began = self._saved.cursor or {}
        gaps = bool(began.get("undone"))
        return CursorInTurn(
            cursor, self._job.rank, self._learners, chunk_samples,
            lambda: gaps or self._halt.is_set or any_restarted(self._job), self._server.timeout_s,
            int(began.get("next", 0)),
        )  # fmt: skip

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
            job.say(f"the solver of build is not used: the manifest has {self._server.solver}")
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
        """Return the rate that the manifest has for the server's steps."""
        return None if self._server.solver == "diloco" else self._server.learning_rate

    def _connect(self) -> Client:
        return join_server(self._job, self._parameters, self._solver)

    def _write_rows(self) -> None:
        write_remote_rows(self._job)

    # How it begins ------------------------------------------------------------------------------

    def _begin(self) -> Position | None:
        """Begin the attempt (learner 0): from the newest checkpoint, or from nothing.

        Returns:
            None if a halt comes first. The others, who know of it too, would not come any more.
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
        return position if tell(job, self._parameters, mine, halted) else None

    def _begin_again(self) -> Position:
        """Go on after a death of learner 0: what the server and the cursor have is newer."""
        job = self._job
        wait_for_first(job, self._parameters, self._server.timeout_s)
        position = self._start()
        self._saved.rows = None  # the server has them
        noted = job.directory / contract.position_file(job.attempt)
        with contextlib.suppress(OSError):  # there is none yet, or it can't be read now
            position = max(position, Position(**json.loads(noted.read_text())), key=_told)
        job.say(f"learner 0 was started again, in epoch {position.epoch + 1}")
        return position

    def _begin_later(self) -> Position | None:
        """Wait for learner 0, and begin where it has; return None if a halt comes first."""
        job, timeout_s = self._job, self._server.timeout_s
        if not wait_for_first(job, self._parameters, timeout_s, lambda: self._halt.is_set):
            return None
        try:
            return self._start()
        except UserFault as fault:
            if not any_restarted(job):  # at a begin it is no better than with an allreduce
                raise
            job.warn(f"goes on without the newest checkpoint: {fault.message}")
        job.take_weights(self._parts.model)  # what is frozen is in no shard
        return Position()

    def _start(self) -> Position:
        """Take buffers, frozen parameters and the optimizer's state from the newest checkpoint.

        Or else from the given weights: see Job.start.
        """
        position = self._job.start(self._keeper, self._trained)
        if self._saved.cursor is None:  # of a training without a server
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


def _name(settings: ParameterServer, solver: AnySolver) -> str:
    return f"{settings.solver}, {type(solver).__name__}"


def _told(position: Position) -> tuple[int, int, int]:
    """Order positions: one that was saved before its validation comes before that after it."""
    newest = position.history[-1] if position.history else {}
    return position.epoch, len(newest), position.step
