"""Say what the doctor's job has shown: launcher, MPI, torch, GPUs, clocks, chaining. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl.contract import StarterKind, State
from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.launchers import LAUNCHERS
from dlctl.doctor.at_site import starters_fix
from dlctl.doctor.chain import BROKEN, OK, WARN, Chain
from dlctl.doctor.network import add_clock

if TYPE_CHECKING:
    from dlctl import contract
    from dlctl.record import Record
    from dlctl.sites.files import Site

_SHARED = "set root in the site's file to a folder that login node and nodes share"
_NOT_SO_FAR = "not tried: the job did not come so far"


@dataclass(frozen=True)
class Job:
    """What the job has left behind."""

    record: Record
    learners: int
    logs: list[str]
    """Of each learner."""
    preflights: list[contract.Preflight]
    verdict: contract.Verdict | None
    token: str
    asked_at: float
    """When the job was submitted, and when it had ended, by this machine's clock."""
    answered_at: float
    own_logs: dict[str, str] = field(default_factory=dict)
    """What dlctl's own programs printed at the site."""


def judge_job(chain: Chain, site: Site, job: Job) -> None:
    """Add what the job has shown to the chain."""
    told = [_told(log) for log in job.logs]
    answered = [each for each in told if "node" in each]
    _ending(chain, job)
    _launcher(chain, job)
    if not answered:  # the preflight ended the job before: it has seen some of this, too
        told = answered = [_reported(each) for each in job.preflights]
    if not answered:
        _silence(chain, site, job)
        rest = ("home of nodes", "mpi", "torch of nodes", "gpus of nodes", "clocks of nodes",
                "chaining")  # fmt: skip
        return chain.skip("not tried: no node has said anything", *rest)
    _root(chain, site, answered)
    _home(chain, answered)
    _mpi(chain, site, job, told)
    _torch(chain, site, answered)
    _gpus(chain, site, answered)
    _clocks(chain, job, answered)
    return check_chaining(chain, site, _told(job.logs[0]))


def _silence(chain: Chain, site: Site, job: Job) -> None:
    """Say of a job that ended and left nothing, not even its output: it has seen no folder."""
    if any(job.own_logs.values()) or job.record.state is not State.FAILED:
        return chain.skip("not tried: no node has said anything", "shared root")
    return chain.add("shared root", BROKEN, f"the job has left nothing below {site.root}, so nodes "
                     "don't see what the login node writes there", _SHARED)  # fmt: skip


def check_chaining(chain: Chain, site: Site, told: dict[str, str]) -> None:
    """Add whether a job can start the next attempt, and whether programs can see our paths."""
    if not site.scheduler.allocates:
        return chain.add("chaining", OK, "dlctl's own queue starts the next attempt")
    if "submit" not in told:
        return chain.skip("not tried: the job's first learner did not come so far", "chaining")
    node, allowed, closed = told.get("node", "?"), site.scheduler.next_attempt, {}
    for kind, key in ((StarterKind.JOB, "submit"), (StarterKind.REQUEUE, "control")):
        code, _, said = told.get(key, "").partition(" ")
        if code != "0" and kind in allowed:
            closed[kind.value] = said or f"exit code {code}"
    if closed:
        why = "; ".join(f"{kind}: {said}" for kind, said in closed.items())
        seen = f"not possible from {node}: {why}"
        chain.add("chaining", WARN, seen, starters_fix(site, *closed))
    else:
        chain.add("chaining", OK, f"{node} can submit jobs" if "job" in allowed else node)
    code, _, said = told.get("namespaces", "").partition(" ")
    if code == "0":
        seen = f"programs can see /mnt/data, /mnt/results and /job on {node}"
        return chain.add("paths of the service", OK, seen)
    return chain.add(
        "paths of the service", WARN,
        f"{node} allows no user namespaces: {said or f'exit code {code}'}",
        "in programs use $DATA_DIR, $RESULT_DIR and $JOB_STATE_DIR, or a container",
    )  # fmt: skip


def _reported(report: contract.Preflight) -> dict[str, str]:
    """Return what a rank's preflight tells, in the words of the probe."""
    told = {"node": report.host, "shared": "yes", "clock": f"{report.clock_at:.3f}"}
    return told if report.mpi_size is None else told | {"world": str(report.mpi_size)}


def _told(log: str) -> dict[str, str]:
    lines = (line.partition(" ") for line in lines_of(log) if line.startswith("dlctl-"))
    return {kind.removeprefix("dlctl-"): rest.strip() for kind, _, rest in lines}


def _ending(chain: Chain, job: Job) -> None:
    hosts = ", ".join(dict.fromkeys(each.host for each in job.preflights)) or "no node"
    if job.record.state is State.COMPLETED:
        return chain.add("job", OK, f"job {job.record.job_id} ran on {hosts}")
    hint = job.verdict.hint if job.verdict else ""
    fix = hint if job.record.training_id not in hint else ""
    return chain.add(
        "job",
        BROKEN,
        f"{job.record.state} on {hosts}: {job.record.reason}",
        fix or f"dlctl doctor {chain.site} --deep --bundle FILE keeps its logs",
    )


def _launcher(chain: Chain, job: Job) -> None:
    sizes = sorted({each.launcher_size for each in job.preflights})
    if not sizes:
        return chain.skip("not tried: no rank of the job has reported", "launcher of nodes")
    ranks = sorted(each.rank for each in job.preflights)
    if sizes == [job.learners] and ranks == list(range(job.learners)):
        return chain.add("launcher of nodes", OK, f"started {_ranks(job.learners)}, as asked for")
    seen = f"asked for {_ranks(job.learners)}, and ranks {ranks} see {' or '.join(map(str, sizes))}"
    return chain.add("launcher of nodes", BROKEN, seen,
                     "correct launcher in the site's file")  # fmt: skip


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _root(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    nodes = ", ".join(dict.fromkeys(each["node"] for each in answered))
    blind = [each["node"] for each in answered if each.get("shared") != "yes"]
    if blind:
        return chain.add(
            "shared root",
            BROKEN,
            f"{', '.join(blind)} can't read what the login node wrote below {site.root}",
            _SHARED,
        )
    return chain.add("shared root", OK, f"{nodes} read what the login node wrote, and it read "
                     "their answers")  # fmt: skip


def _home(chain: Chain, answered: list[dict[str, str]]) -> None:
    absent = {each["node"]: each["nohome"] for each in answered if "nohome" in each}
    if absent:
        node, home = next(iter(absent.items()))
        return chain.add("home of nodes", WARN, f"{home} can't be written on {node}",
                         "programs that keep files in the home fail: set HOME or their own folders "
                         "in the manifest's env")  # fmt: skip
    if "home" not in answered[0]:
        return chain.skip(_NOT_SO_FAR, "home of nodes")
    return chain.add("home of nodes", OK, f"{answered[0].get('home', '?')} can be written")


def _mpi(chain: Chain, site: Site, job: Job, told: list[dict[str, str]]) -> None:
    lacking = next((each["nompi"] for each in told if "nompi" in each), "")
    if lacking:
        state = WARN if job.learners == 1 else BROKEN
        return chain.add(
            "mpi",
            state,
            f"mpi4py does not start on a node: {lacking}",
            f"dlctl sites setup {site.name}, or load a module with an MPI",
        )
    sizes = [
        int(size) for each in told if (size := each.get("world", "").split(" ")[0]).isdecimal()
    ]
    if not sizes:
        return chain.add("mpi", BROKEN, "no rank has come back from MPI_Init",
                         "dlctl doctor --deep --bundle FILE keeps the logs")  # fmt: skip
    if sizes == [job.learners] * job.learners:
        return chain.add("mpi", OK, f"one world of {_ranks(job.learners)}")
    if set(sizes) == {1}:
        types = f"set launcher.mpi in the file of {site.name}: `srun --mpi=list` names the types"
        return chain.add("mpi", BROKEN, f"{len(sizes)} worlds of 1 rank in place of one world of "
                         f"{job.learners}: launcher and MPI library don't speak the same PMI",
                         types if LAUNCHERS[site.launcher.kind].scheduler else
                         "use the mpirun of the library that mpi4py was built with")  # fmt: skip
    return chain.add(
        "mpi",
        BROKEN,
        f"asked for one world of {job.learners}; the learners see {', '.join(map(str, sizes))}",
        "correct launcher in the site's file",
    )


def _torch(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    lacking = {each["node"]: each["notorch"] for each in answered if "notorch" in each}
    if lacking:
        node, why = next(iter(lacking.items()))
        return chain.add("torch of nodes", BROKEN, f"does not start on {node}: {why}",
                         f"dlctl sites setup {site.name}")  # fmt: skip
    versions = sorted({each["torch"] for each in answered if "torch" in each})
    if not versions:
        return chain.skip(_NOT_SO_FAR, "torch of nodes")
    return chain.add("torch of nodes", OK, ", ".join(versions))


def _gpus(chain: Chain, site: Site, answered: list[dict[str, str]]) -> None:
    limits = site.partitions.get(site.default_partition or "")
    promised = bool(limits and limits.gpus_per_node)
    seen = {each["node"]: each["gpus"] for each in answered if "gpus" in each}
    if not seen:
        return chain.skip(_NOT_SO_FAR, "gpus of nodes")
    bad = {node: told for node, told in seen.items() if "wrongly" in told}
    if bad:
        node, told = next(iter(bad.items()))
        return chain.add(
            "gpus of nodes",
            BROKEN,
            f"{node}: {told}",
            f"tell the administrators; keep {node} out of jobs until then",
        )
    with_gpus = {node: told for node, told in seen.items() if not told.startswith("0")}
    if with_gpus:
        told = "; ".join(f"{node}: {each}" for node, each in with_gpus.items())
        return chain.add("gpus of nodes", OK, f"torch computes on them: {told}")
    if promised:
        return chain.add(
            "gpus of nodes",
            WARN,
            "the partition has GPUs, and torch sees none",
            "install torch for CUDA: dlctl sites setup, or load its module",
        )
    return chain.add("gpus of nodes", OK, "there are none, and the site's file promises none")


def _clocks(chain: Chain, job: Job, answered: list[dict[str, str]]) -> None:
    """Each node's clock was read at some time between the submission and the end."""
    worst = (0.0, "", 0.0, 0.0)
    for each in answered:
        try:
            clock = float(each.get("clock", ""))
        except ValueError:
            continue  # its node did not come so far
        early, late = job.asked_at - clock, job.answered_at - clock
        off = max(early, -late)
        worst = max(worst, (off, each["node"], early, late))
    _, node, early, late = worst
    if node:
        return add_clock(chain, "clocks of nodes", node, early, late)
    nodes = ", ".join(dict.fromkeys(each["node"] for each in answered))
    return chain.add("clocks of nodes", OK, f"{nodes} agree with this machine")
