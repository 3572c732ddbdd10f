"""Judge the ranks' preflight reports: do plan, launcher and MPI agree? Pure.

A wrong PMI gives N worlds of size 1 that all exit 0: N models, each trained on its own.
The preflight must stop such a job, and its message gives both numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from dlctl.contract import MPI_PENDING, Evidence, Plan, Preflight, VerdictKind
from dlctl.contract.launchers import LAUNCHERS
from dlctl.contract.programs.advice import filled
from dlctl.contract.programs.verdict_rules import Place, Rule, blamed_host, first_match
from learner.job.context import launcher_name
from learner.job.outcome import Outcome, failed, says_lost
from learner.supervisor.preflight.node_health import name_of, unfit_nodes


@dataclass(frozen=True)
class Findings:
    """The results of the preflight step."""

    reports: list[Preflight]
    """In rank order, without the ranks that wrote none."""
    exit_code: int | None
    """The launcher's exit code, None if its time was up."""
    words: list[str] = field(default_factory=list)
    """The last lines that the launcher and the ranks printed."""
    began_at: float = 0.0
    """In Unix seconds, by the supervisor's clock."""
    ended_at: float = float("inf")


def judge(plan: Plan, findings: Findings) -> Outcome | None:
    """Return the outcome that ends the attempt, or None if everything agrees."""
    return (
        _judge_sizes(plan, findings)
        or _judge_nodes(plan, findings)
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
                "Check `launcher` in the site file: it must start one process per learner.",
                _evidence(findings, report),
            )
        if report.mpi_size is not None and report.mpi_size != learners:
            return failed(
                VerdictKind.SITE,
                _worlds(plan, report),
                _pmi_hint(plan),
                _evidence(findings, report),
            )
    return None


def _judge_nodes(plan: Plan, findings: Findings) -> Outcome | None:
    unfit = unfit_nodes(findings.reports, findings.began_at, findings.ended_at)
    if not unfit:
        return None
    first = unfit[0]
    faults = "; ".join(f"{each.host} {each.fault.what}" for each in unfit)
    hint = (
        f"The next attempts avoid it: dlctl resume {plan.training_id}; `dlctl sites nodes "
        f"{plan.site}` lists the nodes to avoid."
    )
    evidence = Evidence("learner", first.rank, first.host, findings.exit_code)
    outcome = failed(VerdictKind(first.fault.kind), f"The node {faults}.", hint, evidence)
    return replace(outcome, bad_hosts=tuple(each.host for each in unfit))


def _judge_problems(findings: Findings) -> Outcome | None:
    for report in findings.reports:
        if report.problems:
            what, _, hint = report.problems[0].partition("\n")
            where = _where(findings.reports, report)
            # What only some nodes lack is no mistake of the user's.
            is_mistake = not where and report.problems[0] in report.mistakes
            kind = VerdictKind.USER_ERROR if is_mistake else VerdictKind.SITE
            outcome = failed(kind, what + where, hint, _evidence(findings, report))
            return replace(outcome, bad_hosts=_nodes_with(findings.reports, report.problems[0]))
    return None


def _judge_loss(plan: Plan, findings: Findings) -> Outcome | None:
    """Judge a lost node; runs before the checks that would blame the site for missing reports."""
    lost = says_lost(findings.words)
    late = [*_silent(plan, findings), *(report.rank for report in _pending(findings))]
    if not lost or not late:
        return None
    found = first_match(Place.LAUNCHER, [lost])
    host = blamed_host(*found) if found else ""
    evidence = Evidence("learner", late[0], host, findings.exit_code, None, findings.words)
    hint = f"Start again, on other nodes: dlctl resume {plan.training_id}"
    reason = f"A node was lost during the preflight: {lost}"
    return failed(VerdictKind.NODE_LOST, reason, hint, evidence)


def _judge_mpi_start(plan: Plan, findings: Findings) -> Outcome | None:
    if not (pending := _pending(findings)):
        return None
    how = "did not return in time" if findings.exit_code is None else "ended the process"
    what = f"MPI_Init {how} on {pending[0].host} (learner {pending[0].rank})"
    evidence = _evidence(findings, pending[0])
    if match := _lack(findings.words):  # it was killed while MPI started
        hint = filled(match[0].hint, plan, pending[0].rank)
        return failed(match[0].kind, f"{what}: {match[1].strip()}", hint, evidence)
    return failed(VerdictKind.SITE, f"{what}.", _pmi_hint(plan), evidence)


def _telling_line(words: list[str]) -> list[str]:
    """Return the line that tells most: Open MPI puts what it has to say between lines of dashes."""
    lines = [line.strip() for line in words]
    if lines and set(lines[-1]) == {"-"}:
        before = [at for at, line in enumerate(lines[:-1]) if line and set(line) == {"-"}]
        framed = [line for line in lines[before[-1] + 1 if before else 0 : -1] if line]
        return framed[:1]
    return [line for line in lines if line][-1:]


def _judge_silence(plan: Plan, findings: Findings) -> Outcome | None:
    learners, silent = plan.resources.learners, _silent(plan, findings)
    if not silent:
        return None
    # The first of srun's error lines names the node; the last says that srun ended the others.
    words = [line for line in findings.words if "error:" in line] or _telling_line(findings.words)
    detail = f": {words[0]}" if words else "."
    code = findings.exit_code
    how = "in time" if code is None else f"({launcher_name(plan)} ended with exit code {code})"
    match = _lack(findings.words) or first_match(Place.LAUNCHER, findings.words)
    outcome = failed(
        match[0].kind if match else VerdictKind.SITE,
        f"The preflight got no report from learner {silent[0]}, one of {learners}, {how}"
        f"{f': {match[1].strip()}' if match else detail}",
        filled(match[0].hint, plan, silent[0]) if match else
        "Check that every node has the site's Python and sees its root folder: "
        f"dlctl doctor {plan.site}",
        Evidence("learner", silent[0], "", code, None, findings.words),
    )  # fmt: skip
    return replace(outcome, bad_hosts=_ended_only_on(findings))


def _lack(words: Sequence[str]) -> tuple[Rule, str] | None:
    """Return the rule and the line by which the launcher or a rank says what the site lacks."""
    kinds = (VerdictKind.OUT_OF_MEMORY, VerdictKind.DISK_FULL, VerdictKind.SITE)
    places = (Place.LAUNCHER, Place.LEARNER)
    found = filter(None, (first_match(place, words) for place in places))
    return next((each for each in found if each[0].kind in kinds), None)


_ENDED_ON = re.compile(r"error: (\S+): tasks? [\d,-]+: Exited with exit code")


def _ended_only_on(findings: Findings) -> tuple[str, ...]:
    """Return the nodes on which a process ended before its report, while others reported."""
    fine = {name_of(report) for report in findings.reports}
    ended = [match[1] for line in findings.words if (match := _ENDED_ON.search(line))]
    return tuple(dict.fromkeys(host for host in ended if fine and host not in fine))


def _nodes_with(reports: Sequence[Preflight], problem: str) -> tuple[str, ...]:
    """Return the nodes on which a problem was seen; none if it was seen on all of them."""
    alike = _without_names(problem)
    found = (r for r in reports if alike in map(_without_names, r.problems))
    hosts = list(dict.fromkeys(name_of(r) for r in found))
    return tuple(hosts) if len(hosts) < len({name_of(r) for r in reports}) else ()


def _without_names(problem: str) -> str:
    """Return a problem without the names and addresses in which two nodes' words differ."""
    return re.sub(r"[\w.-]*\d[\w.-]*", "#", problem)


def _silent(plan: Plan, findings: Findings) -> list[int]:
    """Return the ranks without a report."""
    return sorted(set(range(plan.resources.learners)) - {r.rank for r in findings.reports})


def _pending(findings: Findings) -> list[Preflight]:
    """Return the reports of the ranks in which MPI_Init has not returned."""
    return [report for report in findings.reports if report.mpi_library == MPI_PENDING]


def _evidence(findings: Findings, report: Preflight) -> Evidence:
    code = findings.exit_code
    return Evidence("learner", report.rank, report.host, code, None, findings.words)


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
    """Return on which nodes a problem was seen; nothing if it was seen on all of them."""
    hosts = _nodes_with(reports, first.problems[0])
    return f" (Seen on {', '.join(sorted(hosts))}.)" if hosts else ""
