"""Judge how an attempt ended from what the watchdogs wrote. Pure.

The learner at fault is the one that failed first. Learners that the launcher ended because of it
have the status CANCELLED, which the verdict ignores. Which line means which kind of failure is
data, in `dlctl.contract.programs.verdict_rules`.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from dlctl.contract import Evidence, Plan, State, Status, VerdictKind
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.metrics import MEMORY_BYTES
from dlctl.contract.programs.advice import filled, limits_memory, memory_of, more_memory
from dlctl.contract.programs.lone_program import starts_processes_itself
from dlctl.contract.programs.named_paths import how_to_send, missed
from dlctl.contract.programs.tracebacks import place_before
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
    blamed_host,
    first_match,
    signal_in,
)
from dlctl.contract.search import EXIT_WRONG
from learner.job.context import launcher_name
from learner.job.outcome import (
    BY_THEMSELVES,
    Outcome,
    failed,
    is_hub,
    last_words,
    resume_command,
    says_full,
    says_lost,
)
from learner.job.status import UNFINISHED, UNSAVED, has_saved
from learner.supervisor.statuses import Observed


def decide(plan: Plan, observed: Observed) -> Outcome:
    """Return the outcome of an attempt whose learners have run."""
    states = [status.state for status in observed.statuses]
    complete = len(states) + len(observed.lost) == plan.resources.learners
    request = observed.request
    if request is not None and request.state is State.CANCELLED:
        return Outcome(State.CANCELLED, request.kind, _sentence(request.reason))
    if observed.failure is not None:
        return observed.failure
    if complete and all(state is State.COMPLETED for state in states):
        learners = _how_many(len(states), plan)
        warning = next((f"; {s.reason}" for s in observed.statuses if s.reason), "")
        warning += f"; {observed.undone}" if observed.undone else ""
        reason = f"{learners} ended with exit code 0{warning}{_describe_lost(observed.lost)}."
        return Outcome(State.COMPLETED, VerdictKind.NONE, reason)
    if _halted(observed, complete):
        why = request.reason.rstrip(".") if request else BY_THEMSELVES
        makers = observed.statuses[:1] if plan.launch.step_per_learner else observed.statuses
        saved = bool(makers) and all(has_saved(status) for status in makers)
        reason = why + ("" if saved else ", before all was saved") + _describe_lost(observed.lost)
        hint = f"Continue with: {resume_command(plan)}" if saved else go_on(plan)
        # The built-in loop's learners end the same way if halted before training has begun.
        if not observed.checkpoints and (not saved or plan.framework.has_loop):
            hint = f"There is no checkpoint yet; start again: {resume_command(plan)}"
        kind = request.kind if request else VerdictKind.REQUESTED
        return Outcome(State.HALTED, kind, _sentence(reason), hint)
    return _failed(plan, observed)


def _how_many(count: int, plan: Plan) -> str:
    learners = plan.resources.learners
    if is_hub(plan):
        return "The search's hub"
    if count < learners:
        return f"{count} of {learners} learners"
    return "The learner" if count == 1 else f"All {count} learners"


def _describe_lost(lost: dict[int, str]) -> str:
    """Return which learners were given up, grouped by reason."""
    parts = []
    for why in dict.fromkeys(lost.values()):
        ranks = [str(rank) for rank in sorted(lost) if lost[rank] == why]
        if len(ranks) == 1:
            parts.append(f"; learner {ranks[0]} {why}")
        else:
            many = re.sub(r"^was\b", "were", why)
            parts.append(f"; learners {', '.join(ranks[:-1])} and {ranks[-1]} {many}")
    return "".join(parts)


def _halted(observed: Observed, complete: bool) -> bool:
    states = {status.state for status in observed.statuses}
    fine = {State.COMPLETED, State.HALTED}
    if says_lost(observed.launcher_words) and not states <= fine:
        return False
    if observed.request is not None:
        fine.add(State.CANCELLED)  # the launcher was ended after the grace period
    if complete and states <= fine:
        return observed.request is not None or State.HALTED in states
    if observed.request is None or not observed.request.terminated:
        return False
    failed = [status for status in observed.statuses if status.state is State.FAILED]
    return not says_full(observed.launcher_words) and all(
        status.signal == signal.SIGTERM or _is_consequence(status.last_lines) for status in failed
    )


def _is_consequence(lines: list[str]) -> bool:
    found = first_match(Place.LEARNER, lines)
    return found is not None and found[0].kind in CONSEQUENCES


def _failed(plan: Plan, observed: Observed) -> Outcome:
    failed = [status for status in observed.statuses if status.state is State.FAILED]
    lost = [status for status in observed.statuses if not status.state.final]
    spoke = [status for status in lost if _spoke(status, observed.logs.get(status.rank, []))]
    if spoke and not any(_spoke(status, status.last_lines) for status in failed):
        return _cut_short(plan, observed, spoke[0])
    if failed:
        failed.sort(key=lambda status: status.heartbeat_at)
        outcomes = [_explain(plan, observed, status) for status in failed]
        # A learner that waited for the failed one may end before it.
        own = (each for each in outcomes if each.kind not in CONSEQUENCES)
        first = next(own, outcomes[0])
        match = first_match(Place.LAUNCHER, observed.launcher_words)
        # MPI may end a process by an exit code, and without a word, when it loses the other nodes.
        is_silent = first.evidence is not None and not first.evidence.last_lines
        others_did = first.kind in CONSEQUENCES | _BY_OTHERS or is_silent
        if others_did and match and match[0].kind in _OF_SLURM:
            return _vanished(plan, observed, lost + failed)
        return first
    if not lost and says_lost(observed.launcher_words):
        lost = observed.statuses[:]  # Slurm ended all of them because of the node
    if lost:
        return _vanished(plan, observed, sorted(lost, key=lambda status: status.heartbeat_at))
    return _launcher_failed(plan, observed)


_OF_SLURM = {VerdictKind.NODE_LOST, VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED}
"""Kinds that explain why learners were killed."""
_BY_OTHERS = {VerdictKind.SCHEDULER, VerdictKind.UNKNOWN}
"""Kinds of learners that were killed by a signal from outside."""


def _explain(plan: Plan, observed: Observed, status: Status) -> Outcome:
    outcome = explain(plan, status, observed.launcher_words)
    if status.reason == UNSAVED and observed.request is not None:
        return replace(outcome, kind=observed.request.kind)
    return outcome


def _spoke(status: Status, lines: list[str]) -> bool:
    """Return whether this learner's built-in loop printed why it ended (`learner.errors`)."""
    return any(line.startswith(f"[rank {status.rank} on ") for line in _own_words(lines))


def _cut_short(plan: Plan, observed: Observed, status: Status) -> Outcome:
    # On MPI_Abort Slurm kills the whole step at once: the watchdog may die before it reports.
    words = observed.logs[status.rank]
    kind, what, hint = read_words(plan, words, None, status.rank)
    evidence = Evidence("learner", status.rank, status.host, None, None, words)
    return failed(kind, f"{_who(status)} failed: {what}", hint, evidence)


def _vanished(plan: Plan, observed: Observed, lost: list[Status]) -> Outcome:
    """Judge learners that were killed with their watchdogs; the first vanished first."""
    found = first_match(Place.LAUNCHER, observed.launcher_words)
    host = blamed_host(*found) if found else ""
    status = next((each for each in lost if each.host == host), lost[0])
    evidence = _evidence_of_lost(observed, status)
    if found is None or found[0].kind is VerdictKind.SCHEDULER:
        # A learner's own words say more than that its step was ended.
        for each in lost:
            if spoke := first_match(Place.LEARNER, observed.logs.get(each.rank, [])):
                kind, what, hint = read_words(plan, observed.logs[each.rank], None, each.rank)
                if spoke[0].kind not in CONSEQUENCES:
                    evidence = _evidence_of_lost(observed, each)
                    return failed(kind, f"{_who(each)} failed: {what}", hint, evidence)
    if found is not None:
        rule, line = found
        hint = filled(rule.hint, plan)
        evidence = replace(evidence, host=host or evidence.host)
        return failed(rule.kind, f"{rule.sentence}: {line.strip()}", hint, evidence)
    last = observed.launcher_words[-1:]
    output = f" {launcher_name(plan)} reported: {last[0]}" if last else ""
    reason = f"{_who(status)} vanished with its watchdog; killed from outside.{output}"
    return failed(VerdictKind.UNKNOWN, reason, more_memory(plan), evidence)


def _evidence_of_lost(observed: Observed, status: Status) -> Evidence:
    """Return the evidence about a learner whose watchdog left no word."""
    words = [*observed.logs.get(status.rank, []), *observed.launcher_words][-20:]
    return replace(_evidence(status), last_lines=words)


def see_log(plan: Plan, rank: int) -> str:
    """Return the hint that a learner's log says more."""
    return filled(SEE_LOG, plan, rank)


def go_on(plan: Plan) -> str:
    """Return the hint that the training can be resumed."""
    return filled(GO_ON, plan)


def _launcher_failed(plan: Plan, observed: Observed) -> Outcome:
    words = observed.launcher_words
    output = f": {words[-1]}" if words else "."
    started = len(observed.statuses)
    reason = (
        f"The launcher ended with exit code {observed.launcher_exit} after {started} of "
        f"{plan.resources.learners} learners had started{output}"
    )
    first = observed.statuses[0] if observed.statuses else None
    evidence = Evidence(
        "learner", first.rank if first else 0, first.host if first else "",
        observed.launcher_exit, None, words,
    )  # fmt: skip
    hint = f"See the launcher's log, and check the site: dlctl doctor {plan.site}"
    return failed(VerdictKind.SITE, reason, hint, evidence)


def explain(plan: Plan, status: Status, launcher_words: Sequence[str] = ()) -> Outcome:
    """Return the outcome of an attempt that this learner's failure ended."""
    who, evidence = _who(status), _evidence(status)
    if status.reason == UNFINISHED:
        hint = "Let `build` return, and let the loop end the process: don't exit in the program."
        return failed(VerdictKind.USER_ERROR, f"{who} {UNFINISHED}.", hint, evidence)
    number = status.signal or signal_in(status.exit_code)
    if status.exit_code is None and status.signal is None or not status.last_lines:
        reason = status.reason or "failed"
        if number is None and status.exit_code not in EXIT_CODES:
            kind = VerdictKind.UNKNOWN if status.exit_code is None else _kind_of_silence(plan)
            return failed(
                kind, f"{who}: {reason.rstrip('.')}.", see_log(plan, status.rank), evidence
            )
    if status.reason == UNSAVED:
        how = "with a smaller checkpoint.every" if plan.framework.has_loop else "by itself"
        hint = f"Let it save more often, {how}, so that less is lost. {go_on(plan)}"
        return failed(VerdictKind.TIME_LIMIT, f"{who} {UNSAVED}.", hint, evidence)
    if is_hub(plan) and status.exit_code == EXIT_WRONG:
        return _search_failed(plan, status)
    if number in SENT_ON_PURPOSE or number and not first_match(Place.LEARNER, status.last_lines):
        return _killed(plan, status, number, launcher_words)
    kind, what, hint = read_words(plan, status.last_lines, status.exit_code, status.rank)
    how = f"failed with exit code {status.exit_code}"
    if number:  # such as the abort by which torch ends a process that has lost the others
        how = f"was killed by signal {number} ({SIGNALS.get(number, OTHER_SIGNAL).words})"
    return failed(kind, f"{who} {how}: {what}", hint, evidence)


def _search_failed(plan: Plan, status: Status) -> Outcome:
    """Return the outcome of a search whose model says in its last lines why it can't go on."""
    reason, hint = last_words(status.last_lines)
    return failed(
        VerdictKind.USER_ERROR, f"The search has failed: {reason or 'it says nothing'}.",
        f"{hint or see_log(plan, status.rank)}.",
    )  # fmt: skip


def _killed(plan: Plan, status: Status, number: int, launcher_words: Sequence[str]) -> Outcome:
    who, evidence = _who(status), _evidence(status)
    if number == signal.SIGKILL:
        sure = says_full(list(launcher_words)) or _is_near_its_limit(plan, status)
        memory = f"{'' if sure else 'perhaps '}by its memory limit ({memory_of(plan)})"
        if not limits_memory(plan):
            memory = "from outside, or because the machine ran out of memory"
        kind = VerdictKind.OUT_OF_MEMORY if sure else VerdictKind.UNKNOWN
        reason = f"{who} was killed by signal 9, {memory}."
        return failed(kind, reason, more_memory(plan), evidence)
    rule = SIGNALS.get(number, OTHER_SIGNAL)
    reason = f"{who} was killed by signal {number} ({rule.words})."
    return failed(rule.kind, reason, filled(rule.hint, plan, status.rank), evidence)


_NEAR_LIMIT = 0.8
_OUR_ERROR = re.compile(r"(learner\.(?:errors|faults)|psrv\.errors)\.\w+: ")
"""Precedes the message in a traceback that Python printed, in a user's own program."""
_SPEAKER = re.compile(r"\[(?:rank|server) \d+ on [^\]]*\] ?")
_TORCH_RANK = re.compile(r"^\[rank\d+\]: ")
"""Precedes each line of a traceback in a process group of torch."""


def _own_words(lines: list[str]) -> list[str]:
    """Return the lines in which the built-in loop gives its reason to end (`learner.errors`)."""
    matches = [(line, _SPEAKER.match(line)) for line in lines]
    return [line for line, it in matches if it and not line.startswith("WARNING:", it.end())]


class Reading(NamedTuple):
    """The meaning of a program's last lines."""

    kind: VerdictKind
    what: str
    hint: str


def read_words(plan: Plan, lines: list[str], exit_code: int | None, rank: int = 0) -> Reading:
    """Return what the last lines of a learner's program mean, with a hint."""
    reading = _read(plan, lines, exit_code, rank)
    found = missed(lines, plan.left_out)
    if found and reading.kind in (VerdictKind.USER_ERROR, VerdictKind.UNKNOWN):
        path, item = found
        hint = f"{printable(path)} was not sent with the folder: {how_to_send(item)}"
        again = f"Then: dlctl resume {plan.training_id} --code"
        reading = reading._replace(hint=f"{hint} {again}")
    return reading


def _read(plan: Plan, lines: list[str], exit_code: int | None, rank: int) -> Reading:
    # MPI may have printed the very last line; the reason already begins with the rank and host.
    own_words = _own_words(lines)
    lines = [_SPEAKER.sub("", line, count=1) for line in own_words] or lines
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
        if kind is VerdictKind.NETWORK and starts_processes_itself(plan.framework.command):
            # Each learner's torchrun listens at the same port, 29500 by default.
            kind = VerdictKind.USER_ERROR
            hint = "Use python instead of torchrun in framework.command: dlctl starts the learners."
        if NO_GPU.search(line) and not plan.resources.gpus_per_learner:
            kind, hint = VerdictKind.USER_ERROR, "Ask for `gpus` in the manifest, or use none."
        return Reading(kind, _placed(lines, line), hint)
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    if not lines:
        return Reading(VerdictKind.USER_ERROR, "it printed nothing.", see_log(plan, rank))
    last = (errors or lines)[-1]
    what = _placed(lines, last) if errors else last.strip()
    kind = VerdictKind.USER_ERROR if own_words or errors else _kind_of_silence(plan)
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
            return message, lines[index].strip().removeprefix("HINT:").strip()
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


def _who(status: Status) -> str:
    return f"Learner {status.rank} on {status.host}"


def _evidence(status: Status) -> Evidence:
    return Evidence(
        "learner", status.rank, status.host, status.exit_code, status.signal, status.last_lines
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
