"""Explain how one learner ended, from its exit code, its signal and its last lines. Pure.

Which line means which kind of failure is data, in `dlctl.contract.programs.verdict_rules`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import NamedTuple

from dlctl.contract import Evidence, Plan, Status, VerdictKind
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.metrics import MEMORY_BYTES
from dlctl.contract.programs.advice import filled, limits_memory, memory_of, more_memory
from dlctl.contract.programs.lone_program import starts_processes_itself
from dlctl.contract.programs.mpi_words import abort_code, before_abort, called_abort, fatal_error
from dlctl.contract.programs.named_paths import how_to_send, missed
from dlctl.contract.programs.torchrun import first_failure, without_summary
from dlctl.contract.programs.tracebacks import chains, last_chain, place_before
from dlctl.contract.programs.verdict_rules import (
    AGAIN,
    CONSEQUENCES,
    EXIT_CODES,
    GO_ON,
    NEVER,
    NO_GPU,
    OTHER_SIGNAL,
    SEE_LOG,
    SENT_ON_PURPOSE,
    SIGNALS,
    Place,
    first_match,
    signal_in,
)
from dlctl.contract.search import EXIT_WRONG
from learner.job.outcome import Outcome, failed, is_hub, last_words, says_full
from learner.job.status import STUCK, UNFINISHED, UNSAVED


def see_log(plan: Plan, rank: int) -> str:
    """Return the hint that a learner's log says more."""
    return filled(SEE_LOG, plan, rank)


def go_on(plan: Plan) -> str:
    """Return the hint that the training can be resumed."""
    return filled(GO_ON, plan)


def explain(plan: Plan, status: Status, launcher_words: Sequence[str] = ()) -> Outcome:
    """Return the outcome of an attempt that this learner's failure ended."""
    who, evidence = name_of(status), evidence_of(status)
    if status.reason == UNFINISHED:
        hint = "Let `build` return, and let the loop end the process: don't exit in the program."
        return failed(VerdictKind.USER_ERROR, f"{who} {UNFINISHED}.", hint, evidence)
    lines = status.last_lines
    spoke = bool(own_words(lines, status.rank))
    if called_abort(lines, status.rank) and not spoke:
        kind, what, hint = read_words(plan, before_abort(status.last_lines), None, status.rank)
        code = status.exit_code if (it := abort_code(status.last_lines)) is None else it
        how = "called MPI_Abort" + (f" with error code {code}" if code is not None else "")
        return failed(kind, f"{who} {how}: {what}", hint, evidence)
    number = status.signal or signal_in(status.exit_code)
    if status.exit_code is None and status.signal is None and not spoke or not lines:
        reason = status.reason or "failed"
        if number is None and status.exit_code not in EXIT_CODES:
            kind = VerdictKind.UNKNOWN if status.exit_code is None else _kind_of_silence(plan)
            if status.last_lines:
                hint = see_log(plan, status.rank)
                return failed(kind, f"{who}: {reason.rstrip('.')}.", hint, evidence)
            hint = f"Have it print why it ends; then: dlctl resume {plan.training_id} --code"
            hint = hint if plan.framework.command else see_log(plan, status.rank)
            reason = f"{who}: {reason.rstrip('.')}; it printed nothing."
            return failed(kind, reason, hint, evidence)
    if status.reason == STUCK:
        kind, what, _ = read_words(plan, status.last_lines, None, status.rank)
        hint = "Run `python -m mpi4py …`, which ends all learners if one raises an exception."
        return failed(kind, f"{who} {STUCK}: {what}", hint, evidence)
    if status.reason == UNSAVED:
        how = "with a smaller checkpoint.every" if plan.framework.has_loop else "by itself"
        hint = f"Let it save more often, {how}, so that less is lost. {go_on(plan)}"
        return failed(VerdictKind.TIME_LIMIT, f"{who} {UNSAVED}.", hint, evidence)
    if is_hub(plan) and status.exit_code == EXIT_WRONG:
        return _search_failed(plan, status)
    if number in SENT_ON_PURPOSE or number and not first_match(Place.LEARNER, status.last_lines):
        return _killed(plan, status, number, launcher_words)
    kind, what, hint = read_words(plan, status.last_lines, status.exit_code, status.rank)
    how = "failed" + (f" with exit code {status.exit_code}" if status.exit_code is not None else "")
    if number:  # such as the abort by which torch ends a process that has lost the others
        how = f"was killed by signal {number} ({SIGNALS.get(number, OTHER_SIGNAL).words})"
    return failed(kind, f"{who} {how}: {what}", hint, evidence)


def says_why(status: Status) -> bool:
    """Return whether a failed learner's last lines, or its exit code, name an error."""
    lines = status.last_lines
    return bool(
        status.reason in (UNFINISHED, UNSAVED, STUCK)
        or status.exit_code in (*EXIT_CODES, EXIT_WRONG)
        or own_words(lines, status.rank) or last_chain(lines) or first_match(Place.LEARNER, lines)
        or called_abort(lines, status.rank) or fatal_error(lines)
        or any(map(_ERROR.match, lines))
    )  # fmt: skip


def _search_failed(plan: Plan, status: Status) -> Outcome:
    """Return the outcome of a search whose model says in its last lines why it can't go on."""
    reason, hint = last_words(status.last_lines)
    return failed(
        VerdictKind.USER_ERROR, f"The search has failed: {reason or 'it says nothing'}.",
        f"{hint or see_log(plan, status.rank)}.",
    )  # fmt: skip


def _killed(plan: Plan, status: Status, number: int, launcher_words: Sequence[str]) -> Outcome:
    who, evidence = name_of(status), evidence_of(status)
    if number == signal.SIGKILL:
        sure = says_full(list(launcher_words)) or _is_near_its_limit(plan, status)
        limit = memory_of(plan, None if sure else status.metrics.get(MEMORY_BYTES))
        memory = f"{'' if sure else 'perhaps '}by its memory limit ({limit})"
        if not limits_memory(plan):
            memory = "from outside, or because the machine ran out of memory"
        kind = VerdictKind.OUT_OF_MEMORY if sure else VerdictKind.UNKNOWN
        reason = f"{who} was killed by signal 9, {memory}."
        return failed(kind, reason, more_memory(plan), evidence)
    rule = SIGNALS.get(number, OTHER_SIGNAL)
    reason = f"{who} was killed by signal {number} ({rule.words})."
    return failed(rule.kind, reason, filled(rule.hint, plan, status.rank), evidence)


_NEAR_LIMIT = 0.8
_ERROR = re.compile(r"[\w.]+(Error|Exception)\b")
"""The line in which Python names an exception."""
_OUR_ERROR = re.compile(r"(learner\.(?:errors|faults)|psrv\.errors)\.\w+: ")
"""Precedes the message in a traceback that Python printed, in a user's own program."""
_SPEAKER = re.compile(r"\[(?:rank (?P<rank>\d+)|server \d+) on [^\]]*\] ?")
_TORCH_RANK = re.compile(r"^\[rank\d+\]: ")
"""Precedes each line of a traceback in a process group of torch."""


def own_words(lines: list[str], rank: int) -> list[str]:
    """Return the lines in which this learner's loop gives its reason to end (`learner.errors`)."""
    matches = [(line, _SPEAKER.match(line)) for line in lines]
    return [
        line for line, it in matches
        if it and it["rank"] in (None, str(rank)) and not line.startswith("WARNING:", it.end())
    ]  # fmt: skip


class Reading(NamedTuple):
    """The meaning of a program's last lines."""

    kind: VerdictKind
    what: str
    hint: str


def read_words(plan: Plan, lines: list[str], exit_code: int | None, rank: int = 0) -> Reading:
    """Return what the last lines of a learner's program mean, with a hint.

    If the processes of one torchrun share the log, an error that is only a consequence counts less.
    """
    own = without_summary(lines)
    parts = chains(own) if len(own) < len(lines) else []
    parts = parts if len(parts) > 1 else []
    readings = [_read(plan, part, exit_code, rank) for part in [*parts[::-1], own]]
    reading = next((each for each in readings if each.kind not in CONSEQUENCES), readings[0])
    found = missed(lines, plan.left_out)
    if found and reading.kind in (VerdictKind.USER_ERROR, VerdictKind.UNKNOWN):
        path, item = found
        hint = f"{printable(path)} was not sent with the folder: {how_to_send(item)}"
        again = f"Then: dlctl resume {plan.training_id} --code"
        reading = reading._replace(hint=f"{hint} {again}")
    return reading


def _read(plan: Plan, lines: list[str], exit_code: int | None, rank: int) -> Reading:
    # MPI may have printed the very last line; the reason already begins with the rank and host.
    own = own_words(lines, rank)
    lines = [_SPEAKER.sub("", line, count=1) for line in own] or lines
    lines = [_TORCH_RANK.sub("", line) for line in lines]
    mistake = _user_mistake(lines)
    if mistake is not None:
        known = first_match(Place.LEARNER, [mistake[0]])
        return Reading(known[0].kind if known else VerdictKind.USER_ERROR, *mistake)
    if exit_code in EXIT_CODES:
        meaning = EXIT_CODES[exit_code]
        what = meaning.words
        what += f": {lines[-1].strip()}" if lines and exit_code in (AGAIN, NEVER, 127) else "."
        return Reading(meaning.kind, what, filled(meaning.hint, plan, rank))
    if found := first_match(Place.LEARNER, lines):
        rule, line = found
        hint = filled(rule.hint, plan, rank)
        kind = rule.kind
        several = plan.resources.learners > 1 and starts_processes_itself(plan.framework.command)
        if kind is VerdictKind.NETWORK and several:
            # Each learner's torchrun listens at the same port, 29500 by default.
            kind = VerdictKind.USER_ERROR
            hint = "Use python instead of torchrun in framework.command: dlctl starts the learners."
        if NO_GPU.search(line) and not plan.resources.gpus_per_learner:
            kind, hint = VerdictKind.USER_ERROR, "Ask for `gpus` in the manifest, or use none."
        return Reading(kind, _placed(lines, line), hint)
    errors = [line for line in lines if _ERROR.match(line)]
    if error := fatal_error(lines):
        return Reading(VerdictKind.USER_ERROR, error, see_log(plan, rank))
    if not lines:
        return Reading(VerdictKind.USER_ERROR, "it printed nothing.", see_log(plan, rank))
    last = (errors or lines)[-1]
    what = _placed(lines, last) if errors else last.strip() + ("" if own else " (its last line)")
    kind = VerdictKind.USER_ERROR if own or errors else _kind_of_silence(plan)
    return Reading(kind, what, see_log(plan, rank))


def _kind_of_silence(plan: Plan) -> VerdictKind:
    """Return the kind of an exit code without a reason.

    The built-in loop always prints why it ends: if it did not, something else, such as MPI, has
    ended its process.
    """
    return VerdictKind.UNKNOWN if plan.framework.has_loop else VerdictKind.USER_ERROR


def _user_mistake(lines: list[str]) -> tuple[str, str] | None:
    """Return the built-in loop's message about a user's mistake: a sentence and its HINT."""
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].strip().startswith("HINT:"):
            message = _OUR_ERROR.sub("", lines[index - 1].strip())
            return message, lines[index].strip()[len("HINT:") :].strip()
    return None


def _placed(lines: list[str], line: str) -> str:
    """Return an error that Python printed, after the user's line that raised it, if any."""
    place = place_before(lines, line)
    return f"{place}: {line.strip()}" if place else line.strip()


def _is_near_its_limit(plan: Plan, status: Status) -> bool:
    """Return whether the memory that the learner last reported explains that it was killed."""
    limit, used = plan.resources.memory_bytes_per_learner, status.metrics.get(MEMORY_BYTES)
    return (
        limits_memory(plan)
        and limit is not None
        and used is not None
        and used > _NEAR_LIMIT * limit
    )


def name_of(status: Status) -> str:
    """Return who ended: a learner, or the process of its torchrun that failed first."""
    who = f"Learner {status.rank} on {status.host}"
    child = first_failure(status.last_lines)
    return who if child is None else f"{who}: rank {child.rank} of its torchrun"


def evidence_of(status: Status) -> Evidence:
    """Return a learner's end as evidence."""
    return Evidence(
        "learner", status.rank, status.host, status.exit_code, status.signal, status.last_lines
    )
