"""The folder on this machine that results are fetched into, and what earlier fetches wrote there.

A file that was edited here since is never lost: it gets another name before a newer one comes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path

from dlctl import contract
from dlctl.errors import ResultsError
from dlctl.record import Record

_MARK = ".dlctl-fetch"
"""The file that names a folder's training, and the files of the last fetch; a number follows if a
result has that name."""
_OWN = "dlctl"
"""The folder of dlctl's own files whose names results have, too."""


class FetchedFolder:
    """A folder of fetched files.

    Args:
        results: The paths of the results, whose names win over dlctl's own.

    Raises:
        ResultsError: the folder holds something else, or can't be created.
    """

    def __init__(self, folder: Path, record: Record, results: Collection[str] = ()) -> None:
        self.path = folder
        self._training_id = record.training_id
        self._tops = {path.partition("/")[0] for path in results}
        self.kept: list[str] = []
        """The new names of files that were edited here."""
        try:
            self._files = self._open()
        except OSError as error:
            raise ResultsError(
                f"{folder} can't be used as a folder: {error.strerror}",
                hint="name another one: --to FOLDER",
            ) from error

    def _open(self) -> dict[str, list[int]]:
        """Return the files of earlier fetches; create the folder if it does not exist."""
        if self.path.is_dir() and any(self.path.iterdir()):
            known = [self._read(mark) for mark in sorted(self.path.glob(f"{_MARK}*"))]
            found = next((files for files in known if files is not None), None)
            if found is None:
                raise ResultsError(
                    f"{self.path} is not empty, and not from an earlier fetch of "
                    f"{self._training_id}",
                    hint="name an empty or a new folder: --to FOLDER",
                )
            return found
        self.path.mkdir(parents=True, exist_ok=True)
        self._write({})
        return {}

    def _read(self, mark: Path) -> dict[str, list[int]] | None:
        """Return the files that a mark lists; None if it is not one of this training."""
        try:
            text = mark.read_text()
            if text.strip() == self._training_id:  # of an older version
                return {}
            known = json.loads(text)
            return dict(known["files"]) if known["training_id"] == self._training_id else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, files: dict[str, list[int]]) -> None:
        number, name = 0, _MARK
        while name in self._tops:
            number += 1
            name = f"{_MARK}-{number}"
        known = {"training_id": self._training_id, "files": files}
        contract.write_whole(self.path / name, json.dumps(known) + "\n")

    def own(self, name: str) -> str:
        """Return the path of one of dlctl's own files, relative to the folder."""
        if name.partition("/")[0] not in self._tops:
            return name
        folder = _OWN
        while folder in self._tops:
            folder = f"_{folder}"
        return f"{folder}/{name}"

    def write(self, name: str, content: bytes) -> str:
        """Write one of dlctl's own files; return its path, relative to the folder."""
        path = self.path / self.own(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            self.spare(path)
            contract.write_whole(path, content)
        return self.own(name)

    def spare(self, path: Path) -> None:
        """Give a file another name if it was edited here since the last fetch."""
        known = self._files.get(str(path.relative_to(self.path)))
        if known is None or not path.is_file() or path.is_symlink() or _stamp(path) == known:
            return
        number, other = 1, path.with_name(f"{path.name}.local")
        while other.exists():
            number += 1
            other = path.with_name(f"{path.name}.local-{number}")
        path.rename(other)
        self.kept.append(str(other.relative_to(self.path)))

    def remember(self, names: Iterable[str]) -> None:
        """Note the files of this fetch as they are now."""
        paths = ((name, self.path / name) for name in names)
        found = {name: _stamp(path) for name, path in paths if path.is_file()}
        self._write(self._files | found)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
