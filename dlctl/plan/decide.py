"""Decide everything about a job, once. Pure: no file, no network, no clock.

All arithmetic on nodes, tasks, CPUs, memory, GRES and paths is here. Later stages never compute a
rank count, a node count or a path again.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl import __version__, contract
from dlctl.contract import (
    Batch,
    CheckpointPolicy,
    Environment,
    Framework,
    Launch,
    ParameterServer,
    Plan,
    Recipe,
    Resources,
    search,
)
from dlctl.contract.launchers import LAUNCHERS, LaunchRequest
from dlctl.errors import PlanError
from dlctl.plan import sections
from dlctl.plan.environments import environment_of
from dlctl.plan.parameter_server import (
    alone_on_server,
    parameter_server,
    server_memory_bytes,
    site_steps,
    survives_nodes,
    wanted,
)
from dlctl.plan.placement import Placement, place

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.files import Partition, Site

HALT_MARGIN_S = 120
"""A training is saved and halted so long before its time limit; a short job gets a quarter."""


@dataclass(frozen=True)
class Identity:
    """The parts of a plan that the caller chose or found out."""

    training_id: str
    created_at: str
    code_digest: str
    runtime_digest: str
    local_python: str
    """The Python that runs dlctl, which `environment.python: auto` means."""
    machine: Partition | None = None
    """This machine's limits, if dlctl's own queue runs the job on it."""
    weights: contract.StoredWeights | None = None
    """The stored file that `framework.arguments.weights` names."""
    recipe: Recipe | None = None
    """How the framework's learners run; None for later attempts, which keep the first one's."""
    checkpoint_files: str | None = None
    """The framework's own checkpoints, if the manifest does not say which files they are."""
    environment: Environment | None = None
    """The one of the site's `environments` that the manifest's framework and version select."""


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
    recipe = identity.recipe
    has_loop = manifest.framework.job is not None and (recipe is None or recipe.loop)
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
        umask=f"{site.umask:03o}",
        created_at=identity.created_at,
        dlctl_version=__version__,
        resources=_resources(manifest, placement),
        batch=_batch(manifest, site, placement),
        launch=_launch(manifest, site, placement),
        environment=_environment(manifest, site, identity, has_loop),
        learner_environment=None
        if has_loop or identity.environment is None
        else _with_requirements(manifest, site, identity.environment),
        framework=_framework(manifest, job_dir, identity),
        weights=identity.weights,
        training=sections.training_settings(manifest),
        checkpoint=_checkpoint(manifest, site, identity, placement, server),
        parameter_server=server,
        alone_on_server=alone_on_server(manifest),
        data_stores=sections.plan_stores(manifest),
        env=sections.plain_env(manifest),
        secret_env={
            n: f"file:{site.root}/secrets/{identity.training_id}/{n}" for n in secret_names
        },
        evaluation_metrics=sections.metrics_plan(
            manifest.evaluation_metrics,
            prints=not has_loop and manifest.framework.name != search.FRAMEWORK,
        ),
        requirements=list(manifest.requirements),
        output_caches=list(manifest.output.caches),
        lifecycle=_lifecycle(manifest, site, placement),
        stop=sections.stop_rules(manifest.stop),
        hang=sections.hang_policy(manifest.hang, own_program=not has_loop),
        notify=sections.notify_plan(manifest.notify, f"{site.root}/secrets/{identity.training_id}"),
        webhook_hosts=site.webhook_hosts,
        not_in_this_version=[*notes, *_without_slurm(manifest, site)],
    )


def _framework(manifest: Manifest, job_dir: str, identity: Identity) -> Framework:
    section, arguments = manifest.framework, dict(manifest.framework.arguments)
    if identity.weights:  # by the place where they will lie
        arguments["weights"] = f"{job_dir}/{identity.weights.file}"
    return Framework(
        name=section.name, version=section.version, command=section.command, job=section.job,
        arguments=arguments, recipe=identity.recipe,
    )  # fmt: skip


def _without_slurm(manifest: Manifest, site: Site) -> list[str]:
    """Return a sentence about settings for Slurm, if the site has none."""
    ignored = manifest.scheduler.model_dump(exclude_defaults=True)
    if site.scheduler.allocates or not ignored:
        return []
    names = ", ".join(f"scheduler.{name}" for name in ignored)
    return [f"The site {site.name} has no Slurm and ignores {names}; --site selects another site."]


def _resources(manifest: Manifest, placement: Placement) -> Resources:
    fullest = max(placement.learners_per_node)
    cpus, memory, time_s = manifest.cpus_per_learner(), manifest.memory_bytes, placement.time_s
    gpus = manifest.gpus_per_learner()
    on_node = None if memory is None else memory * fullest + server_memory_bytes(manifest)
    return Resources(
        learners=manifest.learners,
        nodes=len(placement.learners_per_node),
        learners_per_node=placement.learners_per_node,
        cpus_per_learner=cpus,
        threads_per_learner=cpus,
        gpus_per_learner=gpus,
        memory_bytes_per_learner=memory,
        memory_bytes_per_node=on_node,
        gpus_per_node=gpus * fullest,
        time_s=time_s,
        halt_margin_s=HALT_MARGIN_S if time_s is None else margin_s(time_s),
        first_ranks=list(itertools.accumulate(placement.learners_per_node[:-1], initial=0)),
        most_memory_bytes_per_learner=placement.most_memory_bytes,
        most_time_s=placement.most_time_s,
    )


def _lifecycle(manifest: Manifest, site: Site, placement: Placement) -> contract.Lifecycle:
    """Return what happens after the first attempt: the manifest's wishes, the site's means."""
    total_s, each_s = manifest.time_s, placement.time_s
    links = 1 if total_s is None or each_s is None else link_count(total_s, each_s)
    return replace(
        sections.lifecycle(manifest.retries, manifest.retry), total_time_s=total_s, links=links,
        starters=list(site.scheduler.next_attempt),
    )  # fmt: skip


def link_count(total_s: int, each_s: int, start_s: int = 0) -> int:
    """Return how many jobs a training takes, of which each may run for `each_s`.

    Args:
        start_s: how long a job takes to its first step, if `total_s` does not count that.
    """
    if total_s <= each_s:
        return 1
    return -(-total_s // max(1, each_s - margin_s(each_s) - start_s))


def margin_s(time_s: int) -> int:
    """Return how long before its limit a job is halted."""
    return max(5, min(HALT_MARGIN_S, time_s // 4))


def _batch(manifest: Manifest, site: Site, placement: Placement) -> Batch:
    section, fullest = manifest.scheduler, max(placement.learners_per_node)
    gres = [section.gres] if section.gres else []
    if gpus := manifest.gpus_per_learner():
        limits = site.partitions.get(placement.partition or "")
        kind = f"{limits.gpu_type}:" if limits and limits.gpu_type else ""
        gres.insert(0, f"gpu:{kind}{gpus * fullest}")
    return Batch(
        scheduler=site.scheduler.kind,
        partition=placement.partition,
        account=section.account or site.scheduler.account,
        qos=section.qos or site.scheduler.qos,
        constraint=section.constraint,
        gres=",".join(gres) or None,
        extra=[*site.scheduler.extra, *section.extra],
    )


def _checkpoint(
    manifest: Manifest, site: Site, identity: Identity, placement: Placement,
    server: ParameterServer | None,
) -> CheckpointPolicy:  # fmt: skip
    """Return the policy with the job's mean time between failures.

    Any node's failure ends the job, and N nodes fail N times as often as one. With a parameter
    server, only the first node's failure may end it.
    """
    node_mtbf_s, per_node = site.failures.node_mtbf_s, placement.learners_per_node
    nodes = 1 if survives_nodes(server, per_node) else len(per_node)
    mtbf_s = None if node_mtbf_s is None else node_mtbf_s / nodes
    files = manifest.checkpoint.files or identity.checkpoint_files
    return replace(sections.checkpoint_policy(manifest), mtbf_s=mtbf_s, files=files)


def _launch(manifest: Manifest, site: Site, placement: Placement) -> Launch:
    if manifest.learners == 1:
        return Launch("direct", [])
    if wanted(manifest):
        if (found := site_steps(site)) is None:
            return Launch("direct", [], step_per_learner=True)
        kind, steps = found
        argv = steps.learner(manifest.cpus_per_learner(), manifest.gpus_per_learner())
        return Launch(kind, argv, step_per_learner=True)
    settings, cpus = site.launcher, manifest.cpus_per_learner()
    request = LaunchRequest(
        manifest.learners, len(placement.learners_per_node), cpus, settings.executable,
        settings.mpi, settings.extra,
    )  # fmt: skip
    return Launch(settings.kind, LAUNCHERS[settings.kind].argv(request))


def _environment(manifest: Manifest, site: Site, identity: Identity, has_loop: bool) -> Environment:
    """Return where dlctl's own programs run, and the built-in loop, whose version counts here."""
    settings = site.environment
    if settings.python is None:
        raise PlanError(
            f"the site {site.name} has no Python for its nodes yet",
            hint=f"`dlctl sites setup {site.name}` makes one; or set environment.python",
        )
    python = identity.local_python if settings.python == "auto" else settings.python
    chosen = identity.environment
    if has_loop and chosen is not None:
        return _with_requirements(manifest, site, replace(chosen, python=chosen.python or python))
    own = environment_of(settings, python)
    if own.container and chosen is not None and chosen.container:
        raise PlanError(
            f"the environment {chosen.name} of the site {site.name} is a container, and no program "
            "can enter it from the site's own container",
            hint=f"remove environments.{chosen.name}.container, or environment.container",
        )
    return own if chosen is not None else _with_requirements(manifest, site, own)


def _with_requirements(manifest: Manifest, site: Site, base: Environment) -> Environment:
    """Return an environment of its own with the manifest's requirements; without any, `base`."""
    lines = manifest.requirements
    if not lines:
        return base
    where = f"the environment {base.name} of the site {site.name}" if base.name else (
        f"the site {site.name}")  # fmt: skip
    if not base.python:
        raise PlanError(
            f"{where} names no Python, to which `requirements` can't be added",
            hint="name one (`python`), or leave them out if it has them: --set requirements=[]",
        )
    made_of = [*base.container, base.python, *lines]
    digest = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:32]
    own = f"{site.root}/{contract.ENVIRONMENTS}/{digest}"
    return replace(base, python=f"{own}/bin/python", site_python=base.python)
