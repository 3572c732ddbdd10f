"""Try on a compute node what only a node can tell: `dlctl sites check --on-node`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl.contract import StarterKind
from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import TransportError
from dlctl.site_admin.check import FAILED, OK, WARNING, Check
from dlctl.site_admin.setup import site_template

if TYPE_CHECKING:
    from dlctl.sites.files import Site
    from dlctl.transport.base import Transport

_TIMEOUT_S = 240.0
_NAME = "next attempt, on a node"


def probe_script(site: Site) -> str:
    """Return the script, which waits for a node for at most two minutes. Pure."""
    default = next((name for name, each in site.partitions.items() if each.default), "")
    head = {
        "folder": site.scheduler.path, "partition": default, "account": site.scheduler.account,
    }  # fmt: skip
    lines = [f"{name}={shlex.quote(value or '')}" for name, value in head.items()]
    return "\n".join([*lines, site_template("probe_node.sh")])


def check_on_node(site: Site, transport: Transport) -> list[Check]:
    """Check from a compute node, in a job of its own.

    Returns:
        Who can start the next attempt there; whether programs can see the service's paths.
    """
    try:
        end = transport.run(probe_script(site), timeout_s=_TIMEOUT_S)
    except TransportError as error:
        return [Check(_NAME, FAILED, error.message, error.hint)]
    why = end.last_error_line or f"exit code {end.exit_code}"
    return [judge(site, end.text, why), *judge_namespaces(end.text)]


def judge(site: Site, answer: str, error: str) -> Check:
    """Return what the probe's answer means for `scheduler.next_attempt`. Pure.

    Args:
        error: why the probe may have said nothing.
    """
    told = _told(answer)
    if "submit" not in told:
        hint = "try again when a node of the default partition is free"
        return Check(_NAME, WARNING, f"no node has answered: {error}", hint)
    node, allowed = told.get("node", "?"), list(site.scheduler.next_attempt)
    closed = {}
    for kind, key in ((StarterKind.JOB, "submit"), (StarterKind.REQUEUE, "control")):
        code, _, said = told.get(key, "").partition(" ")
        if code != "0" and kind in allowed:
            closed[kind.value] = said or f"exit code {code}"
    if not closed:
        return Check(_NAME, OK, f"{node} can submit jobs" if StarterKind.JOB in allowed else node)
    why = "; ".join(f"{kind}: {said}" for kind, said in closed.items())
    rest = ", ".join(kind for kind in allowed if kind not in closed)
    hint = f"set scheduler.next_attempt: [{rest}] in the site's file"
    return Check(_NAME, WARNING, f"not possible from {node}: {why}", hint)


def judge_namespaces(answer: str) -> list[Check]:
    """Return whether the node allows what /mnt/data, /mnt/results and /job need. Pure."""
    told = _told(answer)
    if "namespaces" not in told:
        return []
    name, node = "paths of the service", told.get("node", "?")
    code, _, said = told["namespaces"].partition(" ")
    if code == "0":
        return [Check(name, OK, f"programs can see /mnt/data, /mnt/results and /job on {node}")]
    hint = "in programs use $DATA_DIR, $RESULT_DIR and $JOB_STATE_DIR, or a container"
    seen = f"{node} allows no user namespaces: {said or f'exit code {code}'}"
    return [Check(name, WARNING, seen, hint)]


def _told(answer: str) -> dict[str, str]:
    lines = (line.partition(" ") for line in lines_of(answer))
    return {kind.removeprefix("dlctl-"): rest.strip() for kind, _, rest in lines}
