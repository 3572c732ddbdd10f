"""Draft a site's file from the site's answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dlctl.contract import STARTERS, StarterKind
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import SiteError
from dlctl.scheduler import scheduler_class
from dlctl.scheduler.offer import FoundPartition, Offer
from dlctl.site_admin.discovery import Discovered
from dlctl.sites.files import Partition, Site, TransportSettings, yaml_scalar
from dlctl.units import format_bytes, format_duration, format_size

_MIB = 1024**2


def make_site(
    name: str,
    found: Discovered,
    transport: TransportSettings,
    *,
    root: str | None = None,
    python: str | None = None,
    alone: bool = False,
) -> Site:
    """Return the site that follows from what was found.

    Args:
        alone: Run jobs on that machine itself, even if it has a scheduler.

    Raises:
        SiteError: the scheduler that is there did not list its partitions.
    """
    kind, offer = ("local", Offer()) if alone else (found.kind, found.offer)
    if scheduler_class(kind).allocates and not offer.partitions:
        raise SiteError(
            f"{found.host}: {no_partitions(offer)}",
            hint="try again once its controller answers; --without-slurm runs jobs on that machine",
        )
    partitions = {p.name: limits_of(p) for p in offer.partitions if p.available == "up"}
    closed = bool(partitions) and set(partitions) <= set(offer.submit_hosts)
    return Site.model_validate({
        "name": name,
        "transport": transport,
        "root": root or f"{found.home}/dlctl",
        "scheduler": {
            "kind": kind, "path": offer.path, "account": offer.default_account,
            "accounting": offer.accounting,
            "next_attempt": [s for s in STARTERS if not (closed and s == StarterKind.JOB)],
        },
        "partitions": partitions,
        "launcher": {"kind": offer.launcher, "mpi": offer.mpi},
        "environment": {"python": python},
    })  # fmt: skip


def no_partitions(offer: Offer) -> str:
    """Return why a scheduler has listed none."""
    return offer.problems[0] if offer.problems else "no partition was listed"


def limits_of(found: FoundPartition) -> Partition:
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
    offer, scheduler = found.offer, site.scheduler
    title = offer.title or "no scheduler"
    head = [
        f"The site {site.name}, drafted by dlctl on {found.host}: {title}"
        + (f", cluster {offer.cluster}." if offer.cluster else "."),
        f"Edit it as you like; `dlctl doctor {site.name}` compares it with the site,",
        "docs/sites.md and `dlctl sites show slurm-example` explain each key.",
        *offer.problems,
    ]
    free = ""
    if found.free_bytes is not None and site.root.startswith(found.home + "/"):
        free = f"  # {format_bytes(found.free_bytes)} free on the site"
    others = [each for each in offer.accounts if each != scheduler.account]
    notes = [f"your other accounts here: {', '.join(others)}"] if others else []
    if scheduler.kind == "local":
        notes = ["no scheduler is used: jobs run on that machine itself, one after another"]
    given = scheduler.model_dump(exclude_defaults=True) | {"accounting": scheduler.accounting}
    return "".join([
        *_comments(head),
        _block("transport", site.transport.model_dump(exclude_defaults=True)),
        f"\nroot: {yaml_scalar(site.root)}{free}\n\n",
        _block("scheduler", given, notes),
        "\n" if scheduler.kind == "local" else _partitions(site, offer),
        _block("launcher", site.launcher.model_dump(exclude_defaults=True), _launcher_notes(found)),
        _block("\nenvironment", {"python": site.environment.python},
               _environment_notes(site, found)),
    ])  # fmt: skip


def _comments(notes: Iterable[str], indent: str = "") -> list[str]:
    return [f"{indent}# {printable(note)[:200]}\n" for note in notes]


def _block(name: str, values: dict[str, Any], notes: Iterable[str] = (), indent: str = "") -> str:
    inner = f"{indent}  "
    lines = [f"{inner}{key}: {yaml_scalar(value)}\n" for key, value in values.items()]
    return "".join([f"{indent}{name}:\n", *_comments(notes, inner), *lines])


def _launcher_notes(found: Discovered) -> list[str]:
    offer, types = found.offer, ", ".join(found.offer.mpi_types)
    notes = [f"mpi: {types}; the default is {offer.mpi_default}"] if types else []
    return [*notes, f"mpirun: {found.mpirun}"] if found.mpirun else notes


def _environment_notes(site: Site, found: Discovered) -> list[str]:
    missing = f"`dlctl sites setup {site.name}` installs one and writes it here"
    notes = [missing] if site.environment.python is None else []
    if found.pythons:
        notes.append(f"found: {', '.join(found.pythons)}")
    if found.modules:
        notes.append(f"{found.modules[0]}: {', '.join(found.modules[1:20])}")
    return notes


def _partitions(site: Site, offer: Offer) -> str:
    lines = ["\npartitions:\n" if site.partitions else "\npartitions: {}\n"]
    for partition in offer.partitions:
        lines += _comments(_partition_notes(partition), "  ")
        if limits := site.partitions.get(partition.name):
            lines.append(_block(yaml_scalar(partition.name), _limits(limits), indent="  "))
    return "".join(lines) + "\n"


def _limits(limits: Partition) -> dict[str, Any]:
    """Return what is known of a partition, as a person writes it."""
    values = limits.model_dump(by_alias=True, exclude_defaults=True)
    if limits.memory_bytes_per_node is not None:
        values["memory_per_node"] = f"{limits.memory_bytes_per_node // _MIB}MiB"
    if limits.max_time_s is not None:
        values["max_time"] = format_duration(limits.max_time_s)
    return values


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
    if lost := found.count(usable=False):
        notes.append(f"{found.name}: {lost} of its nodes are down or drained now")
    return notes
