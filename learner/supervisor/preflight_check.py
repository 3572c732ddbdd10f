"""Whether plan, launcher and MPI agree: judges the ranks' preflight reports. Pure.

A wrong PMI gives N worlds of size 1 that all exit 0: N models, each trained on a part of nothing.
That must stop here, with both numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dlctl.contract import MPI_PENDING, Guilty, Plan, Preflight, VerdictKind
from dlctl.contract.launchers import LAUNCHERS
from learner.job.context import launcher_name
from learner.job.outcome import Outcome, failed
from learner.job.slurm import says_lost


@dataclass(frozen=True)
class Findings:
    """What the preflight step left behind."""

    reports: list[Preflight]
    """In rank order; a rank that wrote none is missing."""
    exit_code: int | None
    """The launcher's, None if its time was up."""
    words: list[str] = field(default_factory=list)
    """The end of what launcher and ranks printed."""


def judge(plan: Plan, findings: Findings) -> Outcome | None:
    """Return what ends the attempt, or None where everything agrees."""
    return (
        _judge_sizes(plan, findings)
        or _judge_problems(findings)
        or _judge_loss(plan, findings)
        or _judge_mpi_start(plan, findings)
        or _judge_silence(plan, findings)
    )


def _judge_sizes(plan: Plan, findings: Findings) -> Outcome | None:
    learners = plan.resources.learners
    for report in findings.reports:
        if report.launcher_size != learners:
            return failed(
                VerdictKind.SITE,
                f"The plan has {learners} learners, but {plan.launch.kind} started "
                f"{report.launcher_size} processes.",
                "Check `launcher` in the site file: it has to start one process per learner.",
                _guilty(findings, report),
            )
        if report.mpi_size is not None and report.mpi_size != learners:
            return failed(
                VerdictKind.SITE, _worlds(plan, report), _pmi_hint(plan), _guilty(findings, report)
            )
    return None


def _judge_problems(findings: Findings) -> Outcome | None:
    for report in findings.reports:
        if report.problems:
            what, _, hint = report.problems[0].partition("\n")
            where = _where(findings.reports, report)
            return failed(VerdictKind.SITE, what + where, hint, _guilty(findings, report))
    return None


def _judge_loss(plan: Plan, findings: Findings) -> Outcome | None:
    """Before what its loss left undone is called a fault of the site."""
    lost = says_lost(findings.words)
    late = [*_silent(plan, findings), *(report.rank for report in _pending(findings))]
    if not lost or not late:
        return None
    guilty = Guilty("learner", late[0], "", findings.exit_code, None, findings.words)
    hint = f"Begin anew, on nodes that are there: dlctl resume {plan.training_id}"
    return failed(VerdictKind.NODE_LOST, f"A node was lost in the preflight: {lost}", hint, guilty)


def _judge_mpi_start(plan: Plan, findings: Findings) -> Outcome | None:
    if not (pending := _pending(findings)):
        return None
    how = "did not come up in time" if findings.exit_code is None else "ended the process"
    return failed(
        VerdictKind.SITE,
        f"MPI_Init {how} on {pending[0].host} (learner {pending[0].rank}).",
        _pmi_hint(plan),
        _guilty(findings, pending[0]),
    )


def _judge_silence(plan: Plan, findings: Findings) -> Outcome | None:
    learners, silent = plan.resources.learners, _silent(plan, findings)
    if not silent:
        return None
    # Of what srun says the first line names the node, and the last that it has ended the others.
    words = [line for line in findings.words if "error:" in line] or findings.words[-1:]
    said = f": {words[0]}" if words else "."
    code = findings.exit_code
    how = "in time" if code is None else f"({launcher_name(plan)} ended with exit code {code})"
    return failed(
        VerdictKind.SITE,
        f"The preflight got no report of learner {silent[0]}, one of {learners}, {how}{said}",
        "Check that every node has the site's Python and sees its root folder: "
        f"dlctl sites check {plan.site}",
        Guilty("learner", silent[0], "", code, None, findings.words),
    )


def _silent(plan: Plan, findings: Findings) -> list[int]:
    """Return the ranks without a report."""
    return sorted(set(range(plan.resources.learners)) - {r.rank for r in findings.reports})


def _pending(findings: Findings) -> list[Preflight]:
    """Return the reports of those that have not come out of MPI_Init."""
    return [report for report in findings.reports if report.mpi_library == MPI_PENDING]


def _guilty(findings: Findings, report: Preflight) -> Guilty:
    code = findings.exit_code
    return Guilty("learner", report.rank, report.host, code, None, findings.words)


def _worlds(plan: Plan, report: Preflight) -> str:
    size = report.mpi_size or 1
    return (
        f"MPI sees {max(1, report.launcher_size // size)} worlds of size {size} instead of one "
        f"of {plan.resources.learners}: the plan has {plan.resources.learners} learners, "
        f"{plan.launch.kind} started {report.launcher_size}, MPI.COMM_WORLD.size is {size} "
        f"({report.mpi_library})."
    )


def _pmi_hint(plan: Plan) -> str:
    return LAUNCHERS[plan.launch.kind].pmi_hint(plan.site)


def _where(reports: list[Preflight], first: Preflight) -> str:
    """Return on which nodes a problem was seen, where that is not all of them."""
    hosts = sorted({r.host for r in reports if first.problems[0] in r.problems})
    if len(hosts) == len({r.host for r in reports}):
        return ""
    return f" (Seen on {', '.join(hosts)}.)"
