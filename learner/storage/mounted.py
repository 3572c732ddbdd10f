"""Data stores on the node: what DATA_DIR names, and where results go."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from dlctl import contract
from dlctl.contract import DataStore, Plan, ResultFile, ResultsIndex, to_json, write_whole
from learner.errors import UserFault

_CHUNK_BYTES = 1 << 20
_TOLD = 10
"""So many names of what is left out are told."""


def load(plan: Plan, job_dir: Path) -> list[str]:
    """Make `data`: a link to the one store's data, or a folder with a link per store.

    Returns:
        One line for each store that was linked.
    """
    sources = [(store, path) for store in plan.data_stores if (path := data_path(store))]
    data = job_dir / contract.DATA
    _remove(data)
    if len(sources) == 1:
        data.symlink_to(sources[0][1], target_is_directory=True)
    else:
        data.mkdir()
        for store, path in sources:
            (data / store.id).symlink_to(path, target_is_directory=True)
    return [f"{store.id}: {path}" for store, path in sources]


def data_path(store: DataStore) -> Path | None:
    """Return where a store's training data is on the node, if it has any there."""
    if store.path is None or store.training_data is None:
        return None
    return Path(store.path, store.training_data)


def _remove(data: Path) -> None:
    """Remove the `data` of an earlier attempt: links only, never what they point to."""
    if data.is_symlink():
        data.unlink()
    elif data.is_dir():
        for link in data.iterdir():
            if link.is_symlink():
                link.unlink()
        # If it holds more than links, somebody put it there: that must not be lost.
        try:
            data.rmdir()
        except OSError as error:
            raise UserFault(
                f"The folder {str(data)!r} holds files that dlctl did not put there.",
                hint="Move them to a data store, and submit again.",
            ) from error


def write_index(job_dir: Path) -> ResultsIndex:
    """Hash every file of `results/` and write `results.json`."""
    results = job_dir / contract.RESULTS
    results.mkdir(exist_ok=True)  # not in a job directory that somebody has removed
    files, left_out = result_files(results)
    hashed = [
        ResultFile(str(path.relative_to(results)), path.stat().st_size, sha256(path))
        for path in files
    ]
    index = ResultsIndex(hashed, [str(path.relative_to(results)) for path in left_out])
    write_whole(job_dir / contract.RESULTS_INDEX, to_json(index))
    return index


def result_files(results: Path) -> tuple[list[Path], list[Path]]:
    """Return the files below a folder, in a fixed order, and what is left out.

    A link counts as the file that it leads to, if that is in the folder, too. What a killed process
    of ours left half written is neither.
    """
    inside = results.resolve()
    files: list[Path] = []
    left_out: list[Path] = []
    for folder, folders, names in os.walk(results):
        folders.sort()
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for path in (Path(folder, name) for name in sorted([*names, *links])):
            if not path.name.startswith(contract.WRITING):
                (files if _is_file(path, inside) else left_out).append(path)
    return files, left_out


def _is_file(path: Path, inside: Path) -> bool:
    # RuntimeError: before Python 3.13 a link to itself is one.
    with contextlib.suppress(OSError, RuntimeError):
        return path.is_file() and path.resolve().is_relative_to(inside)
    return False


def tell_index(index: ResultsIndex) -> list[str]:
    """Return one line on what is in the index, and one on what is not."""
    lines = [f"{len(index.files)} files, {sum(file.size_bytes for file in index.files)} bytes"]
    if left := index.left_out:
        more = ", …" if len(left) > _TOLD else ""
        lines.append(f"left out: {len(left)}: {', '.join(map(repr, left[:_TOLD]))}{more}")
    return lines


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def store(plan: Plan, job_dir: Path, index: ResultsIndex) -> list[str]:
    """Copy the results to every store that wants them, each below the training's own id.

    Returns:
        One line for each store that has them now.

    Raises:
        UserFault: a copy failed, or is not what was written.
    """
    done = []
    for target in plan.data_stores:
        if target.path is None or target.training_results is None:
            continue
        folder = Path(target.path, target.training_results, plan.training_id)
        for item in index.files:
            _copy(job_dir / contract.RESULTS / item.path, folder / item.path, item, target.id)
        done.append(f"{target.id}: {len(index.files)} files in {folder}")
    return done


def _copy(source: Path, target: Path, item: ResultFile, store_id: str) -> None:
    """Copy one file: whole or not at all, and what arrived is compared."""
    temporary = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}."[:200], dir=target.parent)
        with os.fdopen(descriptor, "wb") as output, source.open("rb") as content:
            shutil.copyfileobj(content, output, _CHUNK_BYTES)
            output.flush()
            os.fchmod(output.fileno(), source.stat().st_mode & 0o777)
            os.fsync(output.fileno())
        if sha256(Path(temporary)) != item.sha256:
            raise OSError(0, "the copy differs from the original")
        Path(temporary).replace(target)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UserFault(
            f"Training ended well, but {item.path!r} can't be stored in data store {store_id!r} "
            f"({str(target)!r}): {error.strerror or error}.",
            hint="They are safe in the job directory: dlctl fetch results",
        ) from error
