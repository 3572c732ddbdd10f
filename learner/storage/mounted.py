"""A data store that is a directory which all nodes see: used in place; results are copied there."""

from __future__ import annotations

import os
from pathlib import Path

from dlctl.contract import WRITING, DataStore, ResultFile, ResultsIndex, whole_path
from dlctl.contract.ground.amounts import counted
from dlctl.contract.ground.safe_text import without_prefix
from dlctl.contract.ground.whole_files import sha256_of
from learner.errors import UserFault
from learner.storage.progress import Publication

_CHUNK_BYTES = 1 << 20


def problems(store: DataStore) -> list[str]:
    """Return a problem if this node can't read the training data: two lines."""
    path = data_path(store)
    if path is None or (path.exists() and os.access(path, os.R_OK)):
        return []
    why = "not readable" if path.exists() else "not there"
    return [
        f"The training data {str(path)!r} (data store {store.id!r}) is {why}.\n"
        "Check the data store's `connection` and `training_data`; the nodes must mount it."
    ]


def data_path(store: DataStore) -> Path | None:
    """Return the data's place, where it is used; None: the store has none."""
    if store.path is None or store.training_data is None:
        return None
    return Path(store.path, store.training_data)


def save(
    store: DataStore, place: str, results: Path, index: ResultsIndex, publication: Publication
) -> str:
    """Copy files to a place below the store's results, each file whole or not at all.

    A late writer of an earlier attempt does not win: what earlier attempts have begun is removed,
    and `publication.check` is called between the last byte and the name.

    Args:
        place: Begins with the training's id.

    Returns:
        Where they are now, for people; nothing if the store takes no results.

    Raises:
        UserFault: a copy failed, or is not what was written.
        Interrupted: by `publication`.
    """
    if store.path is None or store.training_results is None:
        return ""
    folder = Path(store.path, store.training_results, place)
    publication.check()
    _remove_begun(folder, publication.attempt)
    for item in index.files:
        _copy(results / item.path, folder / item.path, item, store.id, publication)
    return f"{counted(len(index.files), 'file')} in {folder}"


def _remove_begun(folder: Path, attempt: int) -> None:
    """Remove the copies that earlier attempts have begun: they can't be completed any more."""
    for path in folder.rglob(f"{WRITING}*"):
        number = without_prefix(path.name, WRITING).partition(".")[0]
        if number.isdecimal() and int(number) < attempt:
            path.unlink(missing_ok=True)


def _make_folders(folder: Path) -> None:
    """Make folders that are as open as the one above them: who may read a store is the store's."""
    if not folder.is_dir():
        _make_folders(folder.parent)
        folder.mkdir(exist_ok=True)
        folder.chmod(folder.parent.stat().st_mode & 0o7777)


def _mode_of(source: Path, folder: Path) -> int:
    """Return the permissions of a file in a store: as open as its folder, executable if it was."""
    mode = folder.stat().st_mode & 0o666
    return mode | (mode & 0o444) >> 2 if source.stat().st_mode & 0o100 else mode


def _copy(
    source: Path, target: Path, item: ResultFile, store_id: str, publication: Publication
) -> None:
    """Copy one file whole or not at all, and verify the copy."""
    tick = publication.tick
    try:
        _make_folders(target.parent)
        with whole_path(target, tag=f"{publication.attempt}.") as copy:
            copy.touch(mode=0o600)
            with copy.open("wb") as output, source.open("rb") as content:
                while chunk := content.read(_CHUNK_BYTES):
                    output.write(chunk)
                    tick()
            copy.chmod(_mode_of(source, target.parent))
            if sha256_of(copy, tick) != item.sha256:
                raise OSError(0, "the copy differs from the original")
            publication.check()
    except OSError as error:
        raise UserFault(
            f"Training ended well, but {item.path!r} can't be stored in data store {store_id!r} "
            f"({str(target)!r}): {error.strerror or error}.",
            hint="The results are safe in the job directory (`dlctl fetch results`); "
            "`dlctl resume` stores them without training again",
        ) from error
