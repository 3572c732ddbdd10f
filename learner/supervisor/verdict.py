"""Judge how an attempt ended from what the watchdogs wrote. Pure.

The learner at fault is the one that failed first (`learner.supervisor.culprit`). Learners that the
launcher ended because of it have the status CANCELLED, or were killed by SIGTERM. Which line means
which kind of failure is data, in `dlctl.contract.programs.verdict_rules`.
"""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from dlctl.contract import Evidence, Plan, State, Status, VerdictKind
from dlctl.contract.launchers import LAUNCHERS
from dlctl.contract.programs.advice import filled, more_memory
from dlctl.contract.programs.hidden_failures import failure_at_end
from dlctl.contract.programs.mpi_words import LOST_OTHERS, abort_code, called_abort
from dlctl.contract.programs.verdict_rules import (
    CONSEQUENCES,
    Place,
    Rule,
    blamed_host,
    first_match,
)
from learner.errors import EXIT_HALTED
from learner.job.context import launcher_name
from learner.job.outcome import (
    BY_THEMSELVES,
    Outcome,
    failed,
    is_hub,
    resume_command,
    says_full,
    says_lost,
)
from learner.job.status import LAST_LINES, UNHEEDED, UNSAVED, has_saved
from learner.supervisor.culprit import Ends, Standing, Suspect, launchers_order, standing
from learner.supervisor.explanation import (
    evidence_of,
    explain,
    go_on,
    name_of,
    own_words,
    read_words,
    says_why,
    see_log,
)
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
        warnings = [status.reason for status in observed.statuses if status.reason]
        warning = min(warnings, key=lambda text: not text.startswith(UNHEEDED), default="")
        warning = f"; {warning}" if warning else ""
        warning += f"; {observed.undone}" if observed.undone else ""
        reason = f"{learners} ended with exit code 0{warning}{_describe_lost(observed.lost)}."
        return Outcome(State.COMPLETED, VerdictKind.NONE, reason)
    if _halted(observed, complete):
        why = request.reason.rstrip(".") if request else BY_THEMSELVES
        makers = observed.statuses[:1] if plan.launch.step_per_learner else observed.statuses
        saved = bool(makers) and all(has_saved(status) for status in makers)
        reason = why + ("" if saved else ", before all was saved") + _describe_lost(observed.lost)
        hint = f"Continue with: {resume_command(plan)}" if saved else go_on(plan)
        if not observed.checkpoints and saved:  # or in its own folder
            hint = ("Nothing is in CHECKPOINT_DIR; a program that has saved nowhere else begins "
                    f"anew: {resume_command(plan)}")  # fmt: skip
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
        ranks = [rank for rank in sorted(lost) if lost[rank] == why]
        many = why if len(ranks) == 1 else re.sub(r"^was\b", "were", why)
        parts.append(f"; {_ranks(ranks)} {many}")
    return "".join(parts)


def _ranks(ranks: list[int]) -> str:
    *most, last = map(str, ranks)
    return f"learners {', '.join(most)} and {last}" if most else f"learner {last}"


def _halted(observed: Observed, complete: bool) -> bool:
    states = {status.state for status in observed.statuses}
    fine = {State.COMPLETED, State.HALTED}
    if says_lost(observed.launcher_words) and not states <= fine:
        return False
    if observed.request is not None:
        fine.add(State.CANCELLED)  # the launcher was ended after the grace period
        if State.HALTED in states and all(map(_follows_a_halt, observed.statuses)):
            return True  # MPI ends all if one leaves its world, here by the signal of the halt
        if any(_aborted_at_halt(observed, each) for each in observed.statuses):
            return not any(
                _says_why(observed, each)
                or each.state is State.FAILED
                and not _follows_a_halt(each)
                for each in observed.statuses
            )
    if complete and states <= fine:
        return observed.request is not None or State.HALTED in states
    if observed.request is None or not observed.request.terminated:
        return False
    failed = [status for status in observed.statuses if status.state is State.FAILED]
    return not says_full(observed.launcher_words) and all(
        status.signal == signal.SIGTERM or _is_consequence(status.last_lines) for status in failed
    )


def _follows_a_halt(status: Status) -> bool:
    """Return whether this is no more than what MPI does when a halt has ended another learner."""
    if status.state is not State.FAILED:
        return status.exit_code in (None, 0, EXIT_HALTED, LOST_OTHERS)
    return status.exit_code == LOST_OTHERS and not says_why(status)


def _aborted_at_halt(observed: Observed, status: Status) -> bool:
    """Return whether `python -m mpi4py` took the exit code of a halt for a failure."""
    log = observed.logs.get(status.rank, [])
    return called_abort(log, status.rank) and abort_code(log) in (None, EXIT_HALTED)


def _is_consequence(lines: list[str]) -> bool:
    found = first_match(Place.LEARNER, lines)
    return found is not None and found[0].kind in CONSEQUENCES


def _failed(plan: Plan, observed: Observed) -> Outcome:
    ends, words = Ends.of(plan, observed), observed.launcher_words
    found = [_suspect(plan, observed, each) for each in ends.statuses]
    suspects = ends.in_order([each for each in found if each is not None])
    known = {each.status.rank for each in suspects}
    lost = [each for each in ends.lost if each.rank not in known]
    match = _launchers_word(plan, words)
    first = suspects[0] if suspects else None
    if first is None or first.standing >= Standing.KILLED:
        left = ends.left_early(plan, words)
        if left is not None and (match is None or match[0].kind is VerdictKind.SCHEDULER):
            return _left_early(plan, left)
        if gone := _gone(plan, observed, lost):
            return gone
    if match is not None and (full := _step_was_full(plan, observed, ends, suspects, match)):
        return full
    if first is not None:
        others_did = (
            first.standing >= Standing.OF_OTHERS or first.outcome.kind in _BY_OTHERS
            or not first.status.last_lines
        )  # fmt: skip
        by_slurm = match is not None and (
            match[0].kind in _OF_SLURM
            and others_did
            or match[0].kind is VerdictKind.SCHEDULER
            and first.standing >= Standing.OF_OTHERS
        )
        if by_slurm:
            return _vanished(plan, observed, lost + [each.status for each in suspects])
        if lost and ends.blames(lost[0], first):
            return _vanished(plan, observed, lost)
        return _with_others(plan, ends, suspects)
    if not lost and says_lost(words):
        lost = observed.statuses[:]  # Slurm ended all of them because of the node
    if lost:
        return _vanished(plan, observed, lost)
    return _launcher_failed(plan, observed)


def _step_was_full(
    plan: Plan, observed: Observed, ends: Ends, suspects: list[Suspect], match: tuple[Rule, str]
) -> Outcome | None:
    """Return the outcome where the memory of a node's part of the step made Slurm kill all of it.

    Only what each learner was measured to have says which of them was the one.
    """
    rule, line = match
    killed = [each.status for each in suspects]
    if rule.kind is not VerdictKind.OUT_OF_MEMORY or killed and killed[0].signal != signal.SIGKILL:
        return None
    host = blamed_host(*match)
    if (over := ends.over_memory(plan, host, observed.most_bytes)) is not None:
        return _explain(plan, observed, over)
    several = "memory limit" in line and len(ends.killed_on(host)) > 1
    if killed and (several or host not in ("", killed[0].host)):
        return _by_rule(plan, match, _evidence_of_lost(observed, killed[0]))
    return None


def _suspect(plan: Plan, observed: Observed, status: Status) -> Suspect | None:
    """Return a learner that failed, as far as it or its log says so."""
    if status.state is State.FAILED:
        outcome = _explain(plan, observed, status)
        weight = standing(
            plan, status, outcome.kind, names_error=says_why(status),
            all_killed=any(map(LAUNCHERS[plan.launch.kind].killed.search, observed.launcher_words)),
        )  # fmt: skip
        return Suspect(status, outcome, weight)
    words = observed.logs.get(status.rank, [])
    if status.state.final or not _spoke(status, words):
        return None
    # On MPI_Abort Slurm kills the whole step at once: the watchdog may die before it reports.
    kind, what, hint = read_words(plan, words, None, status.rank)
    evidence = Evidence("learner", status.rank, status.host, None, None, words)
    outcome = failed(kind, f"{name_of(status)} failed: {what}", hint, evidence)
    weight = standing(plan, status, kind, names_error=True)
    return Suspect(status, outcome, weight, reported=False)


def _with_others(plan: Plan, ends: Ends, suspects: list[Suspect]) -> Outcome:
    """Return the outcome of the first to blame, with what explains that nobody is more to blame."""
    first = suspects[0]
    if first.standing is Standing.ENDED and len(suspects) > 1 and not ends.names(first.status):
        who = _how_many(len(suspects), plan)
        return replace(
            first.outcome, reason=f"{who} were ended by SIGTERM; none had failed before."
        )
    left = [each for each in ends.statuses if each.state is State.COMPLETED]
    if first.standing is Standing.OF_OTHERS and left:
        who = _ranks([each.rank for each in left])
        reason = f"{first.outcome.reason.rstrip('.')}; {who} had ended before, with exit code 0."
        hint = f"{see_log(plan, left[0].rank)}; all learners have to take equally many steps."
        return replace(first.outcome, reason=reason, hint=hint)
    return first.outcome


def _left_early(plan: Plan, status: Status) -> Outcome:
    reason = (
        f"{name_of(status)} ended with exit code 0 before the others were done, so that "
        f"{launcher_name(plan)} or MPI ended them."
    )
    hint = "Let all learners end together, after equally many steps; with MPI by MPI_Finalize."
    return failed(VerdictKind.USER_ERROR, reason, hint, evidence_of(status))


def _gone(plan: Plan, observed: Observed, lost: list[Status]) -> Outcome | None:
    """Return the outcome if a node is lost: the launcher waited for its learners in vain."""
    silent = {each.rank: each for each in lost if not _says_why(observed, each)}
    unheard = LAUNCHERS[plan.launch.kind].unheard(observed.launcher_words, silent)
    if not unheard:
        return None
    status, name = silent[unheard[0]], launcher_name(plan)
    reason = f"A node was lost: {status.host} did not answer {name} when it ended the learners."
    evidence = _evidence_of_lost(observed, status)
    return failed(VerdictKind.NODE_LOST, reason, go_on(plan), evidence)


def _says_why(observed: Observed, status: Status) -> bool:
    """Return whether the log of a learner that is lost names an error of its own."""
    log = observed.logs.get(status.rank, [])
    return bool(failure_at_end(log)) or first_match(Place.LEARNER, log) is not None


def _launchers_word(plan: Plan, words: list[str]) -> tuple[Rule, str] | None:
    """Return what the launcher says about the end; not that it ended the rest because of one."""
    found = first_match(Place.LAUNCHER, words)
    if found is not None and found[0].kind is VerdictKind.SCHEDULER:
        at = next(n for n, line in enumerate(words) if found[0].pattern.search(line))
        return None if launchers_order(plan, words[:at]) else found
    return found


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
    own = own_words(lines, status.rank)
    return any(line.startswith(f"[rank {status.rank} on ") for line in own)


def _vanished(plan: Plan, observed: Observed, lost: list[Status]) -> Outcome:
    """Judge learners that were killed with their watchdogs; the first vanished first."""
    found = _launchers_word(plan, observed.launcher_words)
    host = blamed_host(*found) if found else ""
    status = next((each for each in lost if each.host == host), lost[0])
    evidence = _evidence_of_lost(observed, status)
    if found is None or found[0].kind is VerdictKind.SCHEDULER:
        # A learner's own words say more than that its step was ended.
        for each in lost:
            if _says_why(observed, each):
                log = observed.logs[each.rank]
                kind, what, hint = read_words(plan, log, None, each.rank)
                if kind not in CONSEQUENCES:
                    evidence = _evidence_of_lost(observed, each)
                    return failed(kind, f"{name_of(each)} failed: {what}", hint, evidence)
    if found is not None:
        return _by_rule(plan, found, evidence)
    sentences = _sentences(observed.launcher_words)
    about = [line for line in sentences if status.rank in launchers_order(plan, [line])]
    output = f" {launcher_name(plan)} reported: {(about or sentences)[0]}" if sentences else ""
    reason = f"{name_of(status)} vanished with its watchdog; killed from outside.{output}"
    return failed(VerdictKind.UNKNOWN, reason, more_memory(plan), evidence)


def _sentences(words: list[str]) -> list[str]:
    """Return a launcher's lines without those that are only drawn."""
    return [line.strip("= ") for line in words if any(map(str.isalnum, line))]


def _by_rule(plan: Plan, found: tuple[Rule, str], evidence: Evidence) -> Outcome:
    rule, line = found
    hint = filled(rule.hint, plan)
    evidence = replace(evidence, host=blamed_host(*found) or evidence.host)
    if rule.kind is VerdictKind.OUT_OF_MEMORY and max(plan.resources.learners_per_node) > 1:
        evidence = replace(evidence, role="")  # any of the node's learners may have used too much
    return failed(rule.kind, f"{rule.sentence}: {line.strip()}", hint, evidence)


def _evidence_of_lost(observed: Observed, status: Status) -> Evidence:
    """Return the evidence about a learner whose watchdog left no word."""
    words = [*observed.logs.get(status.rank, []), *observed.launcher_words][-20:]
    return replace(evidence_of(status), last_lines=words)


def _launcher_failed(plan: Plan, observed: Observed) -> Outcome:
    words, name = observed.launcher_words, launcher_name(plan)
    sentences = _sentences(words)
    output = f": {sentences[-1]}" if sentences else "."
    started, first = len(observed.statuses), next(iter(observed.statuses), None)
    evidence = Evidence(
        "learner", first.rank if first else 0, first.host if first else "",
        observed.launcher_exit, None, words[-LAST_LINES:],
    )  # fmt: skip
    if (found := _launchers_word(plan, words)) is not None:
        return _by_rule(plan, found, evidence)
    if started == plan.resources.learners:
        output = f": {sentences[0]}" if sentences else "."
        reason = f"{name} ended the learners, none of which had failed{output}"
        return failed(VerdictKind.SCHEDULER, reason, go_on(plan), evidence)
    reason = (
        f"The launcher ended with exit code {observed.launcher_exit} after {started} of "
        f"{plan.resources.learners} learners had started{output}"
    )
    hint = f"See the launcher's log, and check the site: dlctl doctor {plan.site}"
    return failed(VerdictKind.SITE, reason, hint, evidence)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
