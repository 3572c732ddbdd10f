"""What `dlctl show` prints about a parameter server: shards, servers, learners' pushes."""

from __future__ import annotations

import time
from typing import Any

from dlctl.cli import output
from dlctl.cli.common import ago
from dlctl.contract.metrics import BATCHES, PUSHES_PER_S, RESTARTS, STALENESS, WAIT_SHARE


def server_line(details: dict[str, Any]) -> str:
    """Return the solver, the shards' nodes, how often learners push and how far they may drift."""
    server = (details.get("plan") or {}).get("parameter_server")
    if not server:
        return ""
    homes = shard_nodes(details)
    hosts = {status["rank"]: status["host"] for status in details.get("servers") or []}
    where = ", ".join(hosts.get(node) or f"node {node}" for node in dict.fromkeys(homes))
    pushes = f"push every {_batches(server['push_every'])}"
    if server["pull_every"] != server["push_every"]:
        pushes += f", pull every {_batches(server['pull_every'])}"
    shards = "1 shard" if len(homes) == 1 else f"{len(homes)} shards"
    return f"{server['solver']}, {shards} on {where}\n{pushes}, {_drift(server)}"


def _batches(count: int) -> str:
    return "batch" if count == 1 else f"{count} batches"


def _drift(server: dict[str, Any]) -> str:
    staleness: int | None = server["staleness"]
    if staleness is None:
        own = server["solver"] == "own"  # only the class knows whether it waits for all
        return "waiting is up to its class" if own else "no bound on staleness"
    return f"staleness at most {staleness}" if staleness else "all wait for one another"


def shard_nodes(details: dict[str, Any]) -> list[int]:
    """Return the node of each shard: as planned, or its new node after the loss of one."""
    homes = details.get("homes") or details["plan"]["parameter_server"]
    return list(homes["shard_nodes"])


def print_servers(details: dict[str, Any]) -> None:
    """Print a row for each learner's pushes, and one for each node's server."""
    learners, servers = details.get("learners") or [], details.get("servers") or []
    if any(PUSHES_PER_S in status["metrics"] for status in learners):
        output.line("")
        output.table(["learner", "batches", "pushes/s", "staleness", "waits", "restarts"],
                     [_pushes(status) for status in learners])  # fmt: skip
        if told := rates(learners, details["plan"]):
            output.line(told)
    if servers:
        homes = shard_nodes(details)
        lost = (details.get("homes") or {}).get("lost_nodes") or []
        output.line("")
        output.table(["server", "host", "state", "primary of", "heartbeat"],
                     [_server(status, homes, lost) for status in servers])  # fmt: skip


def _server(status: dict[str, Any], homes: list[int], lost: list[int]) -> list[str]:
    node = status["rank"]
    mine = [str(shard) for shard, home in enumerate(homes) if home == node]
    state = "lost" if node in lost else state_and_reason(status)
    seen = ago(time.time() - status["heartbeat_at"])
    return [str(node), status["host"], state, _shards(mine), seen]


def state_and_reason(status: dict[str, Any]) -> str:
    """Return the state of a process, and why it is not at work."""
    state, reason = status["state"], status["reason"]
    return f"{state}: {reason}" if reason and state != "TRAINING" else str(state)


def _shards(numbers: list[str]) -> str:
    if len(numbers) <= 1:
        return f"shard {numbers[0]}" if numbers else "-"
    return f"shards {', '.join(numbers)}" if len(numbers) <= 8 else f"{len(numbers)} shards"


def _pushes(status: dict[str, Any]) -> list[str]:
    known = status["metrics"]
    waits = known.get(WAIT_SHARE)
    return [
        str(status["rank"]),
        _number(known.get(BATCHES), ".0f"),
        _number(known.get(PUSHES_PER_S), ".3g"),
        _number(known.get(STALENESS), ".1f"),
        "-" if waits is None else f"{100 * waits:.0f} %",
        _number(known.get(RESTARTS, 0.0), ".0f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def rates(learners: list[dict[str, Any]], plan: dict[str, Any]) -> str:
    """Return samples (of the built-in loop) and pushes a second of all learners that run."""
    running = [status["metrics"].get(PUSHES_PER_S) or 0.0 for status in learners
               if status["state"] == "TRAINING" and status["exit_code"] is None]  # fmt: skip
    pushes = f"{sum(running):.3g} pushes/s in all" if sum(running) else ""
    if not plan["framework"]["job"] or not pushes:
        return pushes
    # Plans made before batch_samples was decided there have none.
    batch = plan["parameter_server"].get("batch_samples") or -(
        -plan["training"]["batch_size"] // plan["resources"]["learners"]
    )
    samples = sum(running) * plan["parameter_server"]["push_every"] * batch
    return f"{samples:.0f} samples/s · {pushes}"
