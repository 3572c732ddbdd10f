"""`dlctl show --all`: learners, and the servers that hold their parameters."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.cli.common import ago, dash
from dlctl.contract import ParameterServer, Plan, State, Status
from dlctl.contract.metrics import (
    BATCHES,
    LOSS,
    PUSHES_PER_S,
    RESERVED,
    RESTARTS,
    SAMPLES_PER_S,
    STALENESS,
    WAIT_SHARE,
)  # fmt: skip
from dlctl.series.utilisation import Use, shares_in_words

if TYPE_CHECKING:
    from dlctl.outputs.insight import TrainingFiles


_MOST_METRICS = 20
_LESS_TOLD = {*RESERVED} - {LOSS}
"""Metrics that the table of learners shows in a column, or not at all."""


def print_learners(files: TrainingFiles, use: Use, now: float) -> None:
    """Print a row for each learner, their newest metrics, and where the time of a step goes.

    Args:
        now: By the site's clock, Unix seconds.
    """
    output.line()
    output.table(["learner", "host", "state", "epoch", "step", "heartbeat"],
                 [_learner(status, now) for status in files.learners])  # fmt: skip
    _print_metrics(files.learners, files.plan.training_id)
    if speed := speed_line([s.metrics for s in files.learners], files.plan, use):
        output.items(speed)


def _learner(status: Status, now: float) -> list[str]:
    ended = status.exit_code is not None or status.signal is not None
    code = f"exit {status.exit_code}" if status.signal is None else f"signal {status.signal}"
    return [
        str(status.rank), status.host,
        f"ended, {code}" if ended else state_and_reason(status),
        dash(status.epoch), dash(status.step),
        ago(now - status.heartbeat_at),
    ]  # fmt: skip


def _print_metrics(learners: list[Status], training_id: str) -> None:
    """Print the first learner's metrics; those of the others are the same, or their own."""
    own = [
        {name: value for name, value in status.metrics.items() if name not in _LESS_TOLD}
        for status in learners
    ]
    first = next((rank for rank, metrics in enumerate(own) if metrics), None)
    if first is None:
        return
    of_all = all(metrics == own[first] for metrics in own)
    output.lines(["", f"metrics{'' if of_all else f' of learner {learners[first].rank}'}:"])
    output.fields({
        f"  {name}": "nan" if value is None else format(value, ".4g")
        for name, value in islice(own[first].items(), _MOST_METRICS)
    })  # fmt: skip
    if (more := len(own[first]) - _MOST_METRICS) > 0:
        output.line(f"  and {more:,} more, which `dlctl metrics {training_id}` prints")
    output.line()


def speed_line(metrics: list[dict[str, float | None]], plan: Plan, use: Use) -> str:
    """Return `1200 samples/s · of a step's time exchange 3 %, data 1 %`, or nothing.

    Args:
        metrics: The newest of each learner.
    """
    rate = next((v for m in metrics if (v := m.get(SAMPLES_PER_S))), None)
    # With a parameter server a learner knows its own rate only.
    parts = [f"{rate:.0f} samples/s"] if rate and not plan.parameter_server else []
    return " · ".join([*parts, *filter(None, [shares_in_words(use)])])


def server_line(files: TrainingFiles) -> str:
    """Return the solver, the shards' nodes, how often learners push and how far they may drift."""
    if (server := files.plan.parameter_server) is None:
        return ""
    homes = _shard_nodes(files)
    hosts = {status.rank: status.host for status in files.servers}
    where = ", ".join(hosts.get(node) or f"node {node}" for node in dict.fromkeys(homes))
    pushes = f"push every {_batches(server.push_every)}"
    if server.pull_every != server.push_every:
        pushes += f", pull every {_batches(server.pull_every)}"
    shards = "1 shard" if len(homes) == 1 else f"{len(homes)} shards"
    return f"{server.solver}, {shards} on {where}\n{pushes}, {_drift(server)}"


def _batches(count: int) -> str:
    return "batch" if count == 1 else f"{count} batches"


def _drift(server: ParameterServer) -> str:
    if server.staleness is None:
        own = server.solver == "own"  # only the class knows whether it waits for all
        return "waiting is up to its class" if own else "no bound on staleness"
    return f"staleness at most {server.staleness}" if server.staleness else (
        "all wait for one another")  # fmt: skip


def _shard_nodes(files: TrainingFiles) -> list[int]:
    """Return the node of each shard: as planned, or its new node after the loss of one."""
    planned = files.plan.parameter_server
    return files.homes.shard_nodes if files.homes else planned.shard_nodes if planned else []


def print_servers(files: TrainingFiles, now: float) -> None:
    """Print a row for each learner's pushes, and one for each node's server."""
    if any(PUSHES_PER_S in status.metrics for status in files.learners):
        output.line()
        output.table(["learner", "batches", "pushes/s", "staleness", "waits", "restarts"],
                     [_pushes(status) for status in files.learners])  # fmt: skip
        if speed := rates(files.learners, files.plan):
            output.line(speed)
    if files.servers:
        lost = files.homes.lost_nodes if files.homes else []
        rows = [_server(each, _shard_nodes(files), lost, now) for each in files.servers]
        output.line()
        output.table(["server", "host", "state", "primary of", "heartbeat"], rows)


def _server(status: Status, homes: list[int], lost: list[int], now: float) -> list[str]:
    node = status.rank
    mine = [str(shard) for shard, home in enumerate(homes) if home == node]
    state = "lost" if node in lost else state_and_reason(status)
    heartbeat = ago(now - status.heartbeat_at)
    return [str(node), status.host, state, _shards(mine), heartbeat]


def state_and_reason(status: Status) -> str:
    """Return the state of a process, and why it is not at work."""
    has_reason = status.reason and status.state is not State.TRAINING
    return f"{status.state}: {status.reason}" if has_reason else str(status.state)


def _shards(numbers: list[str]) -> str:
    if len(numbers) <= 1:
        return f"shard {numbers[0]}" if numbers else "-"
    return f"shards {', '.join(numbers)}" if len(numbers) <= 8 else f"{len(numbers)} shards"


def _pushes(status: Status) -> list[str]:
    known = status.metrics
    waits = known.get(WAIT_SHARE)
    return [
        str(status.rank), dash(known.get(BATCHES), "{:.0f}".format),
        dash(known.get(PUSHES_PER_S), "{:.3g}".format), dash(known.get(STALENESS), "{:.1f}".format),
        dash(waits, lambda share: f"{100 * share:.0f} %"),
        dash(known.get(RESTARTS, 0.0), "{:.0f}".format),
    ]  # fmt: skip


def rates(learners: list[Status], plan: Plan) -> str:
    """Return samples (of the built-in loop) and pushes a second of all learners that run."""
    running = [status.metrics.get(PUSHES_PER_S) or 0.0 for status in learners
               if status.state is State.TRAINING and status.exit_code is None]  # fmt: skip
    pushes = f"{sum(running):.3g} pushes/s in all" if sum(running) else ""
    if not plan.framework.job or not plan.parameter_server or not pushes:
        return pushes
    samples = sum(running) * plan.parameter_server.push_every * plan.parameter_server.batch_samples
    return f"{samples:.0f} samples/s · {pushes}"
