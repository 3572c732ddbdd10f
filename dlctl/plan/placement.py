"""Choose the partition and the number of learners on each of its nodes. Pure.

If the manifest asks for nodes, each has equally many learners; else there are as few as can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from dlctl.errors import PlanError
from dlctl.plan.parameter_server import server_memory_bytes
from dlctl.units import format_size

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.sites.files import Partition, Site


@dataclass(frozen=True)
class Placement:
    """The nodes of the learners, within one partition."""

    partition: str | None
    learners_per_node: list[int]
    time_s: int | None = None
    """The time limit of one job; a longer training takes a chain of them."""
    most_memory_bytes: int | None = None
    """How much memory each learner could have, in the partition that has most."""
    most_time_s: int | None = None
    """The longest time limit of a job in the chosen partition."""


def place(manifest: Manifest, site: Site, machine: Partition | None = None) -> Placement:
    """Return the first partition that the request fits, and the learners on each node.

    If a partition is named, the request must fit it. Otherwise the default is tried first, then the
    others in the file's order. If the file names none, `machine` is the limit, if it is known.

    Raises:
        PlanError: with a reason for each partition.
    """
    named = manifest.scheduler.partition or site.scheduler.partition
    has_nodes = site.scheduler.allocates
    wished = _per_node(manifest, manifest.learners)
    if len(wished) > 1 and not has_nodes:
        raise PlanError(
            f"the manifest asks for {len(wished)} nodes, and the site {site.name} is one machine",
            hint="--nodes 1 asks for one; --site selects a cluster",
        )
    if not site.partitions:
        why_not = _machine_refusals(manifest, machine) if machine else []
        if why_not:
            raise _no_fit(site, [f"this machine: {'; '.join(why_not)}"])
        return Placement(named if has_nodes else None, wished, manifest.time_s)
    candidates = _candidates(named, site)
    most = [_most_memory(manifest, site.partitions[name]) for name in candidates]
    most_bytes = None if None in most else max(filter(None, most), default=None)
    reasons: list[str] = []
    for name in _whole_first(candidates, site, manifest.time_s or 0):
        limits = site.partitions[name]
        why_not = _refusals(manifest, limits, manifest.fixed_per_node or 1)
        if not why_not:
            per_node = _per_node(manifest, _most_per_node(manifest, limits))
            job_s = _shorter(manifest.time_s, limits.max_time_s)
            return Placement(name, per_node, job_s, most_bytes, limits.max_time_s)
        reasons.append(f"{name}: {'; '.join(why_not)}")
    raise _no_fit(site, reasons)


def _whole_first(names: list[str], site: Site, time_s: int) -> list[str]:
    """Sort partitions: those in which one job is enough, then the longest limit first."""

    def lacking_s(name: str) -> int:
        limit_s = site.partitions[name].max_time_s
        return 0 if limit_s is None else max(0, time_s - limit_s)

    return sorted(names, key=lacking_s)


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
                hint=f"its file names {', '.join(site.partitions)}; `dlctl doctor {site.name}` "
                "shows the others of the site, to be added to `partitions` there",
            )
    return names


def _refusals(manifest: Manifest, limits: Partition, together: int) -> list[str]:
    """Return why the request does not fit one partition; an empty list if it fits.

    Args:
        together: How many learners a node must have room for.
    """
    reasons = []
    need = "a learner needs" if together == 1 else f"{together} learners on a node need"
    cpus, gpus = together * manifest.cpus_per_learner(), together * manifest.gpus_per_learner()
    memory = together * (manifest.memory_bytes or 0)
    if limits.cpus_per_node is not None and cpus > limits.cpus_per_node:
        reasons.append(f"{need} {cpus} CPUs, a node has {limits.cpus_per_node}")
    server, has = server_memory_bytes(manifest), limits.memory_bytes_per_node
    if has is not None and memory + server > has:
        more = f" and the parameter server {format_size(server)}" if server else ""
        reasons.append(f"{need} {format_size(memory)}{more}, a node has {format_size(has)}")
    if gpus > limits.gpus_per_node:
        needed_gpus = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        reasons.append(f"{need} {needed_gpus}, a node has {limits.gpus_per_node}")
    if not reasons:
        needed = len(_per_node(manifest, _most_per_node(manifest, limits)))
        most = min((n for n in (limits.nodes, limits.max_nodes) if n is not None), default=needed)
        if needed > most:
            reasons.append(
                f"{manifest.learners} learners need {needed} nodes, a job may have {most}"
            )
    return reasons


def _shorter(wanted_s: int | None, limit_s: int | None) -> int | None:
    """Return the time limit of one job: what was asked for, or the partition's if that is less."""
    return wanted_s if wanted_s is None or limit_s is None else min(wanted_s, limit_s)


def _machine_refusals(manifest: Manifest, machine: Partition) -> list[str]:
    """Return why the request does not fit this machine: learners share only its CPUs."""
    reasons = _refusals(manifest, machine, 1)
    if reasons:
        return reasons
    learners = f"{manifest.learners} learners need"
    memory, gpus = (manifest.memory_bytes or 0) * manifest.learners, manifest.gpus_per_learner()
    memory += server_memory_bytes(manifest)
    has = machine.memory_bytes_per_node
    if has is not None and memory > has:
        reasons.append(f"{learners} {format_size(memory)} in total, it has {format_size(has)}")
    if gpus * manifest.learners > machine.gpus_per_node:
        reasons.append(f"{learners} {gpus * manifest.learners} GPUs in total, "
                       f"it has {machine.gpus_per_node}")  # fmt: skip
    return reasons


def _per_node(manifest: Manifest, most: int) -> list[int]:
    """Return the learners on each node: as asked, else spread over as few nodes as can be."""
    each = manifest.fixed_per_node
    return (
        _spread(manifest.learners, most) if each is None else [each] * (manifest.learners // each)
    )


def _most_per_node(manifest: Manifest, limits: Partition) -> int:
    fitting = [manifest.learners]
    if limits.cpus_per_node is not None:
        fitting.append(limits.cpus_per_node // manifest.cpus_per_learner())
    if limits.memory_bytes_per_node is not None and manifest.memory_bytes:
        room = limits.memory_bytes_per_node - server_memory_bytes(manifest)
        fitting.append(room // manifest.memory_bytes)
    if gpus := manifest.gpus_per_learner():
        fitting.append(limits.gpus_per_node // gpus)
    return max(1, min(fitting))


def _most_memory(manifest: Manifest, limits: Partition) -> int | None:
    """Return how much memory each learner could have in a partition; None: not known."""
    if limits.memory_bytes_per_node is None:
        return None
    nodes = min((n for n in (limits.nodes, limits.max_nodes) if n), default=manifest.learners)
    together = manifest.fixed_per_node or -(-manifest.learners // nodes)
    return max(0, limits.memory_bytes_per_node - server_memory_bytes(manifest)) // together


def _spread(learners: int, most_per_node: int) -> list[int]:
    """Return the learners on each node, spread evenly: 5 with at most 2 per node: [2, 2, 1]."""
    nodes = -(-learners // most_per_node)
    each, more = divmod(learners, nodes)
    return [each + 1] * more + [each] * (nodes - more)
