"""Draft a site's file from the site's answers. Pure."""

from __future__ import annotations

from dlctl.contract import STARTERS, StarterKind
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import SiteError
from dlctl.site_admin.discovery import Discovered, FoundPartition
from dlctl.sites.files import (
    EnvironmentSettings,
    LauncherSettings,
    Partition,
    SchedulerSettings,
    Site,
    TransportSettings,
    yaml_scalar,
)
from dlctl.units import format_bytes, format_duration, format_size

_MIB = 1024**2


def make_site(
    name: str,
    found: Discovered,
    transport: TransportSettings,
    *,
    root: str | None = None,
    python: str | None = None,
    without_slurm: bool = False,
) -> Site:
    """Return the site that follows from what was found.

    Args:
        without_slurm: Run jobs on that machine itself, even if it has Slurm.

    Raises:
        SiteError: the site has Slurm, but Slurm did not list its partitions.
    """
    slurm = found.slurm_folder is not None and not without_slurm
    if slurm and not found.partitions:
        why = found.problems[0] if found.problems else "sinfo listed no partition"
        raise SiteError(
            f"{found.host}: {why}",
            hint="try again once `sinfo` answers there; --without-slurm runs jobs on that machine",
        )
    off_path = found.slurm_folder if found.slurm_found != "path" else None
    partitions = {p.name: _limits(p) for p in found.partitions if p.available == "up"}
    return Site(
        name=name,
        transport=transport,
        root=root or f"{found.home}/dlctl",
        scheduler=SchedulerSettings(
            kind="slurm" if slurm else "local",
            path=off_path if slurm else None,
            account=found.default_account if slurm else None,
            accounting=found.accounting if slurm else False,
            next_attempt=[
                kind
                for kind in STARTERS
                if kind != StarterKind.JOB or not set(partitions) <= set(found.alloc_nodes)
            ]
            if slurm and partitions
            else list(STARTERS),
        ),
        partitions=partitions if slurm else {},
        launcher=choose_launcher(found) if slurm else LauncherSettings(kind="mpirun"),
        environment=EnvironmentSettings(python=python),
    )


def choose_launcher(found: Discovered) -> LauncherSettings:
    """Return srun with the PMI that Open MPI speaks, else mpirun."""
    pmix = next((kind for kind in found.mpi_types if kind.startswith("pmix")), None)
    if pmix:
        return LauncherSettings(kind="srun", mpi="pmix" if "pmix" in found.mpi_types else pmix)
    return LauncherSettings(kind="mpirun")


def _limits(found: FoundPartition) -> Partition:
    """Return the limits of the largest node: dlctl must refuse nothing that Slurm would accept."""
    groups = found.groups
    types = {group.gpu_type for group in groups if group.gpus}
    memories = [group.memory_bytes for group in groups if group.memory_bytes]
    return Partition(
        nodes=sum(group.count for group in groups),
        cpus_per_node=max((group.cpus for group in groups), default=0) or None,
        memory_per_node=max(memories, default=None),
        gpus_per_node=max((group.gpus for group in groups), default=0),
        gpu_type=types.pop() if len(types) == 1 else None,
        max_time=found.max_time_s,
        max_nodes=found.max_nodes,
        default=found.default,
    )


def site_text(site: Site, found: Discovered) -> str:
    """Return the site's file, with comments about what was found."""
    parts = [
        _head(site, found),
        _block("transport", _set(site.transport)),
        f"\nroot: {yaml_scalar(site.root)}{_free(site, found)}\n\n",
        _block("scheduler", _set(site.scheduler), _scheduler_notes(site, found)),
        _partitions(site, found),
        _block("launcher", _set(site.launcher), _launcher_notes(found)),
        _block("\nenvironment", [], _environment_notes(site, found)),
        f"  python: {yaml_scalar(site.environment.python)}\n",
    ]
    return "".join(parts)


def _set(settings: TransportSettings | SchedulerSettings | LauncherSettings) -> list[str]:
    given = settings.model_dump(exclude_defaults=True)
    if isinstance(settings, SchedulerSettings):
        given["accounting"] = settings.accounting
    return [f"{key}: {yaml_scalar(value)}" for key, value in given.items()]


def _block(name: str, lines: list[str], notes: list[str] | None = None) -> str:
    body = [f"# {printable(note)[:200]}" for note in notes or []] + lines
    return f"{name}:\n" + "".join(f"  {line}\n" for line in body)


def _head(site: Site, found: Discovered) -> str:
    cluster = f", cluster {found.cluster}" if found.cluster else ""
    slurm = f"Slurm {found.slurm_version}" if found.slurm_folder else "no Slurm"
    lines = [
        f"The site {site.name}, drafted by dlctl on {found.host}: {slurm}{cluster}.",
        f"Edit it as you like; `dlctl sites check {site.name}` compares it with the site,",
        "docs/sites.md and `dlctl sites show slurm-example` explain each key.",
        *found.problems,
    ]
    return "".join(f"# {printable(line)[:200]}\n" for line in lines)


def _free(site: Site, found: Discovered) -> str:
    if found.free_bytes is None or not site.root.startswith(found.home + "/"):
        return ""
    return f"  # {format_bytes(found.free_bytes)} free on the site"


def _scheduler_notes(site: Site, found: Discovered) -> list[str]:
    if site.scheduler.kind == "local":
        return ["Slurm is not used: jobs run on that machine itself, one after another"]
    others = [name for name in found.accounts if name != found.default_account]
    return [f"your other accounts here: {', '.join(others)}"] if others else []


def _launcher_notes(found: Discovered) -> list[str]:
    notes = []
    if found.mpi_types:
        default = found.mpi_default or "none"
        notes.append(f"srun --mpi=list: {', '.join(found.mpi_types)}; the default is {default}")
    if found.mpirun:
        notes.append(f"mpirun: {found.mpirun}")
    return notes


def _environment_notes(site: Site, found: Discovered) -> list[str]:
    notes = []
    if site.environment.python is None:
        notes.append(f"`dlctl sites setup {site.name}` installs one and writes it here")
    if found.pythons:
        notes.append(f"found: {', '.join(map(str, found.pythons))}")
    if found.modules:
        notes.append(f"{found.modules[0]}: {', '.join(found.modules[1:20])}")
    return notes


def _partitions(site: Site, found: Discovered) -> str:
    if not found.partitions or site.scheduler.kind == "local":
        return "\n"
    lines = ["\npartitions:\n" if site.partitions else "\npartitions: {}\n"]
    for partition in found.partitions:
        limits = site.partitions.get(partition.name)
        for note in _partition_notes(partition):
            lines.append(f"  # {printable(note)[:200]}\n")
        if limits is not None:
            lines.append(f"  {yaml_scalar(partition.name)}:\n")
            lines += [f"    {key}: {value}\n" for key, value in _limit_lines(limits)]
    return "".join(lines) + "\n"


def _limit_lines(limits: Partition) -> list[tuple[str, str]]:
    memory, time_s = limits.memory_bytes_per_node, limits.max_time_s
    values: dict[str, object] = {
        "default": limits.default or None,
        "nodes": limits.nodes,
        "cpus_per_node": limits.cpus_per_node,
        "memory_per_node": None if memory is None else f"{memory // _MIB}MiB",
        "gpus_per_node": limits.gpus_per_node or None,
        "gpu_type": limits.gpu_type,
        "max_time": None if time_s is None else format_duration(time_s),
        "max_nodes": limits.max_nodes,
    }
    return [(key, yaml_scalar(value)) for key, value in values.items() if value is not None]


def _partition_notes(found: FoundPartition) -> list[str]:
    notes = []
    if found.available != "up":
        notes.append(f"{found.name} is {found.available}: left out")
    kinds: dict[str, int] = {}
    for group in found.groups:
        gpus = f", {group.gpus} GPUs {group.gpu_type or ''}".rstrip() if group.gpus else ""
        memory = f", {format_size(group.memory_bytes)}" if group.memory_bytes else ""
        kind = f"{group.cpus} CPUs{memory}{gpus}"
        kinds[kind] = kinds.get(kind, 0) + group.count
    if len(kinds) > 1:
        each = "; ".join(f"{count} with {kind}" for kind, count in kinds.items())
        notes.append(f"{found.name} has unlike nodes; the limits are those of the largest: {each}")
    lost = sum(group.count for group in found.groups if not group.usable)
    if lost:
        notes.append(f"{found.name}: {lost} of its nodes are down or drained now")
    return notes
