"""Decide everything about a job, once. Pure: no file, no network, no clock.

All arithmetic on nodes, tasks, CPUs, memory, GRES and paths is here. Later stages never compute a
rank count, a node count or a path again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dlctl import __version__
from dlctl.contract import (
    Batch,
    CheckpointPolicy,
    Environment,
    Framework,
    Launch,
    ParameterServer,
    Plan,
    Resources,
)
from dlctl.contract.launchers import LAUNCHERS, LaunchRequest
from dlctl.errors import PlanError
from dlctl.plan.parameter_server import (
    alone_on_server,
    learner_argv,
    parameter_server,
    server_memory_bytes,
    survives_nodes,
    wanted,
)
from dlctl.units import format_duration, format_size

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.files import Partition, Site

HALT_MARGIN_S = 120
"""How long before the time limit a training is saved and halted; short jobs get a quarter."""


@dataclass(frozen=True)
class Identity:
    """What the caller chose or found out: the parts of a plan that are not decided here."""

    training_id: str
    created_at: str
    code_digest: str
    runtime_digest: str
    local_python: str
    """What `environment.python: auto` means: the Python that runs dlctl."""
    machine: Partition | None = None
    """This machine's limits, if dlctl's own queue runs the job on it."""


@dataclass(frozen=True)
class Placement:
    """Where the learners run, within one partition."""

    partition: str | None
    learners_per_node: list[int]


def make_plan(manifest: Manifest, site: Site, identity: Identity, notes: list[str]) -> Plan:
    """Return the plan of one training.

    Args:
        notes: what the manifest asks for but this version lacks, one sentence each.

    Raises:
        PlanError: the request fits no partition (a reason for each), or the site has no Python.
    """
    placement = place(manifest, site, identity.machine)
    server = parameter_server(manifest, site, placement.learners_per_node)
    job_dir = f"{site.root}/jobs/{identity.training_id}"
    secret_names = manifest.secret_names()
    return Plan(
        training_id=identity.training_id,
        name=manifest.name,
        version=manifest.version or "",
        description=manifest.description or "",
        site=site.name,
        root=site.root,
        job_dir=job_dir,
        runtime_dir=f"{site.root}/runtime/{identity.runtime_digest}",
        code_digest=identity.code_digest,
        created_at=identity.created_at,
        dlctl_version=__version__,
        resources=_resources(manifest, placement),
        batch=_batch(manifest, site, placement),
        launch=_launch(manifest, site, placement),
        environment=_environment(site, identity.local_python),
        framework=Framework(
            name=manifest.framework.name,
            version=manifest.framework.version,
            command=manifest.framework.command,
            job=manifest.framework.job,
            arguments=dict(manifest.framework.arguments),
        ),
        training=manifest.training_settings(),
        checkpoint=_checkpoint(manifest, site, placement, server),
        parameter_server=server,
        alone_on_server=alone_on_server(manifest),
        data_stores=manifest.plan_stores(),
        env=manifest.plain_env(),
        secret_env={
            n: f"file:{site.root}/secrets/{identity.training_id}/{n}" for n in secret_names
        },
        evaluation_metrics=manifest.evaluation_metrics,
        requirements=list(manifest.requirements),
        retries=manifest.retries,
        not_in_this_version=[*notes, *_without_slurm(manifest, site)],
    )


def _without_slurm(manifest: Manifest, site: Site) -> list[str]:
    """Return a sentence about settings for Slurm, if the site has none."""
    told = manifest.scheduler.model_dump(exclude_defaults=True)
    if site.scheduler.kind == "slurm" or not told:
        return []
    names = ", ".join(f"scheduler.{name}" for name in told)
    return [f"The site {site.name} has no Slurm and ignores {names}; --site selects another site."]


def place(manifest: Manifest, site: Site, machine: Partition | None = None) -> Placement:
    """Return the first partition that the request fits, and the learners on each node.

    If a partition is named, the request must fit it. Otherwise the default is tried first, then the
    others in the file's order. If the file names none, `machine` is the limit, if it is known.

    Raises:
        PlanError: with a reason for each partition.
    """
    named = manifest.scheduler.partition or site.scheduler.partition
    if not site.partitions:
        why_not = _machine_refusals(manifest, machine) if machine else []
        if why_not:
            raise _no_fit(site, [f"this machine: {'; '.join(why_not)}"])
        return Placement(named if site.scheduler.kind == "slurm" else None, [manifest.learners])
    reasons: list[str] = []
    for name in _candidates(named, site):
        limits = site.partitions[name]
        why_not = _refusals(manifest, limits)
        if not why_not:
            return Placement(name, _spread(manifest.learners, _learners_per_node(manifest, limits)))
        reasons.append(f"{name}: {'; '.join(why_not)}")
    raise _no_fit(site, reasons)


def _no_fit(site: Site, reasons: list[str]) -> PlanError:
    what = "fits no partition of" if site.partitions else "does not fit"
    return PlanError(
        f"the request {what} the site {site.name}:\n  " + "\n  ".join(reasons),
        hint=f"ask for less, or see `dlctl sites show {site.name}`",
    )


def _candidates(named: str | None, site: Site) -> list[str]:
    if named is None:
        default = site.default_partition
        return sorted(site.partitions, key=lambda name: name != default)
    names = [part.strip() for part in named.split(",")]
    for name in names:
        if name not in site.partitions:
            close = get_close_matches(name, site.partitions, n=1)
            raise PlanError(
                f"the site {site.name} has no partition {name!r}"
                + (f"; did you mean {close[0]!r}?" if close else ""),
                hint=f"it has {', '.join(site.partitions)}; "
                "`dlctl sites add --force` updates the list",
            )
    return names


def _refusals(manifest: Manifest, limits: Partition) -> list[str]:
    """Return why the request does not fit one partition; an empty list if it fits."""
    reasons = []
    cpus, memory, gpus = manifest.cpus_per_learner(), manifest.memory_bytes, manifest.gpus
    if limits.cpus_per_node is not None and cpus > limits.cpus_per_node:
        reasons.append(f"a learner needs {cpus} CPUs, a node has {limits.cpus_per_node}")
    server, has = server_memory_bytes(manifest), limits.memory_bytes_per_node
    if has is not None and (memory or 0) + server > has:
        more = f" and the parameter server {format_size(server)}" if server else ""
        reasons.append(
            f"a learner needs {format_size(memory or 0)}{more}, a node has {format_size(has)}"
        )
    if gpus > limits.gpus_per_node:
        needed_gpus = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        reasons.append(f"a learner needs {needed_gpus}, a node has {limits.gpus_per_node}")
    if limits.max_time_s is not None and (manifest.time_s or 0) > limits.max_time_s:
        asked, limit = format_duration(manifest.time_s or 0), format_duration(limits.max_time_s)
        reasons.append(f"time {asked} is over its limit of {limit}")
    if not reasons:
        needed = len(_spread(manifest.learners, _learners_per_node(manifest, limits)))
        most = min((n for n in (limits.nodes, limits.max_nodes) if n is not None), default=needed)
        if needed > most:
            reasons.append(
                f"{manifest.learners} learners need {needed} nodes, a job may have {most}"
            )
    return reasons


def _machine_refusals(manifest: Manifest, machine: Partition) -> list[str]:
    """Return why the request does not fit this machine: learners share only its CPUs."""
    reasons = _refusals(manifest, machine)
    if reasons:
        return reasons
    learners = f"{manifest.learners} learners need"
    memory, gpus = (manifest.memory_bytes or 0) * manifest.learners, manifest.gpus
    memory += server_memory_bytes(manifest)
    has = machine.memory_bytes_per_node
    if has is not None and memory > has:
        reasons.append(f"{learners} {format_size(memory)} in total, it has {format_size(has)}")
    if gpus * manifest.learners > machine.gpus_per_node:
        reasons.append(f"{learners} {gpus * manifest.learners} GPUs in total, "
                       f"it has {machine.gpus_per_node}")  # fmt: skip
    return reasons


def _learners_per_node(manifest: Manifest, limits: Partition) -> int:
    fitting = [manifest.learners]
    if limits.cpus_per_node is not None:
        fitting.append(limits.cpus_per_node // manifest.cpus_per_learner())
    if limits.memory_bytes_per_node is not None and manifest.memory_bytes:
        room = limits.memory_bytes_per_node - server_memory_bytes(manifest)
        fitting.append(room // manifest.memory_bytes)
    if manifest.gpus:
        fitting.append(limits.gpus_per_node // manifest.gpus)
    return max(1, min(fitting))


def _spread(learners: int, most_per_node: int) -> list[int]:
    """Return the learners on each node, spread evenly: 5 with at most 2 per node: [2, 2, 1]."""
    nodes = -(-learners // most_per_node)
    each, more = divmod(learners, nodes)
    return [each + 1] * more + [each] * (nodes - more)


def _resources(manifest: Manifest, placement: Placement) -> Resources:
    fullest = max(placement.learners_per_node)
    cpus, memory, time_s = manifest.cpus_per_learner(), manifest.memory_bytes, manifest.time_s
    on_node = None if memory is None else memory * fullest + server_memory_bytes(manifest)
    return Resources(
        learners=manifest.learners,
        nodes=len(placement.learners_per_node),
        learners_per_node=placement.learners_per_node,
        cpus_per_learner=cpus,
        threads_per_learner=cpus,
        gpus_per_learner=manifest.gpus,
        memory_bytes_per_learner=memory,
        memory_bytes_per_node=on_node,
        gpus_per_node=manifest.gpus * fullest,
        time_s=time_s,
        halt_margin_s=HALT_MARGIN_S if time_s is None else max(5, min(HALT_MARGIN_S, time_s // 4)),
        first_ranks=list(itertools.accumulate(placement.learners_per_node[:-1], initial=0)),
    )


def _batch(manifest: Manifest, site: Site, placement: Placement) -> Batch:
    asked, fullest = manifest.scheduler, max(placement.learners_per_node)
    gres = [asked.gres] if asked.gres else []
    if manifest.gpus:
        limits = site.partitions.get(placement.partition or "")
        kind = f"{limits.gpu_type}:" if limits and limits.gpu_type else ""
        gres.insert(0, f"gpu:{kind}{manifest.gpus * fullest}")
    return Batch(
        scheduler=site.scheduler.kind,
        partition=placement.partition,
        account=asked.account or site.scheduler.account,
        qos=asked.qos or site.scheduler.qos,
        constraint=asked.constraint,
        gres=",".join(gres) or None,
        extra=[*site.scheduler.extra, *asked.extra],
    )


def _checkpoint(
    manifest: Manifest, site: Site, placement: Placement, server: ParameterServer | None
) -> CheckpointPolicy:
    """Return the policy with the job's mean time between failures.

    Any node's failure ends the job, and N nodes fail N times as often as one. With a parameter
    server, only the first node's failure may end it.
    """
    node_mtbf_s, per_node = site.failures.node_mtbf_s, placement.learners_per_node
    nodes = 1 if survives_nodes(server, per_node) else len(per_node)
    mtbf_s = None if node_mtbf_s is None else node_mtbf_s / nodes
    return replace(manifest.checkpoint_policy(), mtbf_s=mtbf_s)


def _launch(manifest: Manifest, site: Site, placement: Placement) -> Launch:
    if manifest.learners == 1:
        return Launch("direct", [])
    if wanted(manifest):
        argv = learner_argv(manifest, site)
        return Launch("srun" if argv else "direct", argv, step_per_learner=True)
    settings = site.launcher
    request = LaunchRequest(
        manifest.learners, len(placement.learners_per_node), manifest.cpus_per_learner(),
        settings.executable, settings.mpi, settings.extra,
    )  # fmt: skip
    return Launch(settings.kind, LAUNCHERS[settings.kind].argv(request))


def _environment(site: Site, local_python: str) -> Environment:
    settings = site.environment
    if settings.python is None:
        raise PlanError(
            f"the site {site.name} has no Python for its nodes yet",
            hint=f"`dlctl sites setup {site.name}` makes one; or set environment.python",
        )
    return Environment(
        python=local_python if settings.python == "auto" else settings.python,
        modules=list(settings.modules),
        setup=list(settings.setup),
        container=list(settings.container),
        variables=dict(settings.variables),
    )
