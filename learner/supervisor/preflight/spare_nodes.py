"""Choose the nodes for the learners among those that the job has, if it has asked for spare ones.

A step of its own checks every node first (`learner.agent.preflight`). The learners run on the
first fit ones; the job gives the others back, and the bad ones are remembered for the site. The
job has to shrink: in a step on some of a job's nodes only, PMIx may hang (Slurm 22.05). The first
node, which runs the batch script, can't be given back: if it is bad, the next attempt avoids it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dlctl import contract
from dlctl.contract import NodeFault, Plan, Preflight, VerdictKind
from learner.job.batch import batch_system
from learner.job.context import CHECKED_VARIABLE
from learner.job.outcome import Outcome
from learner.lifecycle.next_attempt import bad_node, remember
from learner.supervisor.preflight.judgement import unfit_outcome
from learner.supervisor.preflight.node_health import Unfit, name_of, remarks, unfit_nodes
from learner.supervisor.steps import Running, Step, step_log
from learner.system.networks import free_port

LIMIT_S = 60.0
"""A node that has not answered by then is left out."""


def choose_nodes(
    plan: Plan, job_dir: Path, attempt: int,
    wait: Callable[[Running, float], int | None], say: Callable[[str], None],
) -> tuple[Plan, Outcome | None]:  # fmt: skip
    """Return the plan with its steps on fit nodes, and an outcome if there are too few of them.

    Args:
        wait: waits for a step until a time of the monotonic clock; None: it was ended.
    """
    system = batch_system(plan)
    hosts = system.all_hosts()
    if len(hosts) <= plan.resources.nodes:
        return plan, None  # an attempt before this one has given the others back
    program = ["learner.agent.preflight", str(job_dir), str(attempt), "nodes"]
    log, began_at = step_log(job_dir, attempt, "preflight-nodes"), time.time()
    step = Step(plan, plan.launch.each_node_argv, program, log)
    wait(step, time.monotonic() + LIMIT_S)
    nodes = range(len(hosts))
    if not (reports := _read(job_dir / contract.node_report_file(attempt, n) for n in nodes)):
        said = "".join(step.words()[-1:])
        say(f"  The check of all nodes failed; the job's first nodes are taken. {said}")
    ended_at = time.time()
    for remark in remarks(reports, began_at, ended_at):
        say(f"  {remark}")
    unfit = [*unfit_nodes(reports, began_at, ended_at), *_silent(hosts, reports)]
    chosen = fit_hosts(plan, hosts, [each.host for each in unfit])
    if len(chosen) < plan.resources.nodes or hosts[0] not in chosen:
        return plan, unfit_outcome(plan, unfit, step.exit_code)
    for each in unfit:
        say(f"  left out: {each.host} {each.fault.what}")
        reason = f"The node {each.host} {each.fault.what}."
        remember(plan, [bad_node(plan, attempt, each.host, each.fault.kind, reason)])
    if problem := system.give_back(chosen, job_dir / contract.attempt_dir(attempt)):
        say(f"  The job can't give back its other nodes: {problem}")
        argv = [*plan.launch.argv, f"--nodelist={','.join(chosen)}"]
        return replace(plan, launch=replace(plan.launch, argv=argv)), None
    return plan, None


def fit_hosts(plan: Plan, hosts: Sequence[str], unfit: Sequence[str]) -> list[str]:
    """Return the hosts for the learners, in the order of the job's: as many as there are. Pure."""
    avoided = {*unfit, *plan.batch.exclude}
    return [host for host in hosts if host not in avoided][: plan.resources.nodes]


def _read(paths: Iterable[Path]) -> list[Preflight]:
    return [each for path in paths if (each := contract.readable_record(Preflight, path))]


def _silent(hosts: Sequence[str], reports: Sequence[Preflight]) -> list[Unfit]:
    """Return the nodes that did not answer, if any did."""
    answered = {name_of(report) for report in reports}
    if not answered:
        return []  # the launcher or the site is at fault, which the preflight tells
    fault = NodeFault(VerdictKind.NODE_LOST, f"did not answer within {LIMIT_S:.0f} s")
    return [Unfit(host, 0, fault) for host in hosts if host not in answered]


def carried_over(job_dir: Path, attempt: int, learners: int) -> list[Preflight]:
    """Return the reports of the attempt before, now also this attempt's; none if it needs its own.

    `learner.lifecycle.starters.InAllocation` says, once, whether a preflight would find nothing
    new: learners that had trained have died, and all start again where they were.
    """
    before = os.environ.pop(CHECKED_VARIABLE, "")
    if before != str(attempt - 1):
        return []
    reports = _read(job_dir / contract.preflight_file(attempt - 1, n) for n in range(learners))
    if len(reports) < learners:
        return []
    # Learner 0 runs on this node; what has died may still hold the old port.
    reports[0] = replace(reports[0], port=free_port())
    for rank, report in enumerate(reports):
        path = job_dir / contract.preflight_file(attempt, rank)
        contract.write_whole(path, contract.to_json(report))
    return reports
