"""Submit trainings: each variant that one command asks for, once; and say what not to expect."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract.programs.commands import warnings_of
from dlctl.contract.programs.lone_program import saves_beside_itself
from dlctl.errors import Misused, PlanError
from dlctl.lifecycle.many import Sent, distinct, submit_all
from dlctl.record.batches import Key
from dlctl.record.used import known
from dlctl.request.left_out import listing, rows
from dlctl.request.request import submitted_with
from dlctl.store_checks import refuse_wrong_stores
from dlctl.suggest.evidence import far_off
from dlctl.tell import SILENT, Once, Tell
from dlctl.units import format_duration, format_span, several, unix_seconds

if TYPE_CHECKING:
    from dlctl.contract import Plan
    from dlctl.lifecycle import Session
    from dlctl.record import RecordStore
    from dlctl.request.build import Folder
    from dlctl.request.bundle import Bundle
    from dlctl.request.request import Request
    from dlctl.request.variants import Variant
    from dlctl.sites.model import Site


def submit_variants(
    session: Session, store: RecordStore, wanted: Sequence[Variant], model: str | None = None,
    tags: Sequence[str] = (), tell: Tell = SILENT, *, list_files: bool = False,
    key: str | None = None, body: str = "", advice: bool = True,
) -> Sent:  # fmt: skip
    """Submit each variant once; what the same command has submitted before stays as it is.

    Args:
        model: The stored model that is trained, in place of a manifest's folder.
        list_files: Whether to name each file that is sent, and each that is not.
        key: What a program calls this request; repeated at any time, it means the same trainings.
        body: A digest of the request, if its manifests and files don't tell it from others.
        advice: Whether to say that one asks for far more than what any of its kind has used.

    Raises:
        KeyTaken: the key is another request's.
        ManifestError, PlanError, SiteError, TransferError, TransportError
    """
    folders = {} if model else _read(wanted, session.site)
    for folder in folders.values() if list_files else ():
        tell_files(folder.code, tell)
    command = _digest(session.site.name, wanted, folders, model, tags, str(Path.cwd()))

    body = body or _digest(session.site.name, wanted, folders, model, tags)

    def look_over(requests: Sequence[Request]) -> None:
        refuse_this_python(requests[0].plan, session.site)
        seen, once = set[str](), Once(tell)
        for request, variant in zip(requests, wanted, strict=False):
            plan = request.plan
            about = repr((plan.not_in_this_version, plan.lifecycle, plan.batch.partition,
                          plan.weights, plan.framework.command, plan.resources))  # fmt: skip
            if about not in seen:
                seen.add(about)
                tell_plan(plan, variant.manifest, model, once)
        if key is None:
            _say_twins(requests, wanted, store, tell)
        if advice:
            plans = [request.plan for request in requests]
            tell.note(far_off(plans, known(store, plans)))
        for request in distinct(requests, lambda r: repr(r.plan.data_stores)):
            refuse_wrong_stores(session, request, tell)

    builds = [partial(_build, session, variant, folders, model) for variant in wanted]
    return submit_all(session, store, command, builds, tags, tell, look_over,
                      None if key is None else Key(key, body))  # fmt: skip


def refuse_several(*ways: object) -> None:
    """Refuse a request that says in several ways what is trained.

    Raises:
        Misused
    """
    if sum(map(bool, ways)) > 1:
        raise Misused("either a manifest, a stored model or an earlier training is trained: "
                      "name one of them")  # fmt: skip


def _build(
    session: Session, variant: Variant, folders: dict[Path, Folder], model: str | None,
    training_id: str | None, tags: Sequence[str],
) -> Request:  # fmt: skip
    from dlctl.models.use import build

    request = build(session, variant.manifest, variant.overrides, model, training_id, tags,
                    folders.get(variant.manifest))  # fmt: skip
    return replace(request, plan=replace(request.plan, varied=variant.label))


def _read(wanted: Sequence[Variant], site: Site) -> dict[Path, Folder]:
    """Return what the folder of each manifest holds."""
    from dlctl.request.build import open_folder

    paths = dict.fromkeys(variant.manifest for variant in wanted)
    return {path: open_folder(path, site) for path in paths if path.is_file()}


def _digest(
    site: str, wanted: Sequence[Variant], folders: dict[Path, Folder], model: str | None,
    tags: Sequence[str], where: str = "",
) -> str:  # fmt: skip
    """Return what tells a command from every other one: all that it would send, and where to."""
    contents = {str(path): [hashlib.sha256(path.read_bytes()).hexdigest(), folder.code.digest]
                for path, folder in folders.items()}  # fmt: skip
    each = [[str(one.manifest.resolve()), asdict(one.overrides)] for one in wanted]
    whole = json.dumps([site, model, list(tags), contents, each, where], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


_OF_THE_LOOP = ("torch", "numpy", "h5py")
"""Packages that the built-in loop imports."""


def refuse_this_python(plan: Plan, site: Site) -> None:
    """Refuse the built-in loop in a Python of this machine that lacks its packages."""
    if site.environment.python != "auto" or not plan.framework.has_loop or plan.requirements:
        return
    if lacks := [name for name in _OF_THE_LOOP if find_spec(name) is None]:
        raise PlanError(
            f"the site {site.name} trains with this Python, {sys.executable}, which lacks "
            f"{' and '.join(lacks)}",
            hint=f"{sys.executable} -m pip install 'dlctl[node]'; README.md says how for CPUs",
        )


STARTED = {
    "in_allocation": "on the nodes that the job has",
    "job": "submitted by the ending job",
    "requeue": "requeued by Slurm",
    "client": "started by the next dlctl command that asks the site",
}
"""How the next attempt comes about, by its `StarterKind`."""


def tell_plan(plan: Plan, manifest: Path, model: str | None, tell: Tell) -> None:
    """Say what a plan lacks, how many jobs it takes, and which models it uses."""
    for note in plan.not_in_this_version:
        tell.warn(note)
    _say_links(plan, tell)
    if plan.model:  # which version: an alias may move
        tell.note(f"trains {plan.model}")
    if plan.weights:
        tell.note(f"starts from {plan.weights.path} of {plan.weights.model}")
    _say_where_files_will_be(plan, manifest, model, tell)
    if not model:
        folder, command = manifest.resolve().parent, plan.framework.command
        for warning in warnings_of(command, plan.resources.learners, folder):
            tell.warn(warning)


def _say_where_files_will_be(plan: Plan, manifest: Path, model: str | None, tell: Tell) -> None:
    """Say where the files of a program will be found that seems to save beside itself."""
    framework = plan.framework
    if model or framework.has_loop:
        return
    script = framework.recipe.script if framework.recipe else ""
    if saves_beside_itself([framework.command or "", script], manifest.parent):
        tell.note(
            "the program names neither RESULT_DIR nor CHECKPOINT_DIR: what it writes into its own "
            "folder counts as its output, which `dlctl fetch` brings"
        )


def _say_twins(
    requests: Sequence[Request], wanted: Sequence[Variant], store: RecordStore, tell: Tell
) -> None:
    """Name the trainings that the same command has started, and that have not ended."""
    same = [(one.plan.site, str(one.manifest_path), each.label, one.overrides)
            for one, each in zip(requests, wanted, strict=False)]  # fmt: skip
    twins = [
        each for each in store.all() if not each.state.final and each.manifest_path
        and (each.site, each.manifest_path, each.varied, submitted_with(each)) in same
    ]  # fmt: skip
    if twins:
        age = format_span(time.time() - (unix_seconds(twins[-1].created_at) or 0.0))
        tell.note(f"the same is trained already: {several([each.training_id for each in twins])}, "
                  f"submitted {age} ago")  # fmt: skip


def tell_files(code: Bundle, tell: Tell) -> None:
    """Name each file that is sent, and each that is not, a line each."""
    for path, size, rule in rows(listing(code)):
        tell.note(f"{size:>8}  {path}" + (f"  left out by {rule}" if rule != "-" else ""))


def _say_links(plan: Plan, tell: Tell) -> None:
    """Say how many jobs a training takes that is longer than its partition allows."""
    links, each_s = plan.lifecycle.links if plan.lifecycle else 1, plan.resources.time_s
    if plan.lifecycle and links > 1 and each_s is not None:
        elsewhere = [each for each in plan.lifecycle.starters if each != "in_allocation"]
        where = f"the partition {plan.batch.partition}" if plan.batch.partition else "this site"
        tell.note(
            f"{where} allows {format_duration(each_s)} a job: a chain of about {links} jobs, the "
            f"next one {STARTED[elsewhere[0] if elsewhere else 'client']}"
        )
