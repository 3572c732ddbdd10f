"""The parameter server's part of a plan: shards, their nodes, and one job step per process.

Every learner and every server is a separate job step, so that the loss of one ends no other. An MPI
world, or an srun step of several tasks, would end as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.launchers import LAUNCHERS, SrunSteps
from dlctl.errors import PlanError
from dlctl.units import parse_duration

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.manifest.parameter_server import ParameterServerSection
    from dlctl.sites.files import Site

SLOTS = 64
"""Slots of a shard at its primary: one per learner of the node, its server and other nodes."""
_SERVER_MEMORY_BYTES = 512 * 2**20
"""Memory of a node's server without its shards, which must fit into the learners' memory."""


def wanted(manifest: Manifest) -> bool:
    """Return whether the training has a parameter server; one learner needs none."""
    return manifest.parameter_server is not None and manifest.learners > 1


def server_memory_bytes(manifest: Manifest) -> int:
    """Return the extra memory that a node needs for its server; 0 if memory is not limited."""
    return _SERVER_MEMORY_BYTES if manifest.memory_bytes and wanted(manifest) else 0


def parameter_server(
    manifest: Manifest, site: Site, per_node: list[int]
) -> contract.ParameterServer | None:
    """Return how the learners share their parameters; None without a server.

    Args:
        per_node: The number of learners on each node.

    Raises:
        PlanError: there are too many learners or nodes, or the site can't start servers with MPI.
    """
    section, learners, nodes = manifest.parameter_server, manifest.learners, len(per_node)
    if section is None or not wanted(manifest):
        return None
    if max(per_node) + nodes > SLOTS:
        raise PlanError(
            f"{max(per_node)} learners on a node plus {nodes} nodes are too many for a parameter "
            f"server: the sum may be at most {SLOTS}",
            hint="ask for fewer learners, or remove parameter_server to train with allreduce",
        )
    found, gpus = site_steps(site), manifest.gpus_per_learner()
    steps = found[1] if found else None
    return replace(
        _settings(manifest, section, learners, nodes),
        argv=steps.server() if steps else [],
        rejoin_argv=[steps.restarted(gpus * count) if steps else [] for count in per_node],
        network=site.network if nodes > 1 else None,
    )


def alone_on_server(manifest: Manifest) -> contract.ParameterServer | None:
    """Return the manifest's settings of a server that a single learner does not need, or None."""
    section = manifest.parameter_server
    return None if section is None or wanted(manifest) else _settings(manifest, section, 1, 1)


def _settings(
    manifest: Manifest, section: ParameterServerSection, learners: int, nodes: int
) -> contract.ParameterServer:
    """Return what follows from the manifest alone."""
    return contract.ParameterServer(
        solver=section.solver,
        shard_nodes=[shard % nodes for shard in range(section.shards or nodes)],
        push_every=section.push_every,
        pull_every=section.pull_every or section.push_every,
        staleness=0 if section.in_rounds else section.staleness,
        min_learners=min(section.min_learners or -(-learners // 2), learners),
        learning_rate=_or(section.learning_rate, section, diloco=contract.OUTER_LEARNING_RATE),
        momentum=_or(section.momentum, section, diloco=contract.OUTER_MOMENTUM),
        adagrad=bool(section.adagrad),
        moving_rate=_or(
            section.moving_rate, section, elastic_averaging=contract.ELASTICITY / learners
        ),
        timeout_s=parse_duration(section.timeout),
        snapshot_every_s=parse_duration(section.snapshot_every),
        batch_samples=-(-manifest.training.batch_size // learners),
    )


def survives_nodes(server: contract.ParameterServer | None, per_node: list[int]) -> bool:
    """Return whether a training survives the loss of any node except the first."""
    if server is None:
        return False
    return sum(per_node) - max(per_node[1:], default=0) >= server.min_learners


def _or(value: float | None, section: ParameterServerSection, **defaults: float) -> float | None:
    """Return a setting, or the solver's default."""
    return defaults.get(section.solver) if value is None else value


def site_steps(site: Site) -> tuple[str, SrunSteps] | None:
    """Return the launcher that starts single steps of a site's jobs, and its commands.

    None: the site is one machine, where a step is a child process.
    """
    own = (each for each in LAUNCHERS.values() if each.scheduler == site.scheduler.kind)
    if (launcher := next(own, None)) is None:
        return None
    kind, settings, folder = launcher.kind, site.launcher, site.scheduler.path
    if settings.kind == kind:
        return kind, launcher.steps(settings.executable or kind, settings.extra)
    return kind, launcher.steps(f"{folder}/{kind}" if folder else kind, [])
