"""Decide what follows an attempt that has ended. Pure.

Faults of the infrastructure are retried while the checkpoint advances, with exponential back-off
and jitter; a time limit and a preemption are no faults. A user's error is never retried.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import replace

from dlctl.contract import BAD_NODE_S, Action, Lifecycle, Next, State, Verdict, VerdictKind

RETRIES = 3
"""Retries of a training that has a checkpoint, if its manifest does not say how many."""
WITHOUT_PROGRESS = 3
"""After this many attempts whose checkpoint did not advance, a person decides."""
LONGEST_DELAY_S = 600.0
GROWTH = 4.0
"""The delay grows by this factor with each failed retry: few retries must outlast an outage."""
JITTER = 0.25
LEAST_TIME_S = 30.0
"""A shorter rest of the training's time is not worth a job."""

_NOT_FAULTS = {VerdictKind.TIME_LIMIT, VerdictKind.PREEMPTED}
_BY_A_PERSON = {VerdictKind.REQUESTED, VerdictKind.CANCELLED, VerdictKind.SUPERSEDED}
_NEVER = {
    VerdictKind.USER_ERROR: "an error in the program, its data or the manifest would happen again",
    VerdictKind.NOT_A_NUMBER: "the loss would become NaN again",
    VerdictKind.PLATEAU: "the manifest's `stop.plateau` ended the training",
    VerdictKind.BUDGET: "the manifest's limit on hours ended the training",
    VerdictKind.GPU_OUT_OF_MEMORY: "a GPU's memory would run out again",
}
_FIRST_DELAY_S = {
    VerdictKind.DISK_FULL: 60.0,
    VerdictKind.NETWORK: 10.0,
    VerdictKind.SITE: 30.0,
    VerdictKind.TRY_AGAIN: 10.0,
    VerdictKind.SCHEDULER: 10.0,
    VerdictKind.INTERNAL: 10.0,
}
_SHORT_DELAY_S = 1.0
"""After the death of a process, which is retried at once as long as that gains checkpoints."""
USED_UP = "the training's `time` is used up"
_NODES_FAULT = {VerdictKind.NODE_LOST, VerdictKind.GPU_ERROR}
"""The host of the evidence is to blame, and is avoided from then on."""


def decide(
    lifecycle: Lifecycle | None,
    verdicts: Sequence[Verdict],
    now: float,
    chance: float | None = None,
    *,
    by_a_person: bool = False,
    has_trained: bool = False,
) -> Action:
    """Return what follows the newest verdict.

    Args:
        verdicts: of all attempts, the oldest first; the last one has no action yet.
        now: Unix seconds.
        chance: from 0 to 1, for the jitter; None: random.
        by_a_person: whether somebody has asked to halt or to cancel the training.
        has_trained: whether the training is done, so that the next attempt only stores its results.
    """
    newest = verdicts[-1]
    kind = _kind(newest)
    if newest.state is State.COMPLETED:
        return Action(Next.NOTHING, "the training completed")
    if kind in _BY_A_PERSON or by_a_person:
        return Action(Next.NOTHING, "a person ended the training, or it was taken over")
    if lifecycle is None:
        return Action(Next.STOP, "its plan was made by an older dlctl, which starts no attempts")
    objection = _NEVER.get(kind, "") or _used_up(lifecycle, verdicts) or _stuck(verdicts)
    if objection:
        return Action(Next.STOP, objection)
    why = "the training begins again: it has written no checkpoint"
    if has_trained:
        why = "the training is done, and its results are stored"
    elif newest.progress >= 0:
        why = "the training continues from its newest checkpoint"
    following = Action(
        Next.CONTINUE, why, newest.attempt + 1,
        not_before=now, exclude=_avoided(verdicts, now), time_s=_rest_s(lifecycle, verdicts),
    )  # fmt: skip
    is_in_vain = kind is VerdictKind.TIME_LIMIT and _saved_nothing(newest)
    if is_in_vain and lifecycle.retries is None and not has_trained:
        why = "the job's time was up before the program had saved anything: the next job would "
        return Action(Next.STOP, f"{why}begin anew, which `retries: 3` allows")
    if kind in _NOT_FAULTS:
        return following
    chance = random.random() if chance is None else chance  # noqa: S311 - no secret
    return _retry(lifecycle, verdicts, following, chance, has_trained=has_trained)


def _saved_nothing(verdict: Verdict) -> bool:
    """Return whether steps were made, but no file that a next attempt may go on from."""
    made = verdict.made
    is_lost = made is not None and not (made.checkpoints.files or made.results.files or made.output)
    return is_lost and verdict.progress < 0 <= verdict.step


def _kind(verdict: Verdict) -> VerdictKind:
    try:
        return VerdictKind(verdict.kind)
    except ValueError:
        return VerdictKind.UNKNOWN


def _retry(
    lifecycle: Lifecycle,
    verdicts: Sequence[Verdict],
    following: Action,
    chance: float,
    *,
    has_trained: bool,
) -> Action:
    """Return the retry of a fault, or why there is none."""
    newest, kind = verdicts[-1], _kind(verdicts[-1])
    factor = 1.0
    if kind is VerdictKind.OUT_OF_MEMORY:
        if lifecycle.memory_factor is None:
            why = "memory would run out again; `retry: {memory: 1.5x}` would ask for more once"
            return Action(Next.STOP, why)
        if any(each.action and each.action.memory_factor > 1 for each in verdicts[:-1]):
            return Action(Next.STOP, "memory ran out again after it was raised once")
        factor = lifecycle.memory_factor
    done = len(_retried(verdicts))
    allowed = lifecycle.retries
    if allowed is None:
        # Nothing is lost by beginning again where only the preflight has run.
        loses_nothing = bool(newest.bad_hosts) and newest.step < 0
        # The program asks for it, or the user does for more memory.
        retried_kinds = (VerdictKind.TRY_AGAIN, VerdictKind.OUT_OF_MEMORY)
        loses_nothing = loses_nothing or kind in retried_kinds or has_trained
        allowed = RETRIES if newest.progress >= 0 or loses_nothing else 0
        if not allowed:
            why = "there is no checkpoint to go on from; `retries: 3` would begin again"
            return Action(Next.STOP, why)
    if done >= allowed:
        used = (
            "the one retry has been used"
            if allowed == 1
            else f"all {allowed} retries have been used"
        )
        return Action(Next.STOP, used if allowed else "no retries are allowed")
    in_vain = itertools.takewhile(lambda each: each.progress >= newest.progress, _retried(verdicts))
    delay_s = _delay_s(lifecycle, kind, len(list(in_vain)), chance)
    start = "the newest checkpoint" if newest.progress >= 0 else "the beginning"
    why = f"retry {done + 1} of {allowed}, from {start}"
    if has_trained:
        why = f"retry {done + 1} of {allowed}, which only stores the results"
    elif newest.progress < 0:
        why = f"retry {done + 1} of {allowed}, from the beginning: there is no checkpoint"
    return replace(
        following, kind=Next.RETRY, why=why, memory_factor=factor,
        not_before=following.not_before + delay_s,
    )  # fmt: skip


def _retried(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Return the attempts that were retried since a job last came to its limit, the newest first.

    A chain of jobs would otherwise end for few faults in many weeks.
    """
    return list(itertools.takewhile(
        lambda each: each.action is not None and each.action.kind is Next.RETRY,
        reversed(verdicts[:-1]),
    ))  # fmt: skip


def _delay_s(lifecycle: Lifecycle, kind: VerdictKind, done: int, chance: float) -> float:
    """Return the exponential back-off with jitter: many trainings may have failed at once.

    Args:
        done: how many retries came before without any progress since.
    """
    first_s = lifecycle.backoff_s
    if first_s is None:
        first_s = _FIRST_DELAY_S.get(kind, _SHORT_DELAY_S if done else 0.0)
    delay_s = min(LONGEST_DELAY_S, first_s * GROWTH ** min(done, 30))
    return delay_s * (1 + JITTER * (2 * chance - 1))


def _used_up(lifecycle: Lifecycle, verdicts: Sequence[Verdict]) -> str:
    left_s = _rest_s(lifecycle, verdicts)
    if left_s is None or left_s >= LEAST_TIME_S:
        return ""
    return USED_UP


def _rest_s(lifecycle: Lifecycle, verdicts: Sequence[Verdict]) -> int | None:
    """Return how much of the training's time is left; None if it has no limit."""
    if lifecycle.total_time_s is None:
        return None
    return max(0, lifecycle.total_time_s - round(sum(each.used_s for each in verdicts)))


def _stuck(verdicts: Sequence[Verdict]) -> str:
    """Return why another attempt would come no further, or an empty text."""
    newest = verdicts[-1]
    if _kind(newest) is VerdictKind.TRY_AGAIN:
        return ""  # the program knows better
    before = verdicts[-2] if len(verdicts) > 1 else None
    if (
        before is not None and before.state is State.FAILED and newest.state is State.FAILED
        and newest.step >= 0 and before.step == newest.step and _error(before) == _error(newest)
    ):  # fmt: skip
        return f"attempts {before.attempt} and {newest.attempt} failed alike at step {newest.step}"
    by_itself = _by_itself(verdicts)
    if len(by_itself) > WITHOUT_PROGRESS:
        reached = [each.progress for each in by_itself[-WITHOUT_PROGRESS - 1 :]]
        if max(reached[1:]) <= reached[0]:
            return f"the checkpoint has not advanced in {WITHOUT_PROGRESS} attempts"
    return ""


def _by_itself(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Return the attempts since a person last resumed the training."""
    ended = [
        n for n, each in enumerate(verdicts[:-1], 1) if each.action and not each.action.goes_on
    ]
    return verdicts[ended[-1] :] if ended else verdicts


def _error(verdict: Verdict) -> tuple[str, str]:
    """Return what identifies an error: numbers differ from attempt to attempt."""
    words = verdict.evidence.last_lines[-1:] if verdict.evidence else []
    return verdict.kind, re.sub(r"\d+", "#", words[0] if words else "")


def _avoided(verdicts: Sequence[Verdict], now: float) -> list[str]:
    """Return the hosts that a fault was blamed on lately, in the order of the faults."""
    blamed: list[str] = []
    for each in verdicts:
        if each.finished_at and now - each.finished_at > BAD_NODE_S:
            continue  # somebody has repaired it by now
        blamed += each.bad_hosts
        if not each.bad_hosts and each.evidence and _kind(each) in _NODES_FAULT:
            blamed.append(each.evidence.host)
    return list(dict.fromkeys(filter(None, blamed)))
