"""Submit trainings: each variant that one command asks for, once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.data.checks import refuse_wrong_stores
from dlctl.lifecycle.many import Sent, Wanted, distinct, submit_all
from dlctl.service.telling import tell_files, tell_plan
from dlctl.tell import SILENT, Tell

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import RecordStore
    from dlctl.request.build import Folder
    from dlctl.request.request import Request
    from dlctl.request.variants import Variant
    from dlctl.sites.model import Site


def submit_variants(
    session: Session, store: RecordStore, wanted: Sequence[Variant], model: str | None = None,
    tags: Sequence[str] = (), tell: Tell = SILENT, *, list_files: bool = False,
) -> Sent:  # fmt: skip
    """Submit each variant once; what the same command has submitted before stays as it is.

    Args:
        model: The stored model that is trained, in place of a manifest's folder.
        list_files: Whether to name each file that is sent, and each that is not.

    Raises:
        ManifestError, PlanError, SiteError, TransferError, TransportError
    """
    folders = {} if model else _read(wanted, session.site)
    for folder in folders.values() if list_files else ():
        tell_files(folder.code, tell)
    command = _digest(session.site.name, wanted, folders, model, tags)

    def look_over(requests: Sequence[Request]) -> None:
        told = set[str]()
        for request, variant in zip(requests, wanted, strict=False):
            plan = request.plan
            about = repr((plan.not_in_this_version, plan.lifecycle, plan.batch.partition,
                          plan.weights, plan.framework.command, plan.resources))  # fmt: skip
            if about not in told:
                told.add(about)
                tell_plan(plan, variant.manifest, model, tell)
        for request in distinct(requests, lambda r: repr(r.plan.data_stores)):
            refuse_wrong_stores(request, tell.note)

    builds = [Wanted(partial(_build, session, variant, folders, model), variant.label)
              for variant in wanted]  # fmt: skip
    return submit_all(session, store, command, builds, tags, tell, look_over)


def _build(
    session: Session, variant: Variant, folders: dict[Path, Folder], model: str | None,
    training_id: str | None, tags: Sequence[str],
) -> Request:  # fmt: skip
    from dlctl.models.use import build

    return build(session, variant.manifest, variant.overrides, model, training_id, tags,
                 folders.get(variant.manifest))  # fmt: skip


def _read(wanted: Sequence[Variant], site: Site) -> dict[Path, Folder]:
    """Return what the folder of each manifest holds."""
    from dlctl.request.build import open_folder

    paths = dict.fromkeys(variant.manifest for variant in wanted)
    return {path: open_folder(path, site) for path in paths if path.is_file()}


def _digest(
    site: str, wanted: Sequence[Variant], folders: dict[Path, Folder], model: str | None,
    tags: Sequence[str],
) -> str:  # fmt: skip
    """Return what tells a command from every other one: all that it would send, and where to."""
    contents = {str(path): [hashlib.sha256(path.read_bytes()).hexdigest(), folder.code.digest]
                for path, folder in folders.items()}  # fmt: skip
    each = [[str(one.manifest.resolve()), dataclasses.asdict(one.overrides)] for one in wanted]
    whole = json.dumps([site, model, list(tags), contents, each, str(Path.cwd())], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()
