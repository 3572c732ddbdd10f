"""What `dlctl show --all` prints about one training."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

from dlctl.cli import output
from dlctl.cli.common import ago
from dlctl.cli.views.show_server import print_servers, server_line, state_and_reason
from dlctl.contract import Next, State, attempt_dir
from dlctl.contract.metrics import (
    LOSS,
    MEMORY_BYTES,
    RESERVED,
    SAMPLES_PER_S,
    STEP_PARTS,
    STEP_S,
)
from dlctl.contract.programs.tracebacks import shorten, without_speaker
from dlctl.logs.shown import shown
from dlctl.service.telling import STARTED
from dlctl.units import several

_MOST_METRICS = 20
_LESS_TOLD = {*RESERVED} - {LOSS}
"""Metrics that the table of learners shows in a column, or not at all."""


def _weights(weights: dict[str, Any]) -> str:
    return f"{weights['path']} of {weights['model']}" if weights else ""


def print_details(details: dict[str, Any]) -> None:
    """Print what `describe` returned."""
    plan = details.get("plan") or {}
    details = details | {role: _as_it_was(details, role) for role in ("learners", "servers")}
    output.fields({
        "training": details["training_id"], "name": details["name"],
        "state": details["shown_state"], "reason": details["reason"],
        **verdict_fields(details),
        "site": details["site"], "attempt": details["attempt"], "job": details["job_id"],
        "progress": "" if (done := details.get("done")) is None else f"{100 * done:.0f} %",
        "created": _date(details["created_at"]), "folder": details["folder"],
        "job directory": details["job_dir"],
        "asked": _asked(plan["resources"], _links(plan)) if plan else "",
        "learners": _per_attempt(details.get("attempts") or []),
        "new code": _new_code(details.get("attempts") or []),
        "parameter server": server_line(details),
        "runs": _runs(plan["framework"]) if plan else "",
        "model": plan.get("model", ""),
        "starts from": _weights(plan.get("weights") or {}),
        "output": details.get("output", ""),
        "stored as": ", ".join(details.get("stored_as") or []),
        "orders": "; ".join(order["text"] for order in details.get("orders") or []),
    })  # fmt: skip
    for note in plan.get("not_in_this_version", []):
        output.warn(note)
    if learners := details.get("learners"):
        output.line("")
        output.table(["learner", "host", "state", "epoch", "step", "heartbeat"],
                     [_learner(status) for status in learners])  # fmt: skip
        for status in learners:
            if status["state"] == State.TRAINING.value and status["reason"]:
                output.warn(f"learner {status['rank']}: {status['reason']}")
        _print_metrics(learners)
        sampled = any("of memory" in each for each in details.get("utilisation") or [])
        newest = [status["metrics"] for status in learners]
        if speed := speed_line(newest, plan, memory=not sampled):
            output.items(speed)
    if plan.get("parameter_server"):
        print_servers(details)
    _print_meaning(details)
    _print_last_words(details)
    if words := details.get("job_output"):
        output.line()
        output.line("last lines of the job's output:")
        for text in words:
            output.line(f"  {text}")
    if details["hint"]:
        output.advice(details["hint"])
    if details.get("next_command"):
        output.hint(details["next_command"])


def _as_it_was(details: dict[str, Any], role: str) -> list[dict[str, Any]]:
    """Return the statuses; after the end of a training, no process is shown as still at work."""
    statuses = details.get(role) or []
    if not State(details["state"]).final:
        return statuses
    return [
        status if State(status["state"]).final
        else status | {"state": f"was {state_and_reason(status)}", "reason": ""}
        for status in statuses
    ]  # fmt: skip


def _links(plan: dict[str, Any]) -> int:
    """Return how many jobs the whole training is expected to take."""
    return int((plan.get("lifecycle") or {}).get("links", 1))


def _asked(resources: dict[str, Any], links: int = 1) -> str:
    from dlctl.units import counted, format_duration, format_size

    parts = [
        f"{counted(resources['learners'], 'learner')} on {counted(resources['nodes'], 'node')}",
        f"{counted(resources['cpus_per_learner'], 'CPU')} each",
    ]
    if resources["gpus_per_learner"]:
        parts.append(f"{counted(resources['gpus_per_learner'], 'GPU')} each")
    if resources["memory_bytes_per_learner"]:
        parts.append(f"{format_size(resources['memory_bytes_per_learner'])} each")
    if resources["time_s"]:
        each = f" in each of about {links} jobs" if links > 1 else ""
        parts.append(f"at most {format_duration(resources['time_s'])}{each}")
    return ", ".join(parts)


def _new_code(attempts: list[dict[str, Any]]) -> str:
    """Return `from attempt 2 on: train.py`, for each attempt that got other code."""
    told = [(each["attempt"], each.get("code_changes") or []) for each in attempts]
    parts = [
        f"from attempt {attempt} on: {several(changes)}" for attempt, changes in told if changes
    ]
    return "; ".join(parts)


def _per_attempt(attempts: list[dict[str, Any]]) -> str:
    """Return `2 in attempt 1, 1 from attempt 2 on`, if the number ever changed."""
    changes: list[tuple[int, int]] = []
    for attempt in attempts:
        learners = attempt["resources"]["learners"]
        if not changes or learners != changes[-1][1]:
            changes.append((attempt["attempt"], learners))
    if len(changes) < 2:
        return ""
    ends = [first - 1 for first, _ in changes[1:]]
    told = [
        f"{learners} in attempt {first}" if first == end
        else f"{learners} in attempts {first} to {end}"
        for (first, learners), end in zip(changes, ends, strict=False)
    ]  # fmt: skip
    return ", ".join([*told, f"{changes[-1][1]} from attempt {changes[-1][0]} on"])


def speed_line(
    metrics: list[dict[str, float | None]], plan: dict[str, Any], *, memory: bool = True
) -> str:
    """Return `1200 samples/s · exchange 3 % · data 1 % of a step just now`, or nothing.

    Args:
        metrics: The newest of each learner; shares are means over the learners that report them.
        memory: Whether to tell the learners' own figure, which samples of the node make needless.
    """
    from dlctl.series.readable import readable

    rate = next((v for m in metrics if (v := m.get(SAMPLES_PER_S))), None)
    step_s = _mean(metrics, STEP_S)
    if step_s is None and rate:
        step_s = plan["training"]["batch_size"] / rate
    # With a parameter server a learner knows its own rate only.
    parts = [f"{rate:.0f} samples/s"] if rate and not plan.get("parameter_server") else []
    if memory and (most := max((m.get(MEMORY_BYTES) or 0 for m in metrics), default=0)):
        parts.append(f"{readable(MEMORY_BYTES, most)} of memory each at most")
    means = {word: _mean(metrics, name) for name, word in STEP_PARTS.items()} if step_s else {}
    shares = [f"{word} {_percent(mean / step_s)}" for word, mean in means.items()
              if mean is not None and step_s]  # fmt: skip
    return " · ".join([*parts, *shares]) + (" of a step just now" if shares else "")


def _mean(metrics: list[dict[str, float | None]], name: str) -> float | None:
    values = [value for m in metrics if (value := m.get(name)) is not None]
    return sum(values) / len(values) if values else None


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 1 or percent == 0 else f"{percent:.1g} %"


def _runs(framework: dict[str, Any]) -> str:
    return str(framework["command"] or f"{framework['job']} (built-in loop)")


def _date(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def _print_metrics(learners: list[dict[str, Any]]) -> None:
    """Print the first learner's metrics; those of the others are the same, or their own."""
    own = [
        {name: value for name, value in status["metrics"].items() if name not in _LESS_TOLD}
        for status in learners
    ]
    told = next((rank for rank, metrics in enumerate(own) if metrics), None)
    if told is None:
        return
    of_all = all(metrics == own[told] for metrics in own)
    whose = "" if of_all else f" of learner {learners[told]['rank']}"
    output.line()
    output.line(f"metrics{whose}:")
    output.fields({
        f"  {name}": "nan" if value is None else format(value, ".4g")
        for name, value in islice(own[told].items(), _MOST_METRICS)
    })  # fmt: skip
    if (more := len(own[told]) - _MOST_METRICS) > 0:
        output.line(f"  and {more:,} more, which `dlctl metrics` prints")
    output.line("")


def _print_meaning(details: dict[str, Any]) -> None:
    """Print the answers to which something is known, and how busy the nodes are."""
    told = [each for each in details.get("answers") or [] if each["state"] != "unknown"]
    if told:
        output.line("")
        output.fields({each["question"]: each["text"] for each in told})
    for sentence in details.get("utilisation") or []:
        output.items(sentence)


def _learner(status: dict[str, Any]) -> list[str]:
    ended = status["exit_code"] is not None or status["signal"] is not None
    code = (
        f"exit {status['exit_code']}" if status["signal"] is None else f"signal {status['signal']}"
    )
    return [
        str(status["rank"]),
        status["host"],
        f"ended, {code}" if ended else state_and_reason(status),
        "-" if status["epoch"] is None else str(status["epoch"]),
        "-" if status["step"] is None else str(status["step"]),
        ago(time.time() - status["heartbeat_at"]),
    ]


def verdict_fields(details: dict[str, Any]) -> dict[str, str]:
    """Return the fields of the newest attempt's verdict, empty ones included."""
    verdict = details.get("verdict") or {}
    return {
        "kind": verdict.get("kind") or "",
        "evidence": _evidence(verdict.get("evidence") or {}),
        "next": _next(verdict.get("action") or {}, time.time()),
    }


def _evidence(evidence: dict[str, Any]) -> str:
    """Return `learner 1 on n2, exit code 3; the scheduler says PREEMPTED`."""
    parts = []
    if role := evidence.get("role"):
        where = f" on {evidence['host']}" if evidence["host"] else ""
        ends = [
            f", {word} {evidence[key]}"
            for key, word in (("exit_code", "exit code"), ("signal", "signal"))
            if evidence.get(key) is not None
        ]
        parts.append(f"{role} {evidence['rank']}{where}{''.join(ends)}")
    elif host := evidence.get("host"):
        parts.append(str(host))
    if state := evidence.get("scheduler_state"):
        reason = evidence.get("scheduler_reason")
        parts.append(f"the scheduler says {state}{f' ({reason})' if reason else ''}")
    return "; ".join(parts)


def _next(action: dict[str, Any], now: float) -> str:
    """Return `attempt 2, submitted by the ending job: retry 1 of 3, …`, or why none follows."""
    if not action or action["kind"] == Next.NOTHING.value:
        return ""
    if action["kind"] == Next.STOP.value:
        return f"no attempt: {action['why']}"
    text = f"attempt {action['attempt']}"
    if by := STARTED.get(action["starter"]):
        text += f", {by}"
    text += f": {action['why']}"
    if action["exclude"]:
        text += f"; not on {', '.join(action['exclude'])}"
    if action["memory_factor"] != 1:
        text += f"; with {action['memory_factor']:g} times the memory"
    if (left_s := action["not_before"] - now) > 1:
        text += f"; in {left_s:.0f} s at the earliest"
    return text


def _print_last_words(details: dict[str, Any]) -> None:
    """Print the last lines of the process at fault, and where all of them are."""
    evidence = (details.get("verdict") or {}).get("evidence")
    if not evidence or not evidence["last_lines"]:
        return
    where = f" on {evidence['host']}" if evidence["host"] else ""  # one that never began
    role = evidence["role"]
    whose = f"{role} {evidence['rank']}{where}" if role else "the job's output"
    output.line()
    output.line(f"last lines of {whose}:")
    for text in shorten(evidence["last_lines"]):
        output.line(f"  {shown(without_speaker(text), colours=False)}")
    if role:
        output.lines(_whole_log(details, evidence))


def _whole_log(details: dict[str, Any], evidence: dict[str, Any]) -> list[str]:
    """Return where all lines of a process are, and the command that prints them."""
    attempt, rank, role = details["attempt"], evidence["rank"], evidence["role"]
    only = f" --learner {rank}" if role == "learner" else ""
    command = f"dlctl logs {details['training_id']}{only} --debug"
    place = f"at the site: {details['job_dir']}/{attempt_dir(attempt)}/{role}-{rank}.log"
    return [place] if command in details["hint"] else [f"all lines: {command}", place]
