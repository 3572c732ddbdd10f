"""Bring the code and the manifest of a training here, to train them again with changes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import RecordError
from dlctl.manifest.load import parse_manifest
from dlctl.manifest.overrides import Overrides
from dlctl.request.attempts import read_newest
from dlctl.sites.model import xdg_directory

if TYPE_CHECKING:
    from dlctl.manifest.model import Manifest
    from dlctl.record import Record
    from dlctl.service.client import Client


def manifest_of(mine: Client, record: Record) -> Path:
    """Return a manifest in a folder of the cache that holds what a training runs.

    Raises:
        RecordError: it is a search, or its files are lost.
        TransportError, TransferError
    """
    from dlctl.outputs.fetch import Wanted, fetch

    if record.is_search:
        raise RecordError(f"{record.training_id} is a search, which starts from its file",
                          hint=f"dlctl search start {record.manifest_path}")  # fmt: skip
    cache = xdg_directory("XDG_CACHE_HOME", ".cache") / "dlctl" / "again"
    with closing(mine.open(record.site)) as session:
        newest = read_newest(session.transport, record)
        place = cache / f"{record.training_id}-{newest.plan.code_digest[:12]}"
        with mine.tell.progress("fetching") as on_progress:
            fetch(session.transport, record, place, Wanted((contract.CODE,), (), on_progress))
    code = place / contract.CODE
    code.mkdir(parents=True, exist_ok=True)  # it may have sent no file
    path = code / f"{record.training_id}.yml"
    manifest = parse_manifest(newest.manifest, path.name, stored=True)
    contract.write_whole(path, _from_here(manifest, newest.manifest, record), 0o600)
    return path


def _from_here(manifest: Manifest, text: bytes, record: Record) -> str:
    """Return the manifest with the files of credentials named from any folder."""
    folder = Path(record.manifest_path).parent
    changes = []
    for name, reference in manifest.references().items():
        if reference.from_file and record.manifest_path:
            head, _, key = name.partition(".")
            where = f"env.{name}" if not key else name
            if head == "data_stores":
                position, _, key = key.partition(".")
                where = f"data_stores.{position}.connection.{key}"
            whole = folder / Path(reference.from_file).expanduser()
            changes.append(f"{where}.from_file={whole}")
    return parse_manifest(text, contract.MANIFEST, Overrides(set=tuple(changes)),
                          stored=True).to_yaml()  # fmt: skip
