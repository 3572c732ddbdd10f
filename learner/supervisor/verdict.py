"""How an attempt ended, judged from what the watchdogs wrote. Pure.

The guilty one is the learner that failed first; those that the launcher ended because of it are
CANCELLED in their status and are not looked at.
"""

from __future__ import annotations

import re
import signal

from dlctl.contract import Guilty, Plan, State, Status, Verdict
from learner.job.context import launcher_name
from learner.job.slurm import says_full
from learner.job.status import UNFINISHED, UNSAVED
from learner.supervisor.outcome import Ending
from learner.supervisor.restart_policy import has_saved

SEE_LOG = "See its log: dlctl logs"
_SIGNALS = {
    4: "illegal instruction: the program is built for another kind of CPU",
    6: "abort",
    7: "bus error: often a full /dev/shm",
    11: "segmentation fault",
    15: "SIGTERM",
}

_ENDS_OF_STEPS = {
    r"node failure|node fail|lost connection to node": "A node was lost",
    r"\*\*\* STEP \S+ ON \S+ CANCELLED AT": "Slurm ended the learners' step",
}


def decide(plan: Plan, attempt: int, job_id: str, ending: Ending) -> Verdict:
    """Return the verdict over an attempt whose learners ran."""
    states = [status.state for status in ending.statuses]
    complete = len(states) + len(ending.lost) == plan.resources.learners
    if ending.wish is not None and ending.wish.state is State.CANCELLED:
        return Verdict(attempt, job_id, State.CANCELLED, _sentence(ending.wish.reason))
    if (why := ending.failure) is not None:
        return Verdict(attempt, job_id, State.FAILED, why.reason, why.hint, why.guilty)
    if complete and all(state is State.COMPLETED for state in states):
        learners = _how_many(len(states), plan.resources.learners)
        warning = next((f"; {s.reason}" for s in ending.statuses if s.reason), "")
        warning += f"; {ending.undone}" if ending.undone else ""
        reason = f"{learners} ended with exit code 0{warning}{_tell_lost(ending.lost)}."
        return Verdict(attempt, job_id, State.COMPLETED, reason)
    if _halted(ending, complete):
        wish = ending.wish.reason.rstrip(".") if ending.wish else "the learners saved and stopped"
        makers = ending.statuses[:1] if plan.launch.step_per_learner else ending.statuses
        saved = bool(makers) and all(has_saved(status) for status in makers)
        reason = wish + ("" if saved else ", before all was saved") + _tell_lost(ending.lost)
        hint = f"Go on with: dlctl resume {plan.training_id}" if saved else go_on(plan)
        # The built-in loop's learners leave as well as that before the training has begun.
        if not ending.checkpoints and (not saved or plan.framework.kind == "job"):
            hint = f"There is no checkpoint yet; begin anew: dlctl resume {plan.training_id}"
        return Verdict(attempt, job_id, State.HALTED, _sentence(reason), hint)
    return _failed(plan, attempt, job_id, ending)


def _how_many(count: int, learners: int) -> str:
    if count < learners:
        return f"{count} of {learners} learners"
    return "The learner" if count == 1 else f"All {count} learners"


def _tell_lost(lost: dict[int, str]) -> str:
    """Return which learners were given up, those with the same reason together."""
    parts = []
    for why in dict.fromkeys(lost.values()):
        ranks = [str(rank) for rank in sorted(lost) if lost[rank] == why]
        if len(ranks) == 1:
            parts.append(f"; learner {ranks[0]} {why}")
        else:
            many = re.sub(r"^was\b", "were", why)
            parts.append(f"; learners {', '.join(ranks[:-1])} and {ranks[-1]} {many}")
    return "".join(parts)


def _halted(ending: Ending, complete: bool) -> bool:
    states = {status.state for status in ending.statuses}
    fine = {State.COMPLETED, State.HALTED}
    if ending.wish is not None:
        fine.add(State.CANCELLED)  # the launcher was ended after the grace period
    if complete and states <= fine:
        return ending.wish is not None or State.HALTED in states
    if ending.wish is None or not ending.wish.terminated:
        return False
    failed = [status for status in ending.statuses if status.state is State.FAILED]
    return not says_full(ending.launcher_words) and all(
        status.signal == signal.SIGTERM for status in failed
    )


def _failed(plan: Plan, attempt: int, job_id: str, ending: Ending) -> Verdict:
    failed = [status for status in ending.statuses if status.state is State.FAILED]
    lost = [status for status in ending.statuses if not status.state.final]
    spoke = [status for status in lost if _spoke(status, ending.logs.get(status.rank, []))]
    if spoke and not any(_spoke(status, status.last_lines) for status in failed):
        return _cut_short(plan, attempt, job_id, ending, spoke[0])
    if failed:
        first = min(failed, key=lambda status: status.heartbeat_at)
        reason, hint = explain(plan, first)
        return Verdict(attempt, job_id, State.FAILED, reason, hint, _guilty(first))
    if lost:
        return _vanished(plan, attempt, job_id, ending, min(lost, key=lambda s: s.heartbeat_at))
    return _launcher_failed(plan, attempt, job_id, ending)


def _spoke(status: Status, lines: list[str]) -> bool:
    """Return whether the built-in loop of this learner told why it ends (`learner.errors`)."""
    return any(line.startswith(f"[rank {status.rank} on ") for line in _own_words(lines))


def _cut_short(
    plan: Plan, attempt: int, job_id: str, ending: Ending, status: Status
) -> Verdict:  # fmt: skip
    # On MPI_Abort Slurm kills the whole step at once: the watchdog may not live to tell of it.
    words = ending.logs[status.rank]
    what, hint = read_words(plan, words, None)
    guilty = Guilty("learner", status.rank, status.host, None, None, words)
    return Verdict(attempt, job_id, State.FAILED, f"{_who(status)} failed: {what}", hint, guilty)


def _vanished(
    plan: Plan, attempt: int, job_id: str, ending: Ending, status: Status
) -> Verdict:  # fmt: skip
    words = [*ending.logs.get(status.rank, []), *ending.launcher_words][-20:]
    guilty = Guilty("learner", status.rank, status.host, status.exit_code, status.signal, words)
    if told := _told_by_slurm(plan, ending.launcher_words):
        return Verdict(attempt, job_id, State.FAILED, *told, guilty)
    said = (
        f" {launcher_name(plan)} said: {ending.launcher_words[-1]}" if ending.launcher_words else ""
    )
    reason = f"{_who(status)} vanished with its watchdog; killed from outside.{said}"
    return Verdict(attempt, job_id, State.FAILED, reason, _memory_hint(plan), guilty)


def _told_by_slurm(plan: Plan, words: list[str]) -> tuple[str, str] | None:
    """Return why Slurm killed a whole step, watchdogs and all, and what to do next."""
    if line := says_full(words):
        why = f"The learners were killed for using more memory than asked for: {line}"
        return why, _memory_hint(plan)
    for pattern, what in _ENDS_OF_STEPS.items():
        for line in words:
            if re.search(pattern, line, re.IGNORECASE):
                return f"{what}: {line.strip()}", go_on(plan)
    return None


def go_on(plan: Plan) -> str:
    """Return what to do next where a training has ended before its end."""
    return f"Go on from the newest checkpoint: dlctl resume {plan.training_id}"


def _launcher_failed(plan: Plan, attempt: int, job_id: str, ending: Ending) -> Verdict:
    words = ending.launcher_words
    said = f": {words[-1]}" if words else "."
    started = len(ending.statuses)
    reason = (
        f"The launcher ended with exit code {ending.launcher_exit} after {started} of "
        f"{plan.resources.learners} learners had started{said}"
    )
    first = ending.statuses[0] if ending.statuses else None
    guilty = Guilty(
        "learner", first.rank if first else 0, first.host if first else "",
        ending.launcher_exit, None, words,
    )  # fmt: skip
    hint = f"See the launcher's log, and check the site: dlctl sites check {plan.site}"
    return Verdict(attempt, job_id, State.FAILED, reason, hint, guilty)


def explain(plan: Plan, status: Status) -> tuple[str, str]:
    """Return one sentence on why a learner failed, and what to do next."""
    who = _who(status)
    if status.reason == UNFINISHED:
        return f"{who} {UNFINISHED}.", (
            "Let `build` return, and leave the end to the loop: no exit in the program."
        )
    if status.exit_code is None and status.signal is None or not status.last_lines:
        told = status.reason or "failed"
        if status.signal is None and status.exit_code not in (126, 127):
            return f"{who}: {told.rstrip('.')}.", SEE_LOG
    if status.reason == UNSAVED:
        return f"{who} {UNSAVED}.", "Raise the time, or checkpoint more often."
    if status.signal is not None:
        return _explain_signal(plan, who, status.signal)
    what, hint = read_words(plan, status.last_lines, status.exit_code)
    return f"{who} failed with exit code {status.exit_code}: {what}", hint


def _explain_signal(plan: Plan, who: str, number: int) -> tuple[str, str]:
    if number == 9:
        return (
            f"{who} was killed by signal 9, probably by its memory limit ({_memory(plan)}).",
            _memory_hint(plan),
        )
    what = _SIGNALS.get(number, "see its log")
    hint = go_on(plan) if number == signal.SIGTERM else SEE_LOG  # somebody wanted it
    return f"{who} was killed by signal {number} ({what}).", hint


_WORDS: list[tuple[str, str]] = [
    (
        r"ModuleNotFoundError: No module named",
        "Add the module to `requirements` in the manifest, then run: dlctl sites setup {site}",
    ),
    (r"ImportError:", "Check the module's version on the node, or run: dlctl sites setup {site}"),
    (r"(SyntaxError|IndentationError|TabError):", "Correct the program and submit again."),
    (
        r"FileNotFoundError:|No such file or directory",
        "Check the path; training data is below $DATA_DIR, the program's own files in $MODEL_DIR.",
    ),
    (
        r"OutOfMemoryError|CUDA out of memory|MemoryError|[Cc]annot allocate memory",
        "Make the batch smaller, or ask for more with --memory or --gpus.",
    ),
    (
        r"shared memory ?\(shm\)|out of shared memory",  # of DataLoaders' workers
        "Free /dev/shm on that node, or have the DataLoader use fewer workers, then go on from the "
        "newest checkpoint: dlctl resume {id}",
    ),
    (
        r"No space left on device|Disk quota exceeded",
        "Free space on the node's file system (dlctl delete removes old trainings), then go on "
        "from the newest checkpoint: dlctl resume {id}",
    ),
    (r"Address already in use", "Another job took the port: submit again."),
]


_OUR_ERROR = re.compile(r"(learner\.(?:errors|faults)|psrv\.errors)\.\w+: ")
"""Before the sentence where Python has shown the error, in a program of the user's own."""
_SPEAKER = re.compile(r"\[(?:rank|server) \d+ on [^\]]*\] ?")


def _own_words(lines: list[str]) -> list[str]:
    """Return the lines in which the built-in loop says why it ends (`learner.errors`)."""
    spoken = [(line, _SPEAKER.match(line)) for line in lines]
    return [line for line, said in spoken if said and not line.startswith("WARNING:", said.end())]


def read_words(plan: Plan, lines: list[str], exit_code: int | None) -> tuple[str, str]:
    """Return what a program's last lines say, and a hint."""
    # MPI may have had the very last word; who speaks is told before the reason already.
    lines = [_SPEAKER.sub("", line, count=1) for line in _own_words(lines)] or lines
    told = _told_by_us(lines)
    if told is not None:
        return told
    if exit_code == 127:
        return f"command not found: {lines[-1]}" if lines else "command not found.", (
            "Check `framework.command`, and the modules of the site file."
        )
    if exit_code == 126:
        return "the program is not executable.", "Run: chmod +x on it, and submit again."
    for pattern, hint in _WORDS:
        for line in reversed(lines):
            if re.search(pattern, line):
                return _place(lines, line) + line.strip(), hint.format(
                    site=plan.site, id=plan.training_id
                )
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    if not lines:
        return "it printed nothing.", SEE_LOG
    last = (errors or lines)[-1]
    return (_place(lines, last) if errors else "") + last.strip(), SEE_LOG


def _told_by_us(lines: list[str]) -> tuple[str, str] | None:
    """Return what the built-in loop said of a user's mistake: a sentence and its HINT."""
    for index in range(len(lines) - 1, 0, -1):
        if lines[index].strip().startswith("HINT:"):
            said = _OUR_ERROR.sub("", lines[index - 1].strip())
            return said, lines[index].strip().removeprefix("HINT:").strip()
    return None


def _place(lines: list[str], line: str) -> str:
    """Return `file:line: ` for an error that Python showed with its place."""
    for other in reversed(lines[: lines.index(line)]):
        found = re.match(r'\s*File "(.+)", line (\d+)', other)
        if found:
            return f"{found[1].rpartition('/')[2]}:{found[2]}: "
    return ""


def _who(status: Status) -> str:
    return f"Learner {status.rank} on {status.host}"


def _memory(plan: Plan) -> str:
    size = plan.resources.memory_bytes_per_learner
    return "the plan sets none" if size is None else f"{size / 2**30:.3g} GiB a learner"


def _memory_hint(plan: Plan) -> str:
    asked = plan.resources.memory_bytes_per_learner
    mib = 4096 if asked is None else -(-asked // 2**19)
    more = f"{mib // 1024}GiB" if mib % 1024 == 0 else f"{mib}MiB"
    return (
        f"Go on with more memory (now: {_memory(plan)}): "
        f"dlctl resume {plan.training_id} --memory {more}"
    )


def _guilty(status: Status) -> Guilty:
    return Guilty(
        "learner", status.rank, status.host, status.exit_code, status.signal, status.last_lines
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
