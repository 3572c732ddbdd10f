"""The folder on this machine that results are fetched into, and what earlier fetches wrote there.

What is in the way and did not come unchanged from an earlier fetch is never lost: it gets another
name before the newer file comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

from dlctl import contract
from dlctl.errors import ResultsError
from dlctl.files.target import PARTIAL, Target, alone, temporary_folder
from dlctl.record import Record

_MARK = ".dlctl-fetch"
"""The file that names a folder's training, and the files of earlier fetches; a number follows if a
result has that name."""
_OWN = "dlctl"
"""The folder of dlctl's own files whose names results have, too."""
_CHUNK_BYTES = 1024 * 1024
_REMEMBER_S = 2.0
"""The pause between two writes of the mark while files come."""

_Known = dict[str, tuple[list[int], str]]
"""The size and time of each file, and what identified the content at the site that it came from."""


class FetchedFolder(Target):
    """A folder of fetched files; one process at a time writes to it, in a `with` statement.

    Args:
        results: The paths of the results, whose names win over dlctl's own.
        on_wait: Called if another fetch into this folder has to end first.

    Raises:
        ResultsError: the folder holds something else, or can't be created.
    """

    def __init__(
        self, folder: Path, record: Record, results: Collection[str] = (),
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(folder)
        self._training_id, self._on_wait = record.training_id, on_wait
        self._tops = {path.partition("/")[0] for path in results}
        self.kept: list[str] = []
        """The new names of files and folders that were in the way of newer ones."""
        self._lock = contextlib.ExitStack()
        self._remembered_at = time.monotonic()
        self._made = set[Path]()
        """Folders that are no links; only this process makes any as long as it has the lock."""
        self._files = self._open(with_mark=False)

    def __enter__(self) -> FetchedFolder:
        self._lock.enter_context(alone(self.path, self._on_wait))
        self._files = self._open(with_mark=True)  # another fetch may have written since
        return self

    def __exit__(self, *_: object) -> None:
        self.remember()
        self._lock.close()

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Return nothing new: the `with` statement has seen to it."""
        return contextlib.nullcontext()

    def _open(self, *, with_mark: bool) -> _Known:
        """Return the files of earlier fetches; create the folder if it does not exist."""
        try:
            found: _Known | None = {}
            if self.path.is_dir() and any(path.name != PARTIAL for path in self.path.iterdir()):
                # A mark whose name a result takes now is the older one.
                marks = sorted(self.path.glob(f"{_MARK}*"), key=lambda m: (m.name in self._tops, m))
                known = map(self._read, marks)
                found = next((files for files in known if files is not None), None)
            if found is None:
                raise ResultsError(
                    f"{self.path} is not empty, and not from an earlier fetch of "
                    f"{self._training_id}",
                    hint="name an empty or a new folder: --to FOLDER",
                )
            self.path.mkdir(parents=True, exist_ok=True)
            if with_mark:
                self._write_mark(found)
            return found
        except OSError as error:
            raise ResultsError(
                f"{self.path} can't be used as a folder: {error.strerror}",
                hint="name another one: --to FOLDER",
            ) from error

    def _read(self, mark: Path) -> _Known | None:
        """Return the files that a mark lists; None if it is not one of this training."""
        try:
            text = mark.read_text()
            if text.strip() == self._training_id:
                return {}  # of dlctl 0.1
            known = json.loads(text)
            if known["training_id"] != self._training_id:
                return None
            return {name: (stamp, known.get("origins", {}).get(name, ""))
                    for name, stamp in known["files"].items()}  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remember(self) -> None:
        """Write down which files came; if that fails, the next fetch takes them for the user's."""
        self._remembered_at = time.monotonic()
        with contextlib.suppress(OSError):
            self._write_mark(self._files)

    def _write_mark(self, known_files: _Known) -> None:
        number, mark = 0, self.path / _MARK
        while mark.name in self._tops or (os.path.lexists(mark) and self._read(mark) is None):
            number += 1
            mark = self.path / f"{_MARK}-{number}"
        there = known_files.items()
        here = {name: known for name, known in there if os.path.lexists(self.path / name)}
        files = {name: stamp for name, (stamp, _) in here.items()}
        origins = {name: origin for name, (_, origin) in here.items() if origin}
        known = {"training_id": self._training_id, "files": files, "origins": origins}
        contract.write_whole(mark, json.dumps(known) + "\n")

    def own(self, name: str) -> str:
        """Return the path of one of dlctl's own files, relative to the folder."""
        if name.partition("/")[0] not in self._tops:
            return name
        folder = _OWN
        while folder in self._tops:
            folder = f"_{folder}"
        return f"{folder}/{name}"

    def write(self, name: str, content: bytes, *, grows: bool = False) -> str:
        """Write one of dlctl's own files; return its path, relative to the folder."""
        path = self.path / self.own(name)
        if path.is_file() and not path.is_symlink() and path.read_bytes() == content:
            self.note(path)
            return self.own(name)
        with temporary_folder(self.path) as temporary:
            arrived = Path(temporary) / "own"
            arrived.write_bytes(content)
            self.place(arrived, path, grows=grows)
        return self.own(name)

    def place(self, arrived: Path, path: Path, identity: str = "", *, grows: bool = False) -> None:
        """Move a file that has arrived to its path, and note it.

        Args:
            arrived: Where it is.
            path: Where it belongs.
            identity: What identifies its content at the site.
            grows: The file only ever gets longer, so one that it begins with is an older one.
        """
        self._make_folder(path.parent)
        if os.path.lexists(path) and not _is_begin(path, arrived, whole=not grows):
            self._make_way(path)
        arrived.replace(path)
        self.note(path, identity)
        if time.monotonic() - self._remembered_at > _REMEMBER_S:  # kill -9 runs nothing
            self.remember()

    def note(self, path: Path, identity: str = "") -> None:
        """Note a file that is as it is at the site; `remember` writes it down."""
        self._files[self._name(path)] = _stamp(path), identity

    def is_current(self, path: Path, identity: str) -> bool:
        """Return whether a file came from this content, and nobody has touched it since."""
        return self._files.get(self._name(path)) == (_stamp(path), identity)

    def _name(self, path: Path) -> str:
        """Return what `relative_to` returns, in a tenth of its time."""
        return str(path)[len(str(self.path)) + 1 :]

    def _make_folder(self, folder: Path) -> None:
        """Create a folder, and those above it, below this one; never follow a link."""
        path = self.path
        if folder == path or folder in self._made:
            return
        for part in folder.relative_to(self.path).parts:
            path /= part
            if os.path.lexists(path) and (path.is_symlink() or not path.is_dir()):
                self._make_way(path)
                path.unlink(missing_ok=True)
            path.mkdir(exist_ok=True)
        self._made.add(folder)

    def _make_way(self, path: Path) -> None:
        """Make a path one that a file can be moved to: rename what is not as a fetch left it."""
        self._made.clear()  # it may be a folder
        if not self._is_unchanged(path):
            number, other = 1, path.with_name(f"{path.name}.local")
            while os.path.lexists(other):
                number += 1
                other = path.with_name(f"{path.name}.local-{number}")
            path.rename(other)
            self.kept.append(str(other.relative_to(self.path)))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)

    def _is_unchanged(self, path: Path) -> bool:
        """Return whether a file, or all in a folder, is as an earlier fetch left it."""
        if path.is_dir() and not path.is_symlink():
            return all(self._is_unchanged(inner) for inner in path.iterdir())
        known = self._files.get(str(path.relative_to(self.path)))
        if known and known[0] == _stamp(path):
            return True
        is_mark = path.parent == self.path and path.name.startswith(_MARK)
        return is_mark and self._read(path) is not None


def _stamp(path: Path) -> list[int]:
    status = path.lstat()
    return [status.st_size, status.st_mtime_ns]


def _is_begin(path: Path, longer: Path, *, whole: bool) -> bool:
    """Return whether a file has the content, or unless `whole` the first bytes, of another."""
    if path.is_symlink() or longer.is_symlink():
        both = path.is_symlink() and longer.is_symlink()
        return both and path.readlink() == longer.readlink()
    if not path.is_file():
        return False
    missing_bytes = longer.stat().st_size - path.stat().st_size
    if missing_bytes < 0 or (whole and missing_bytes):
        return False
    try:
        with path.open("rb") as one, longer.open("rb") as other:
            while chunk := one.read(_CHUNK_BYTES):
                if chunk != other.read(len(chunk)):
                    return False
    except PermissionError:
        return False
    return True
