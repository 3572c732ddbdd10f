"""The parameter server's part of a plan: shards and their nodes, and steps of one process each.

Every learner and every server is a job step of its own, so that the loss of one ends no other:
MPI's worlds and srun's steps of several tasks end as a whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import PlanError
from dlctl.units import parse_duration

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.manifest.parameter_server import ParameterServerSection
    from dlctl.sites.files import Site

SLOTS = 64
"""Slots of a shard at its home: its node's learners, its server and each other node take one."""
_BESIDE = ["--overlap", "--cpu-bind=none"]
_SERVER_MEMORY_BYTES = 512 * 2**20
"""Memory of a node's server beside its shards; the shards must fit into the learners' memory."""


def wanted(manifest: Manifest) -> bool:
    """Return whether the training has a parameter server; one learner needs none."""
    return manifest.parameter_server is not None and manifest.learners > 1


def server_memory_bytes(manifest: Manifest) -> int:
    """Return what a node needs for its server beside its learners; 0 where nothing is limited."""
    return _SERVER_MEMORY_BYTES if manifest.memory_bytes and wanted(manifest) else 0


def parameter_server(
    manifest: Manifest, site: Site, per_node: list[int]
) -> contract.ParameterServer | None:
    """Return how the learners share their parameters; None without a server.

    Args:
        manifest: What is asked for.
        site: Where.
        per_node: How many learners each node has.

    Raises:
        PlanError: there are too many, or the site can't start servers that talk MPI.
    """
    asked, learners, nodes = manifest.parameter_server, manifest.learners, len(per_node)
    if asked is None or not wanted(manifest):
        return None
    if max(per_node) + nodes > SLOTS:
        raise PlanError(
            f"{max(per_node)} learners of a node and {nodes} nodes are too many for a parameter "
            f"server: at most {SLOTS} together are allowed",
            hint="ask for fewer learners, or let them average by allreduce: no parameter_server",
        )
    return replace(
        _settings(manifest, asked, learners, nodes),
        argv=server_argv(site, nodes, asked.transport),
        rejoin_argv=[_rejoin_argv(manifest, site, count) for count in per_node],
        transport=asked.transport if nodes > 1 else "tcp",
        network=site.network if nodes > 1 and asked.transport == "tcp" else None,
    )


def alone_on_server(manifest: Manifest) -> contract.ParameterServer | None:
    """Return what the manifest says of a server that one learner does not need; or else None."""
    asked = manifest.parameter_server
    return None if asked is None or wanted(manifest) else _settings(manifest, asked, 1, 1)


def _settings(
    manifest: Manifest, asked: ParameterServerSection, learners: int, nodes: int
) -> contract.ParameterServer:
    """Return what follows from the manifest alone."""
    return contract.ParameterServer(
        solver=asked.solver,
        shard_nodes=[shard % nodes for shard in range(asked.shards or nodes)],
        push_every=asked.push_every,
        pull_every=asked.pull_every or asked.push_every,
        staleness=0 if asked.in_rounds else asked.staleness,
        min_learners=min(asked.min_learners or -(-learners // 2), learners),
        learning_rate=_or(asked.learning_rate, asked, diloco=contract.OUTER_LEARNING_RATE),
        momentum=_or(asked.momentum, asked, diloco=contract.OUTER_MOMENTUM),
        adagrad=bool(asked.adagrad),
        moving_rate=_or(asked.moving_rate, asked, elastic_averaging=contract.ELASTICITY / learners),
        timeout_s=parse_duration(asked.timeout),
        snapshot_every_s=parse_duration(asked.snapshot_every),
        batch_samples=-(-manifest.training.batch_size // learners),
    )


def survives_nodes(server: contract.ParameterServer | None, per_node: list[int]) -> bool:
    """Return whether a training survives the loss of any node except the first."""
    if server is None or server.transport != "tcp":
        return False
    return sum(per_node) - max(per_node[1:], default=0) >= server.min_learners


def _or(value: float | None, asked: ParameterServerSection, **defaults: float) -> float | None:
    """Return a setting, or what the solver has for its default."""
    return defaults.get(asked.solver) if value is None else value


def learner_argv(manifest: Manifest, site: Site) -> list[str]:
    """Return the command in front of one learner; the node's name is added at its start.

    `--exact`: its own CPUs, not all that the job has on the node. `--mem=0`: all steps share the
    job's memory, as the learners of one step do; else the first would take it all, and the next
    ones wait for its end. So it is with the GRES that a step does not name.
    """
    cpus = f"--cpus-per-task={manifest.cpus_per_learner()}"
    gpus = f"--gres=gpu:{manifest.gpus}" if manifest.gpus else "--gres=none"
    return _step(site, [cpus, "--exact", gpus])


def _rejoin_argv(manifest: Manifest, site: Site, learners: int) -> list[str]:
    """Return what goes before a learner that is started again on a node of so many learners.

    Once a job has lost a node, Slurm 22.05 counts the cores and GPUs of steps that have ended as
    taken: a step that wants its own would wait forever, so this one shares all of them.
    """
    gpus = manifest.gpus * learners
    return _step(site, [*_BESIDE, f"--gres=gpu:{gpus}" if gpus else "--gres=none"])


def server_argv(site: Site, nodes: int, transport: str) -> list[str]:
    """Return what goes before the server of one node; with MPI before those of all nodes together.

    `--overlap`: it takes no CPU away from the learners' steps, and may run on any of theirs.
    `--cpu-bind=none`: on all of them; where Slurm binds nothing it says so in the server's log.

    Raises:
        PlanError: MPI, but the site starts worlds by mpirun, whose own step would take all CPUs.
    """
    beside = [*_BESIDE, "--gres=none"]
    if transport != "mpi" or nodes == 1:
        return _step(site, beside)
    launcher = site.launcher
    if launcher.kind != "srun":
        raise PlanError(
            f"parameter_server.transport mpi needs srun; the site {site.name} has {launcher.kind}",
            hint="use transport tcp, which also survives the loss of a node",
        )
    mpi = [f"--mpi={launcher.mpi}"] if launcher.mpi else []
    # A server killed before all have met in MPI_Init would leave the others waiting forever.
    together = ["--mem=0", "--kill-on-bad-exit=1"]
    shape = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *together]
    return [launcher.executable or "srun", *mpi, *shape, *beside, *launcher.extra]


def _step(site: Site, shape: list[str]) -> list[str]:
    if site.scheduler.kind != "slurm":
        return []
    launcher, folder = site.launcher, site.scheduler.path
    alone = ["--mpi=none", "--nodes=1", "--ntasks=1", "--no-kill", "--mem=0"]
    if launcher.kind == "srun":
        return [launcher.executable or "srun", *alone, *shape, *launcher.extra]
    return [f"{folder}/srun" if folder else "srun", *alone, *shape]
