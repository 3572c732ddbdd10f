"""Why a training with a parameter server has to end before its learners have. Pure."""

from __future__ import annotations

from dlctl.contract import Guilty, Plan, Status, VerdictKind
from learner.errors import EXIT_NO_RESTART
from learner.job.outcome import Outcome, failed
from learner.supervisor.verdict import explain, go_on, read_words
from learner.supervisor.verdict_rules import SEE_LOG
from learner.supervisor.worker_group.worker import LIVED_S, LearnerWorker, ServerWorker


def learner_failure(
    plan: Plan, learner: LearnerWorker, status: Status | None, left: int
) -> Outcome:
    """Return why the training can't do without a learner that was given up.

    Args:
        status: its last one, unless its node was lost.
        left: how many learners are not given up.
    """
    needed = plan.parameter_server.min_learners if plan.parameter_server else 0
    enough = f"{left} of {plan.resources.learners} learners are left, min_learners is {needed}"
    why = "it validates and saves" if learner.rank == 0 else enough
    kind, hint = VerdictKind.UNKNOWN, go_on(plan)
    code = number = None
    words = learner.words()
    if status is not None and status.signal is not None:
        code, number, words = status.exit_code, status.signal, status.last_lines
        told = explain(plan, status)
        kind, hint = told.kind, told.hint
    guilty = Guilty("learner", learner.rank, learner.host, code, number, words)
    name = learner.name[:1].upper() + learner.name[1:]
    return failed(kind, f"{name} {learner.lost}: {why}.", hint, guilty)


def server_failure(
    plan: Plan, server: ServerWorker, words: list[str], code: int | None, why: str = ""
) -> Outcome:
    """Return why the training can't have a server.

    Args:
        why: what is known, where its words don't tell.
    """
    name = server.name[:1].upper() + server.name[1:]
    node, host, status = server.node, server.host, server.failed()
    if status is not None and not why:  # of servers that are one step it is one of them
        node, host, words = status.rank, status.host, status.last_lines
        name = f"The server on {host}"
    guilty = Guilty("server", node, host, code, None, words)
    training = plan.training_id
    if why:
        reason = f"{name.rstrip(',')}, can't go on: {why}."
        return failed(VerdictKind.SITE, reason, go_on(plan), guilty)
    kind, told, hint = read_words(plan, words, code)
    if hint == SEE_LOG:
        hint = (
            f"See why in server-{server.node}.log (dlctl logs {training}), then go on from the "
            f"newest checkpoint: dlctl resume {training}"
        )
    within = f"each time within {LIVED_S / 60:g} min of its start,"
    times = f" {server.restarts.limit} times in a row, {within}"
    times = "" if code == EXIT_NO_RESTART else times
    reason = f"{name} failed{times} with exit code {code}: {told}"
    return failed(kind, reason, hint, guilty)
