"""Say what the doctor's job has shown: launcher, MPI, torch, GPUs, clocks, chaining. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract import StarterKind, State
from dlctl.contract.launchers import LAUNCHERS
from dlctl.doctor.at_site import packages_fix, starters_fix
from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.doctor.network import add_clock
from dlctl.site_admin.setup import by_kind
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl import contract
    from dlctl.record import Record
    from dlctl.sites.files import Site

LINKS = (
    "job", "launcher of nodes", "shared root", "home of nodes", "mpi", "torch of nodes",
    "gpus of nodes", "clocks of nodes", "chaining",
)  # fmt: skip
_LAUNCHER = "correct launcher in the site's file"
_SHARED = "set root in the site's file to a folder that login node and nodes share"
_NOT_SO_FAR = "not tried: the job did not come so far"


@dataclass(frozen=True)
class Job:
    """A job that has ended, and its files."""

    record: Record
    learners: int
    logs: list[str]
    """The log of each learner."""
    preflights: list[contract.Preflight]
    verdict: contract.Verdict | None
    asked_at: float
    """When the job was submitted, and when it had ended, by this machine's clock."""
    answered_at: float
    own_logs: dict[str, str] = field(default_factory=dict)
    """The output of dlctl's own programs at the site, as far as there is any file."""


def judge_job(chain: Chain, site: Site, job: Job) -> None:
    """Add what the job has shown to the chain."""
    answers = [_last_by_kind(log) for log in job.logs]
    answered = [each for each in answers if "node" in each]
    _ending(chain, job)
    _launcher(chain, job)
    if not answered:  # the preflight ended the job before: it has seen some of this, too
        answers = answered = [_reported(each) for each in job.preflights]
    if answered:
        _root(chain, site, answered)
        _home(chain, answered)
        _mpi(chain, site, job, answers)
        _torch(chain, site, answered)
        _gpus(chain, site, answered)
        _clocks(chain, job, answered)
        return check_chaining(chain, site, _last_by_kind(job.logs[0]))
    if job.record.state is State.FAILED and not job.own_logs:
        # It left nothing, not even its output: it has seen no folder.
        chain.add("shared root", BROKEN, f"the job has left nothing below {site.root}, so nodes "
                  "don't see what the login node writes there", _SHARED)  # fmt: skip
    return chain.skip("not tried: no node has said anything", *LINKS)


def check_chaining(chain: Chain, site: Site, answer: dict[str, str]) -> None:
    """Add whether a job can start the next attempt, and whether programs can see our paths."""
    if not site.scheduler.allocates:
        return chain.add("chaining", OK, "dlctl's own queue starts the next attempt")
    node, allowed, closed = answer.get("node", "?"), site.scheduler.next_attempt, {}
    for kind, key in ((StarterKind.JOB, "submit"), (StarterKind.REQUEUE, "control")):
        code, _, why = answer.get(key, "0").partition(" ")
        if code != "0" and kind in allowed:
            closed[kind.value] = why or f"exit code {code}"
    if closed:
        why = "; ".join(f"{kind}: {each}" for kind, each in closed.items())
        chain.add("chaining", WARN, f"not possible from {node}: {why}", starters_fix(site, *closed))
    elif "submit" in answer:
        chain.add("chaining", OK, f"{node} can submit jobs" if "job" in allowed else node)
    else:
        chain.skip("not tried: the job's first learner did not come so far", "chaining")
    code, _, why = answer.get("namespaces", "").partition(" ")
    if code == "0":
        evidence = f"programs can see /mnt/data, /mnt/results and /job on {node}"
        chain.add("paths of the service", OK, evidence)
    elif code:
        chain.add("paths of the service", WARN,
                  f"{node} allows no user namespaces: {why or f'exit code {code}'}",
                  "in programs use $DATA_DIR, $RESULT_DIR and $JOB_STATE_DIR, or a container",
                  )  # fmt: skip
    return None


def _reported(report: contract.Preflight) -> dict[str, str]:
    """Return what a rank's preflight tells, in the words of the probe."""
    answer = {"node": report.host, "shared": "yes", "clock": f"{report.clock_at:.3f}"}
    return answer if report.mpi_size is None else answer | {"world": str(report.mpi_size)}


def _last_by_kind(log: str) -> dict[str, str]:
    return {kind: texts[-1] for kind, texts in by_kind(log).items()}


def _by_node(answers: list[dict[str, str]], what: str) -> dict[str, str]:
    """Return what each node has said of one thing, if it has."""
    return {each["node"]: each[what] for each in answers if each.get(what)}


def _first(answers: list[dict[str, str]], what: str) -> tuple[str, str]:
    """Return the first node that has said something of one thing, and what; else nothing."""
    return next(iter(_by_node(answers, what).items()), ("", ""))


def _ending(chain: Chain, job: Job) -> None:
    hosts = ", ".join(dict.fromkeys(each.host for each in job.preflights)) or "no node"
    if job.record.state is State.COMPLETED:
        return chain.add("job", OK, f"job {job.record.job_id} ran on {hosts}")
    again, resume = f"dlctl doctor {chain.site} --deep", f"dlctl resume {job.record.training_id}"
    fix = re.sub(f"{resume}(?! --)", again, job.verdict.hint if job.verdict else "")
    if not fix or job.record.training_id in fix:
        fix = f"`{again} --bundle FILE` keeps its logs"
    return chain.add("job", BROKEN, f"{job.record.state} on {hosts}: {job.record.reason}", fix)


def _launcher(chain: Chain, job: Job) -> None:
    sizes = sorted({each.launcher_size for each in job.preflights})
    wanted = counted(job.learners, "rank")
    if not sizes:
        return chain.skip("not tried: no rank of the job has reported", "launcher of nodes")
    ranks = sorted(each.rank for each in job.preflights)
    if sizes == [job.learners] and ranks == list(range(job.learners)):
        return chain.add("launcher of nodes", OK, f"started {wanted}, as asked for")
    evidence = f"asked for {wanted}, and ranks {ranks} see {' or '.join(map(str, sizes))}"
    return chain.add("launcher of nodes", BROKEN, evidence, _LAUNCHER)


def _root(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    nodes = ", ".join(dict.fromkeys(each["node"] for each in answered))
    blind = ", ".join(each["node"] for each in answered if each.get("shared") != "yes")
    evidence = f"{nodes} read what the login node wrote, and it read their answers"
    if blind:
        evidence = f"{blind} can't read what the login node wrote below {site.root}"
    return chain.add("shared root", BROKEN if blind else OK, evidence, _SHARED)


def _home(chain: Chain, answered: list[dict[str, str]]) -> None:
    node, home = _first(answered, "nohome")
    if node:
        fix = "programs that keep files there fail: set HOME or their folders in the manifest's env"
        return chain.add("home of nodes", WARN, f"{home} can't be written on {node}", fix)
    if "home" not in answered[0]:
        return chain.skip(_NOT_SO_FAR, "home of nodes")
    return chain.add("home of nodes", OK, f"{answered[0]['home']} can be written")


def _mpi(chain: Chain, site: Site, job: Job, answers: list[dict[str, str]]) -> None:
    if lacking := next((each["nompi"] for each in answers if "nompi" in each), ""):
        return chain.add(
            "mpi",
            WARN if job.learners == 1 else BROKEN,
            f"mpi4py does not start on a node: {lacking}",
            packages_fix(site),
        )
    words = [each.get("world", "").split(" ")[0] for each in answers]
    sizes = [int(size) for size in words if size.isdecimal()]
    if not sizes:
        return chain.add("mpi", BROKEN, "no rank has come back from MPI_Init",
                         f"`dlctl doctor {site.name} --deep --bundle FILE` has logs")  # fmt: skip
    if sizes == [job.learners] * job.learners:
        return chain.add("mpi", OK, f"one world of {counted(job.learners, 'rank')}")
    what, fix = f"the learners see {', '.join(map(str, sizes))}", _LAUNCHER
    if set(sizes) == {1}:
        what = f"{len(sizes)} worlds of 1 rank: launcher and MPI library don't speak the same PMI"
        fix = LAUNCHERS[site.launcher.kind].pmi_hint(site.name)
    return chain.add("mpi", BROKEN, f"asked for one world of {job.learners}; {what}", fix)


def _torch(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    node, why = _first(answered, "notorch")
    if node:
        return chain.add(
            "torch of nodes", BROKEN, f"does not start on {node}: {why}", packages_fix(site)
        )
    versions = sorted(set(_by_node(answered, "torch").values()))
    if not versions:
        return chain.skip(_NOT_SO_FAR, "torch of nodes")
    return chain.add("torch of nodes", OK, ", ".join(versions))


def _gpus(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    limits = site.partitions.get(site.default_partition or "")
    gpus = _by_node(answered, "gpus")
    if not gpus:
        return chain.skip(_NOT_SO_FAR, "gpus of nodes")
    if bad := next((node for node, gpu in gpus.items() if "wrongly" in gpu), ""):
        return chain.add("gpus of nodes", BROKEN, f"{bad}: {gpus[bad]}",
                         f"tell the administrators; keep {bad} out of jobs until then")  # fmt: skip
    there = "; ".join(f"{node}: {gpu}" for node, gpu in gpus.items() if not gpu.startswith("0"))
    if there:
        return chain.add("gpus of nodes", OK, f"torch computes on them: {there}")
    if limits and limits.gpus_per_node:
        fix = f"install torch for CUDA, or load its module: {packages_fix(site)}"
        return chain.add("gpus of nodes", WARN, "the partition has GPUs, and torch sees none", fix)
    return chain.add("gpus of nodes", OK, "there are none, and the site's file promises none")


def _clocks(chain: Chain, job: Job, answered: list[dict[str, str]]) -> None:
    """Each node's clock was read at some time between the submission and the end."""
    clocks = {node: float(clock) for node, clock in _by_node(answered, "clock").items()}
    off = {node: (job.asked_at - at, job.answered_at - at) for node, at in clocks.items()}
    node = max(off, key=lambda each: max(off[each][0], -off[each][1]), default="")
    if not node:
        return chain.skip(_NOT_SO_FAR, "clocks of nodes")
    early, late = off[node]
    where = node if max(early, -late) > 0 else ", ".join(off)
    return add_clock(chain, "clocks of nodes", where, early, late)
