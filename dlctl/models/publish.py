"""Store a version at a site: its contents first, then its record, which makes it visible.

One script does all that happens at the site, so a create that is killed at any moment leaves no
version, and at most contents that `dlctl models gc` removes. The record appears by a hard link,
which never replaces a file: of two creates at the same time each gets a number of its own.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import ModelVersion
from dlctl.errors import RecordError, RemoteCommandError, ResultsError, TransferError
from dlctl.files.archive import Entry
from dlctl.files.download import download
from dlctl.files.site_folders import NO_FOLDER, UNSAFE, begin_in_root, explained
from dlctl.files.upload import Progress, Tree, upload
from dlctl.models.known import KnownModel
from dlctl.models.pull import AT_ONCE
from dlctl.models.reading import Found, blobs_of, escaped, missing_blobs
from dlctl.record import state_directory
from dlctl.request.build import new_training_id
from dlctl.script_templates import render_script

if TYPE_CHECKING:
    from dlctl.lifecycle import Session

_TIMEOUT_S = 24 * 3600.0
"""Files of any size may have to be copied and hashed at the site."""
_TRIES = 3
_CODES = {"missing": 81, "differs": 82, "no_model": 83, "cut_short": 84, "no_room": 85, "taken": 86}


@dataclass(frozen=True)
class NewVersion:
    """A version that is to be stored."""

    record: ModelVersion
    """Its number is 0: the site decides."""
    is_new: bool
    """Whether it is the first one of a model."""
    local: Mapping[str, Path]
    """SHA-256 → a file on this machine; empty for what is at the site already."""
    there: Mapping[str, str]
    """SHA-256 → a file at the site, absolute, from which the content is copied."""
    words: Mapping[str, Sequence[str]]
    """`tags`, and `aliases` that begin to mean this version."""
    description: str | None = None


def publish(session: Session, new: NewVersion, on_progress: Progress | None = None) -> ModelVersion:
    """Store a version; return it with its number. Contents that the site has are not sent.

    Raises:
        RecordError: the model was deleted meanwhile, or the same request has made it just now.
        ResultsError: a file at the site is not what the training stored.
        TransferError: the disk there is full, or what arrived is damaged; nothing is visible.
    """
    for _ in range(_TRIES):
        lacking = missing_blobs(session, new.record.files)
        incoming = f"{contract.MODEL_INCOMING}/{secrets.token_hex(8)}"
        if sent := [sha for sha in sorted(lacking) if sha in new.local]:
            sizes = blobs_of(new.record.files)
            entries = [Entry(s, new.local[s], 0o444, size_bytes=sizes[s]) for s in sent]
            upload(session.transport, session.site.root, [Tree(incoming, entries)],
                   on_progress=on_progress, umask=session.site.umask)  # fmt: skip
        there = {sha256: new.there[sha256] for sha256 in lacking if sha256 in new.there}
        number = _publish(session, replace(new, there=there), incoming)
        if number is not None:
            return replace(new.record, version=number)
    raise TransferError(
        f"{session.transport.name}: contents vanish from {contract.MODEL_BLOBS} while a model is "
        "stored",
        hint="somebody removes files there; try again",
    )


def _publish(session: Session, new: NewVersion, incoming: str) -> int | None:
    """Move the contents and the record into place; return the number, or None to send again."""
    record = contract.version_text(new.record).encode()
    lines = [
        f"{sha256} {escaped(new.there.get(sha256, ''))}"
        for sha256 in sorted(blobs_of(new.record.files))
    ]
    listed = "".join(f"{line}\n" for line in [*lines, ""]).encode("utf-8", "surrogateescape")
    script = _script(session, new, incoming, len(record))
    end = session.transport.run(script, stdin=listed + record, timeout_s=_TIMEOUT_S)
    if end.exit_code == 0 and end.text.strip().isdecimal():
        return int(end.text)
    if end.exit_code == _CODES["missing"]:
        return None
    label, name = new.record.model_id, session.transport.name
    if end.exit_code == _CODES["differs"]:
        problem = end.last_error_line
        paths = (repr(f.path) for f in new.record.files if f.sha256 == problem.split(" ")[0])
        raise ResultsError(
            f"{name}: {next(paths, problem)} is no longer what the training "
            "stored, so no version was made",
            hint=f"`dlctl checkpoints list {new.record.training_id}` shows what else is there; or "
            "leave the file out: --results GLOB",
        )
    if end.exit_code == _CODES["taken"]:
        raise RecordError(f"{name}: {label} is there already",
                          hint="ask again with the same key")  # fmt: skip
    if end.exit_code == _CODES["no_model"]:
        raise RecordError(f"{name}: the model {label} was deleted meanwhile")
    if end.exit_code in (UNSAFE, NO_FOLDER, _CODES["no_room"], _CODES["cut_short"]):
        raise explained(session.transport, session.site.root, end)
    raise RemoteCommandError(
        f"{name}: the version can't be stored (exit code {end.exit_code}): {end.last_error_line}",
        hint="check the space and the permissions there; nothing of it is visible",
    )


def _script(session: Session, new: NewVersion, incoming: str, record_bytes: int) -> str:
    description = None if new.description is None else contract.json_text(new.description)
    return render_script(
        "login/model_publish.sh.j2", mode=f"{0o444 & ~session.site.umask:03o}",
        begin=begin_in_root(session.site.root, session.site.umask),
        model_id=new.record.model_id, is_new=new.is_new, incoming=incoming,
        record_bytes=record_bytes, description=description, codes=_CODES,
        aliases=new.words.get(contract.MODEL_ALIASES, ()),
        tags=new.words.get(contract.MODEL_TAGS, ()),
    )  # fmt: skip


def copy(
    source: Session, found: Found, target: Session, there: Sequence[KnownModel],
    aliases: Sequence[str] = (), on_progress: Progress | None = None,
) -> ModelVersion:  # fmt: skip
    """Copy a version to another site, through this machine; return the one that is there then.

    Only contents that the other site lacks are sent, and nothing if it was copied before. It gets
    an id and a number of that site, because both sites go on by themselves. Copies of a model's
    versions are versions of one model there.

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
    description = None if old else found.model.description or None
    state_directory().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="copy.", dir=state_directory()) as folder:
        lacking = sorted(missing_blobs(target, record.files))
        for at in range(0, len(lacking), AT_ONCE):
            some = {sha256: sha256 for sha256 in lacking[at : at + AT_ONCE]}
            blobs = f"{source.site.root}/{contract.MODEL_BLOBS}"
            download(source.transport, blobs, some, Path(folder), on_progress)
        local = {sha256: Path(folder, sha256) for sha256 in lacking}
        new = NewVersion(record, old is None, local, {}, words, description)
        return publish(target, new, on_progress)
