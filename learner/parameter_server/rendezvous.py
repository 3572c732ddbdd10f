"""The rendezvous of an attempt's learners and servers, through files of the job directory.

Learner 0 writes the first snapshot of every shard, and then publishes what the shards hold. The
servers make their shards from that, and the other learners compare it with their model. Then all
join the shards of their node, and open the attempt's cursor.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from dlctl import contract
from dlctl.contract import Parameters, ParameterServer, State, Status
from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault
from learner.job.context import LearnerContext
from learner.job.directives import HaltTime, is_there
from learner.parameter_server.solver import AnySolver, describe_solver
from learner.system.segments import server_folder
from psrv import client
from psrv.client import Client
from psrv.cursor.file import FileCursor
from psrv.push.snapshots import fresh_snapshots, write_snapshot
from psrv.push.waiting import FOR_LEARNERS, WaitPolicy, wait_until
from psrv.solvers.partition import ShardSet, ranges_of

_LOOK_EVERY_S = 0.1


def make_parameters(
    flat: FlatParameters, solver: AnySolver, settings: ParameterServer, model: Sequence[str]
) -> Parameters:
    """Return the record that describes a learner's model and solver.

    Args:
        model: What must be the same on all learners, one line each.
    """
    description = [*model, describe_solver(settings, solver)]
    digest = hashlib.sha256("\n".join(description).encode()).hexdigest()
    dtype = str(flat.dtype).removeprefix("torch.")
    return Parameters(flat.count, dtype, 1 + solver.rows, digest, description)


def has_begun(context: LearnerContext, timeout_s: float) -> bool:
    """Return whether learner 0 has published the parameters: then it was restarted.

    Args:
        timeout_s: How long the file may be unreadable.

    Raises:
        UserFault: It is unreadable for longer.
    """
    readable_at = time.monotonic()
    while True:
        try:
            return contract.read_record(Parameters, _parameters_path(context)) is not None
        except (OSError, contract.ContractError) as error:
            _check_outage(context, error, readable_at, timeout_s)
        time.sleep(_LOOK_EVERY_S)


def publish_parameters(
    context: LearnerContext,
    parameters: Parameters,
    rows: Sequence[torch.Tensor],
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Write the first snapshots, and then publish what they hold (learner 0).

    Args:
        rows: The weights and the solver's rows, each of shape (count,).
        stopped: Returns whether to stop; called before publishing, which can't be undone.

    Returns:
        False if it was stopped.
    """
    shards = len(settings_of(context).shard_nodes)
    for shard, (start, stop) in enumerate(ranges_of(parameters, shards)):
        path = context.directory / contract.snapshot_file(context.attempt, shard)
        write_snapshot(path, [(0, [row[start:stop] for row in rows])], stop - start)
    if stopped():
        return False
    contract.write_whole(_parameters_path(context), contract.to_json(parameters))
    return True


def wait_for_coordinator(
    context: LearnerContext,
    mine: Parameters,
    timeout_s: float,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until learner 0 has published the parameters; return False if `stopped` comes first.

    There is no time limit on its `build`: the supervisor ends all learners if learner 0 is given
    up. But a user's own program may have ended well without joining.

    Args:
        timeout_s: How long the file may be unreadable.
        stopped: Returns whether to stop; called often.

    Raises:
        UserFault: Learner 0 has another model, its file is unreadable, or it has ended.
    """
    readable_at = time.monotonic()
    while True:
        ended = _has_ended_well(context)  # checked first: it may have published just before
        try:
            if (first := contract.read_record(Parameters, _parameters_path(context))) is not None:
                _compare(first, mine)
                return True
            readable_at = time.monotonic()
        except (OSError, contract.ContractError) as error:
            _check_outage(context, error, readable_at, timeout_s)
        if stopped():
            return False
        if ended:
            raise UserFault(
                "learner 0 has ended, and never joined the parameter server, which has the weights "
                "that it begins with",
                hint="let learner 0 join first of all, whatever else it does",
            )
        time.sleep(_LOOK_EVERY_S)


def _check_outage(
    context: LearnerContext, error: Exception, readable_at: float, timeout_s: float
) -> None:
    """Give up if the file system, which may fail for a moment, has failed for too long."""
    if time.monotonic() > readable_at + timeout_s:
        raise UserFault(
            f"{_parameters_path(context)} can't be read for {timeout_s:g} s: {error}",
            hint="see to the file system of the job directory, and resume",
        ) from error


def _has_ended_well(context: LearnerContext) -> bool:
    path = context.directory / contract.status_file(context.attempt, "learner", 0)
    status = contract.readable_record(Status, path)
    return status is not None and status.state is State.COMPLETED


def _compare(first: Parameters, mine: Parameters) -> None:
    if first.model == mine.model:
        return
    pairs = zip_longest(first.description, mine.description, fillvalue="nothing")
    theirs, ours = next(((a, b) for a, b in pairs if a != b), (first.model, mine.model))
    raise UserFault(
        f"this learner's model differs from learner 0's, which the parameter server has: learner 0 "
        f"has {theirs!r}, this one {ours!r}",
        hint="build the same on every learner, from the same arguments; and resume or submit "
        "again where the code has changed",
    )


def join_server(context: LearnerContext, parameters: Parameters, solver: AnySolver) -> Client:
    """Join the shards of this learner's node; see psrv.client.join.

    Raises:
        ServerError: They are not there in time.
    """
    plan, settings = context.plan, settings_of(context)
    shards = ShardSet(
        server_folder(plan.training_id, context.attempt, context.directory),
        parameters,
        len(settings.shard_nodes),
        context.attempt,
        context.directory,
    )
    return client.join(
        shards,
        solver,
        WaitPolicy(settings.timeout_s, late=HaltTime(context.directory, context.attempt)),
        rank=context.rank,
        learners=plan.resources.learners,
        staleness=settings.staleness,
    )


def write_remote_rows(context: LearnerContext) -> None:
    """Have snapshots written now, if learner 0's node is not the primary of all shards.

    Raises:
        ServerError: A primary has not answered in time, or in the time that a halt leaves.
    """
    settings = settings_of(context)
    if any(settings.shard_nodes):
        shards = len(settings.shard_nodes)
        late = HaltTime(context.directory, context.attempt)
        fresh_snapshots(context.directory, context.attempt, shards, settings.timeout_s, late)


def set_cursor(
    context: LearnerContext, samples: int, passes: int, state: Mapping[str, Any]
) -> None:
    """Set the attempt's cursor to a state (learner 0, before it publishes the parameters)."""
    path = context.directory / contract.cursor_file(context.attempt)
    with FileCursor(path, samples, passes) as cursor:
        cursor.restore(state)


def open_cursor(context: LearnerContext, samples: int, passes: int) -> FileCursor:
    """Open the attempt's cursor, and publish this learner's number in it."""
    cursor = FileCursor(context.directory / contract.cursor_file(context.attempt), samples, passes)
    name = context.directory / contract.cursor_learner_file(context.attempt, context.rank)
    with contextlib.suppress(
        OSError
    ):  # on a full disk; only the supervisor needs it, to expel this learner
        contract.write_whole(name, f"{cursor.learner}\n")
    return cursor


def any_restarted(context: LearnerContext) -> bool:
    """Return whether any learner of the attempt was restarted or given up."""
    return is_there(context.directory / contract.restarted_file(context.attempt))


def name_stragglers(context: LearnerContext, cursor: FileCursor, stop: int) -> str:
    """Return in words which other learners hold samples before a position."""
    numbers = {
        entry.learner
        for entry in cursor.learners()
        if entry.learner != cursor.learner and any(start < stop for start, _ in entry.leases)
    }
    ranks = []
    for rank in range(context.plan.resources.learners):
        path = context.directory / contract.cursor_learner_file(context.attempt, rank)
        with contextlib.suppress(OSError, ValueError):  # it may not be written yet
            if int(path.read_text()) in numbers:
                ranks.append(str(rank))
    return f"rank {', '.join(ranks)}" if ranks else "other learners"


def wait_until_alone(cursor: FileCursor, wait_policy: WaitPolicy) -> None:
    """Wait until no other learner has the cursor open: then their pushes are at the primaries.

    Args:
        cursor: A finished one, or one whose learners halt: they leave by themselves.
    """

    def alone() -> bool:
        return not any(e.alive and e.learner != cursor.learner for e in cursor.learners())

    wait_until(alone, wait_policy, FOR_LEARNERS)


def settings_of(context: LearnerContext) -> ParameterServer:
    """Return the plan's settings of the parameter server."""
    assert context.plan.parameter_server is not None
    return context.plan.parameter_server


def _parameters_path(context: LearnerContext) -> Path:
    return context.directory / contract.parameters_file(context.attempt)
