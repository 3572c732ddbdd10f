"""What `dlctl show` prints: the story of one training on a screen of 80 × 24."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any

from dlctl.cli import output
from dlctl.cli.progress_line import BAR, bar
from dlctl.cli.states.show_all import speed_line, verdict_fields
from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.contract.programs.tracebacks import shorten, without_speaker
from dlctl.logs.shown import shown
from dlctl.terminal.text import cut

_MOST_LINES = 21
"""A screen has 24; the hint, where more is, and the prompt need the rest."""
_LAST_LINES = 5


def print_story(details: dict[str, Any]) -> None:
    """Print what `describe` returned, as much of it as one screen holds."""
    ended = State(details["state"]).final
    verdict = verdict_fields(details)
    story = {
        "training": details["training_id"],
        "state": _state(details),
        "why": details["reason"],
        "kind": ": ".join(part for part in (verdict["kind"], verdict["evidence"]) if part),
        "next": verdict["next"],
        "progress": _progress(details),
        "time left": "" if ended else _time_left(details),
        "learners": _learners(details.get("learners") or []),
        "speed": "" if ended else _speed(details),
        **_answers(details),
        "orders": "; ".join(order["text"] for order in details.get("orders") or []),
        "output": details.get("output", ""),
        "folder": details["folder"],
        "at the site": details["job_dir"],
    }
    told = {name: str(value) for name, value in story.items() if value}
    warnings = _warnings(details)
    room = _MOST_LINES - len(warnings)
    last = _last_lines(details, min(_LAST_LINES, max(1, room - len(told) - 1)))
    output.fields(_fitted(told, room - len(last)))
    for text in warnings:
        output.warn(text)
    for text in last:
        output.line(text)
    if details["hint"]:
        output.advice(details["hint"])
    if details.get("next_command"):
        output.hint(details["next_command"])
    output.note(f"all that is known: dlctl show {details['training_id']} --all")


def _warnings(details: dict[str, Any]) -> list[str]:
    """Return what this version lacks for the training, and what learners at work complain of.

    What the hint says anyway is left out: which line of which file keeps a file from being sent.
    """
    plan = details.get("plan") or {}
    lacks, hint = plan.get("not_in_this_version", []), details["hint"] or ""
    return [
        *(text for text in lacks if (text.partition(": ")[2] or text) not in hint),
        *(
            f"learner {status['rank']}: {status['reason']}"
            for status in details.get("learners") or []
            if status["state"] == State.TRAINING.value and status.get("reason")
        ),
    ]


def _columns() -> int | None:
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitted(told: dict[str, str], most_lines: int) -> dict[str, str]:
    """Return the fields, on a terminal those of several lines cut so far that all of them fit."""
    columns = _columns()
    if columns is None:
        return told
    room = max(20, columns - max(map(len, told)) - 2)
    spare = max(0, most_lines - len(told))
    found = {}
    for name, text in told.items():
        extra = min(spare, -(-len(text) // room) - 1, 2)
        spare -= max(0, extra)
        most = room * (1 + max(0, extra)) - (8 if extra > 0 else 0)  # words are not broken
        found[name] = text if len(text) <= most else f"{cut(text, most - 1)}…"
    return found


def _state(details: dict[str, Any]) -> str:
    job = f", job {details['job_id']}" if details["job_id"] else ""
    state = f"{details['shown_state']} on {details['site']}, attempt {details['attempt']}{job}"
    begun, until = details["started_at"], details["ended_at"] or time.time()
    if details["state"] in ("QUEUED", "PENDING") and details.get("starts_in_words"):
        return f"{state}; {details['starts_in_words']}"
    return f"{state}, {format_span(max(0.0, until - begun))}" if begun else state


def _progress(details: dict[str, Any]) -> str:
    parts = []
    if (done := details["done"]) is not None:
        columns = _columns()
        wide = BAR if columns is None else min(BAR, columns // 4)
        parts.append(f"{bar(done, wide)} {100 * done:.0f} %")
    of = f"/{details['epochs']}" if details["epochs"] else ""
    if details["epoch"] is not None:
        parts.append(f"epoch {details['epoch']}{of}")
    if details["step"] is not None:
        parts.append(f"step {details['step']}")
    return "  ".join(parts)


def _time_left(details: dict[str, Any]) -> str:
    from dlctl.series.pace import TimeLeft

    told = details.get("time_left_s")
    return TimeLeft(**told).text.replace(" left", "", 1) if told else ""


def _learners(learners: list[dict[str, Any]]) -> str:
    """Return `3 TRAINING, 1 FAILED`."""
    count = Counter(status["state"] for status in learners)
    return ", ".join(f"{number} {state}" for state, number in count.most_common())


def _speed(details: dict[str, Any]) -> str:
    newest = [status["metrics"] for status in details.get("learners") or []]
    return speed_line(newest, details["plan"]) if details.get("plan") else ""


def _answers(details: dict[str, Any]) -> dict[str, str]:
    """Return what people ask first, the last checkpoint among it."""
    answers = details.get("answers") or []
    return {each["question"]: each["text"] for each in answers if each["state"] != "unknown"}


def _last_lines(details: dict[str, Any], most: int) -> list[str]:
    """Return the end of what the process at fault has printed, after a head."""
    evidence = (details.get("verdict") or {}).get("evidence") or {}
    words = shorten(evidence.get("last_lines") or []) or details.get("job_output") or []
    if not words:
        return []
    columns = _columns()
    width = 10_000 if columns is None else columns - 2
    role = evidence.get("role")
    whose = f"{role} {evidence['rank']}" if role else "the job's output"
    lines = [f"  {cut(shown(without_speaker(text), colours=False), width)}"
             for text in words[-most:]]  # fmt: skip
    return [f"last lines of {whose}:", *lines]
