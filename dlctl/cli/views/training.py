"""`dlctl show`: the story of one training on a screen of 80 × 24, or all about it."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.cli.logs import BAR, bar
from dlctl.cli.views.learners import print_learners, print_servers, server_line, speed_line
from dlctl.contract import STOPPING, Next, State, attempt_dir
from dlctl.contract.programs.tracebacks import shorten, without_speaker
from dlctl.logs.shown import shown
from dlctl.series.utilisation import Use
from dlctl.service.describe import (
    asked_in_words,
    loss_in_words,
    output_in_words,
    progress_in_words,
    starts,
)
from dlctl.service.submit import STARTED
from dlctl.terminal.text import cut
from dlctl.units import several, unix_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.contract import Action, Evidence
    from dlctl.outputs.insight import Attempt
    from dlctl.service.describe import Details

_MOST_LINES = 21
"""A screen has 24; the hint, where more is, and the prompt need the rest."""
_LAST_LINES = 5


def print_story(details: Details) -> None:
    """Print as much as one screen holds."""
    record, files = details.record, details.files
    verdict, learners = verdict_fields(details), files.learners if files else []
    use = details.insight.use if details.insight else Use()
    speed = speed_line([s.metrics for s in learners], files.plan, use) if files else ""
    left = details.insight.left if details.insight else None
    by_state = Counter(str(status.state) for status in learners).most_common()
    story = {
        "training": record.training_id,
        "state": _state(details),
        "why": record.reason,
        "kind": ": ".join(part for part in (verdict["kind"], verdict["evidence"]) if part),
        "next": verdict["next"],
        "progress": _progress(details),
        "time left": left.text.replace(" left", "", 1) if left and not record.state.final else "",
        "learners": ", ".join(f"{number} {state}" for state, number in by_state),
        "speed": "" if record.state.final else speed,
        **_answers(details), **_orders(details),
        "notes": "; ".join(record.notes),
        "output": output_in_words(record), "folder": record.folder, "at the site": record.job_dir,
    }  # fmt: skip
    fields = {name: str(value) for name, value in story.items() if value}
    warnings = _warnings(details)
    room = _MOST_LINES - len(warnings)
    last = _last_lines(details, min(_LAST_LINES, max(1, room - len(fields) - 1)))
    output.fields(_fitted(fields, room - len(last)))
    for text in warnings:
        output.warn(text)
    output.lines(last)
    _print_next(details)
    output.note(f"all that is known: dlctl show {record.training_id} --all")


def print_details(details: Details) -> None:
    """Print all that is known."""
    record, files, now = details.record, details.files, details.record.site_time(time.time())
    plan, learners = (files.plan, files.learners) if files else (None, [])
    weights, created_at = plan and plan.weights, unix_seconds(record.created_at)
    output.fields({
        "training": record.training_id, "name": record.name, "state": record.state_in_words,
        "reason": record.reason, **verdict_fields(details),
        "site": record.site, "attempt": record.attempt, "job": record.job_id,
        "progress": ", ".join([*progress_in_words(record), *loss_in_words(record)]),
        "created": created_at
        and time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(created_at)),
        "folder": record.folder, "job directory": record.job_dir,
        "asked": plan and asked_in_words(plan),
        "learners": _per_attempt(files.attempts if files else []),
        "new code": "; ".join(f"from attempt {each.attempt} on: {several(each.code_changes)}"
                              for each in (files.attempts if files else []) if each.code_changes),
        "parameter server": server_line(files) if files else "",
        "runs": plan and (plan.framework.command or f"{plan.framework.job} (built-in loop)"),
        "model": plan and plan.model,
        "starts from": weights and f"{weights.path} of {weights.model}",
        "notes": "; ".join(record.notes),
        "output": output_in_words(record), "stored as": ", ".join(details.stored_as),
        **_orders(details),
    })  # fmt: skip
    for text in _warnings(details):
        output.warn(text)
    if files and learners:
        print_learners(files, details.insight.use if details.insight else Use(), now)
    if files and files.plan.parameter_server:
        print_servers(files, now)
    if answers := _answers(details):
        output.line()
        output.fields(answers)
    for sentence in details.insight.utilisation if details.insight else ():
        output.items(sentence)
    if last := _last_lines(details):
        output.lines(["", *last, *_whole_log(details)])
    _print_next(details)


def _print_next(details: Details) -> None:
    if details.record.hint:
        output.advice(details.record.hint)
    if details.next_command:
        output.hint(details.next_command)


def _warnings(details: Details) -> list[str]:
    """Return what this version lacks for the training, and what learners at work complain of.

    What the hint says anyway is left out: which line of which file keeps a file from being sent.
    """
    if (files := details.files) is None:
        return []
    lacks, hint = files.plan.not_in_this_version, details.record.hint
    return [
        *(text for text in lacks if (text.partition(": ")[2] or text) not in hint),
        *(f"learner {status.rank}: {status.reason}" for status in files.learners
          if status.state is State.TRAINING and status.reason and not details.record.state.final
          and not status.reason.startswith(STOPPING)),
    ]  # fmt: skip


def _columns() -> int | None:
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _fitted(fields: dict[str, str], most_lines: int) -> dict[str, str]:
    """Return the fields, on a terminal those of several lines cut so far that all of them fit."""
    columns = _columns()
    if columns is None:
        return fields
    room = max(12, columns - max(map(len, fields)) - 2)
    spare = max(0, most_lines - len(fields))
    found = {}
    for name, text in fields.items():
        extra = min(spare, -(-len(text) // room) - 1, 2)
        spare -= max(0, extra)
        most = room * (1 + max(0, extra)) - (8 if extra > 0 else 0)  # words are not broken
        found[name] = text if len(text) <= most else f"{cut(text, most - 1)}…"
    return found


def _state(details: Details) -> str:
    record = details.record
    job = f", job {record.job_id}" if record.job_id else ""
    state = f"{record.state_in_words} on {record.site}, attempt {record.attempt}{job}"
    if start := starts(record, time.time()):
        return f"{state}; {start}"
    from dlctl.series.readable import exact_span

    elapsed_s = record.elapsed_s(time.time())
    return state if elapsed_s is None else f"{state}, ran {exact_span(round(elapsed_s))}"


def _progress(details: Details) -> str:
    record, columns, parts = details.record, _columns(), progress_in_words(details.record)
    if record.done is not None:
        wide = BAR if columns is None else min(BAR, columns // 4)
        parts = [bar(record.done, wide), *parts]
    return "  ".join([*parts, *loss_in_words(record)])


def _answers(details: Details) -> dict[str, str]:
    """Return what people ask first, the last checkpoint among it."""
    answers = details.insight.answers if details.insight else []
    return {each.question: each.text for each in answers if each.state != "unknown"}


def _orders(details: Details) -> dict[str, str]:
    return {"orders": "; ".join(map(str, details.files.orders if details.files else []))}


def _per_attempt(attempts: list[Attempt]) -> str:
    """Return `2 in attempt 1, 1 from attempt 2 on`, if the number ever changed."""
    changes: list[tuple[int, int]] = []
    for attempt in attempts:
        if not changes or attempt.resources.learners != changes[-1][1]:
            changes.append((attempt.attempt, attempt.resources.learners))
    if len(changes) < 2:
        return ""
    ends = [first - 1 for first, _ in changes[1:]]
    parts = [
        f"{learners} in attempt {first}" if first == end
        else f"{learners} in attempts {first} to {end}"
        for (first, learners), end in zip(changes, ends, strict=False)
    ]  # fmt: skip
    return ", ".join([*parts, f"{changes[-1][1]} from attempt {changes[-1][0]} on"])


def verdict_fields(details: Details) -> dict[str, str]:
    """Return the fields of the newest attempt's verdict, empty ones included."""
    verdict = details.files.verdict if details.files else None
    evidence, action = (verdict.evidence, verdict.action) if verdict else (None, None)
    return {
        "kind": verdict.kind if verdict else "",
        "evidence": _evidence(evidence) if evidence else "",
        "next": _next(action, details.record.site_time(time.time())) if action else "",
    }


def _evidence(evidence: Evidence) -> str:
    """Return `learner 1 on n2, exit code 3; the scheduler says PREEMPTED`."""
    parts = [_whose(evidence) if evidence.role else evidence.host]
    for code, word in ((evidence.exit_code, "exit code"), (evidence.signal, "signal")):
        parts[0] += f", {word} {code}" if evidence.role and code is not None else ""
    if evidence.scheduler_state and evidence.scheduler_state != "RUNNING":
        why = f" ({evidence.scheduler_reason})" if evidence.scheduler_reason else ""
        parts.append(f"the scheduler says {evidence.scheduler_state}{why}")
    return "; ".join(filter(None, parts))


def _whose(evidence: Evidence) -> str:
    where = f" on {evidence.host}" if evidence.host else ""  # one that never began
    return f"{evidence.role} {evidence.rank}{where}"


def _next(action: Action, now: float) -> str:
    """Return `attempt 2, submitted by the ending job: retry 1 of 3, …`, or why none follows."""
    if action.kind is Next.NOTHING:
        return ""
    if action.kind is Next.STOP:
        return f"no attempt: {action.why}"
    by = STARTED.get(action.starter)
    text = f"attempt {action.attempt}{f', {by}' if by else ''}: {action.why}"
    if action.exclude:
        text += f"; not on {', '.join(action.exclude)}"
    if action.memory_factor != 1:
        text += f"; with {action.memory_factor:g} times the memory"
    if (left_s := action.not_before - now) > 1:
        text += f"; in {left_s:.0f} s at the earliest"
    return text


def _at_fault(details: Details) -> Evidence | None:
    verdict = details.files.verdict if details.files else None
    return verdict.evidence if verdict else None


def _last_lines(details: Details, most: int | None = None) -> list[str]:
    """Return the end of what the process at fault has printed, after a head.

    Args:
        most: So many lines, each cut to the terminal's width; None: all, whole.
    """
    evidence = _at_fault(details)
    words: Sequence[str] = shorten(evidence.last_lines) if evidence else ()
    words = words or (details.files.job_output if details.files else ())
    if not words:
        return []
    columns = _columns() if most else None
    width = 10_000 if columns is None else columns - 2
    whose = _whose(evidence) if evidence and evidence.role else "the job's output"
    lines = [f"  {cut(shown(without_speaker(text), colours=False), width)}"
             for text in words[-most if most else 0 :]]  # fmt: skip
    return [f"last lines of {whose}:", *lines]


def _whole_log(details: Details) -> list[str]:
    """Return where all lines of a process are, and the command that prints them."""
    record, evidence = details.record, _at_fault(details)
    if evidence is None or not evidence.role:
        return []
    only = f" --learner {evidence.rank}" if evidence.role == "learner" else ""
    command = f"dlctl logs {record.training_id}{only} --debug"
    log = f"{attempt_dir(record.attempt)}/{evidence.role}-{evidence.rank}.log"
    place = f"at the site: {record.job_dir}/{log}"
    return [place] if command in record.hint else [f"all lines: {command}", place]
