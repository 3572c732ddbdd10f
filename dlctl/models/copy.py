"""Copy a version to another site, through this machine: only contents that the other site lacks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import ModelVersion
from dlctl.files.upload import Progress, download
from dlctl.models.known import KnownModel
from dlctl.models.publish import NewVersion, publish
from dlctl.models.pull import AT_ONCE
from dlctl.models.reading import Found, missing_blobs
from dlctl.record import state_directory
from dlctl.request.build import new_training_id

if TYPE_CHECKING:
    from dlctl.lifecycle import Session


def copy(
    source: Session, found: Found, target: Session, there: Sequence[KnownModel],
    aliases: Sequence[str] = (), on_progress: Progress | None = None,
) -> ModelVersion:  # fmt: skip
    """Return the version of the other site; the one that is there already if it was copied before.

    It gets an id and a number of that site, because both sites go on by themselves. Copies of a
    model's versions are versions of one model there.

    Args:
        there: The models of the other site.
        aliases: They begin to mean a version that is new there.

    Raises:
        ResultsError, TransferError: a content is missing or damaged, or a disk is full.
        TransportError
    """
    original = found.version.copy_of or found.version.label
    copies = [(m, m.version(n)) for m in there for n in m.numbers if m.version(n).copy_of]
    if known := [v for _, v in copies if v.copy_of == original]:
        return known[0]
    family = original.partition("@")[0]
    old = next((m for m, v in copies if v.copy_of.partition("@")[0] == family), None)
    name = found.version.name
    record = replace(found.version, version=0, copy_of=original,
                     model_id=old.model_id if old else new_training_id(name))  # fmt: skip
    words = {contract.MODEL_TAGS: [] if old else found.model.tags, contract.MODEL_ALIASES: aliases}
    told = None if old else found.model.description or None
    state_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="copy.", dir=state_directory()) as folder:
        lacking = sorted(missing_blobs(target, record.files))
        for at in range(0, len(lacking), AT_ONCE):
            some = {sha256: sha256 for sha256 in lacking[at : at + AT_ONCE]}
            blobs = f"{source.site.root}/{contract.MODEL_BLOBS}"
            download(source.transport, blobs, some, Path(folder), on_progress)
        local = {sha256: Path(folder, sha256) for sha256 in lacking}
        new = NewVersion(record, old is None, local, {}, words, told)
        return publish(target, new, on_progress)
