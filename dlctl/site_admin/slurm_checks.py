"""Compare a site's file with what its Slurm says. Pure."""

from __future__ import annotations

from dlctl.contract import StarterKind
from dlctl.site_admin.check import FAILED, OK, WARNING, Check
from dlctl.site_admin.discovery import Discovered
from dlctl.site_admin.draft import make_site
from dlctl.sites.files import Partition, Site


def check_slurm(site: Site, found: Discovered) -> list[Check]:
    """Return a check for Slurm, each partition, the account and what starts the next attempt."""
    if found.slurm_folder is None:
        return [
            Check("slurm", FAILED, "sinfo was not found", "set scheduler.path in the site's file")
        ]
    checks = [_slurm_itself(site, found)]
    if not found.partitions:
        why = found.problems[0] if found.problems else "sinfo listed no partition"
        return [
            *checks,
            Check("partitions", FAILED, why, "try again once sinfo answers on the site"),
        ]
    known = make_site(site.name, found, site.transport).partitions
    for name, limits in site.partitions.items():
        checks.append(_partition(name, limits, known, found))
    new = [name for name in known if name not in site.partitions]
    if new and site.partitions:
        checks.append(Check("partitions", OK, f"the file does not name {', '.join(new)}"))
    return [
        *checks,
        _account(site, found),
        check_accounting(site, found),
        _next_attempt(site, found),
    ]


def _slurm_itself(site: Site, found: Discovered) -> Check:
    seen = f"Slurm {found.slurm_version or '?'} in {found.slurm_folder}"
    if found.slurm_found == "path" or site.scheduler.path:
        return Check("slurm", OK, seen)
    hint = f"set scheduler.path: {found.slurm_folder} in the site's file"
    return Check("slurm", FAILED, f"{seen}, not on the PATH of a non-login shell", hint)


def _partition(
    name: str, limits: Partition, known: dict[str, Partition], found: Discovered
) -> Check:
    label = f"partition {name}"
    there = {partition.name: partition for partition in found.partitions}
    if name not in there:
        hint = f"Slurm shows {', '.join(there)}; remove it from the site's file"
        return Check(label, FAILED, "does not exist (or is closed to you)", hint)
    if there[name].available != "up":
        return Check(label, WARNING, f"is {there[name].available} now", "use another partition")
    over = _over(limits, known[name])
    if over:
        return Check(label, WARNING, f"the file promises more: {over}", "correct the site's file")
    usable = sum(group.count for group in there[name].groups if group.usable)
    if not usable:
        return Check(
            label, WARNING, "none of its nodes is usable now", "use another partition, or wait"
        )
    return Check(label, OK, f"{usable} of {known[name].nodes} nodes usable")


def _over(file: Partition, real: Partition) -> str:
    pairs = {
        "nodes": (file.nodes, real.nodes),
        "cpus_per_node": (file.cpus_per_node, real.cpus_per_node),
        "memory_per_node": (file.memory_bytes_per_node, real.memory_bytes_per_node),
        "gpus_per_node": (file.gpus_per_node, real.gpus_per_node),
        "max_time": (file.max_time_s, real.max_time_s),
        "max_nodes": (file.max_nodes, real.max_nodes),
    }
    differing = [
        f"{key} {written}, Slurm says {actual}"
        for key, (written, actual) in pairs.items()
        if written is not None and actual is not None and written > actual
    ]
    if file.gpu_type and real.gpu_type and file.gpu_type != real.gpu_type:
        differing.append(f"gpu_type {file.gpu_type}, Slurm says {real.gpu_type}")
    return "; ".join(differing)


def _account(site: Site, found: Discovered) -> Check:
    account = site.scheduler.account
    if account and found.accounts and account not in found.accounts:
        hint = f"set scheduler.account to one of {', '.join(found.accounts)}"
        return Check("account", FAILED, f"{account} is not one of yours", hint)
    return Check("account", OK, account or found.default_account or "none")


def check_accounting(site: Site, found: Discovered) -> Check:
    """Check that the accounting answers, if the site's file says that there is one."""
    if site.scheduler.accounting and not found.accounting:
        hint = "set scheduler.accounting: false if it never does"
        return Check("accounting", WARNING, "sacct does not answer", hint)
    return Check("accounting", OK, "sacct answers" if found.accounting else "not used")


def _next_attempt(site: Site, found: Discovered) -> Check:
    """Check that who shall start the next attempt of a training can. Pure."""
    name = "next attempt"
    allowed = site.scheduler.next_attempt
    closed = {p: nodes for p, nodes in found.alloc_nodes.items() if p in site.partitions}
    if StarterKind.JOB not in allowed or not closed:
        return Check(name, OK, f"is started by: {', '.join(allowed)}")
    partition, nodes = next(iter(closed.items()))
    rest = ", ".join(kind for kind in allowed if kind != StarterKind.JOB)
    seen = (
        f"jobs of the partition {partition} are submitted from {nodes} only, so that an ending "
        "job can't submit the next one"
    )
    hint = f"set scheduler.next_attempt: [{rest}] in the site's file"
    return Check(name, WARNING, seen, hint)
