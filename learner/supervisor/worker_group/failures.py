"""Outcomes of trainings with a parameter server that a lost learner or server ends. Pure."""

from __future__ import annotations

from dlctl.contract import Evidence, Plan, Status, VerdictKind
from dlctl.contract.programs.verdict_rules import NEWEST
from learner.errors import EXIT_NO_RESTART
from learner.job.outcome import Outcome, failed
from learner.supervisor.explanation import explain, go_on, read_words, see_log
from learner.supervisor.worker_group.worker import LIVED_S, LearnerWorker, ServerWorker


def learner_failure(
    plan: Plan, learner: LearnerWorker, status: Status | None, left: int
) -> Outcome:
    """Return the outcome of a training that can't continue without a learner that was given up.

    Args:
        status: the learner's last status; None if its node was lost.
        left: how many learners have not been given up.
    """
    needed = plan.parameter_server.min_learners if plan.parameter_server else 0
    enough = f"{left} of {plan.resources.learners} learners are left, min_learners is {needed}"
    why = "it validates and saves" if learner.rank == 0 else enough
    kind, hint = VerdictKind.UNKNOWN, go_on(plan)
    code = number = None
    words = learner.words()
    if status is not None and status.signal is not None:
        code, number, words = status.exit_code, status.signal, status.last_lines
        outcome = explain(plan, status)
        kind, hint = outcome.kind, outcome.hint
    evidence = Evidence("learner", learner.rank, learner.host, code, number, words)
    name = learner.name[:1].upper() + learner.name[1:]
    return failed(kind, f"{name} {learner.lost}: {why}.", hint, evidence)


def server_failure(
    plan: Plan, server: ServerWorker, words: list[str], code: int | None, why: str = ""
) -> Outcome:
    """Return the outcome of a training that can't continue because a server can't run.

    Args:
        words: the last lines that the server printed.
        why: the known cause, if `words` don't show it.
    """
    name = server.name[:1].upper() + server.name[1:]
    status = server.failed()
    if status is not None and not why:
        words = status.last_lines
    evidence = Evidence("server", server.node, server.host, code, None, words)
    training = plan.training_id
    if why:
        reason = f"{name} can't continue: {why}."
        return failed(VerdictKind.SITE, reason, go_on(plan), evidence)
    kind, what, hint = read_words(plan, words, code)
    if hint == see_log(plan, 0):
        hint = (
            f"See why in server-{server.node}.log (dlctl logs {training}), then resume "
            f"{NEWEST}: dlctl resume {training}"
        )
    within = f"each time within {LIVED_S / 60:g} min of its start,"
    times = f" {server.restarts.limit} times in a row, {within}"
    times = "" if code == EXIT_NO_RESTART else times
    reason = f"{name} failed{times} with exit code {code}: {what}"
    return failed(kind, reason, hint, evidence)
