"""HDF5 files as map-style datasets: `from learner.sources import Hdf5Dataset` in a train.py.

Files are opened read-only and without HDF5's own locks, which fail on some shared file systems.
Each process opens the file at its first read, so a dataset may be made before a fork or sent to
another process.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.errors import UserFault

_GAP_BYTES = 1 << 16
"""Reading this much in vain is faster than another call of HDF5 (about 50 µs)."""
_CACHE_BYTES = 64 << 20


class Hdf5Dataset(torch.utils.data.Dataset[tuple[torch.Tensor, ...]]):
    """Samples whose parts are the rows of datasets in one HDF5 file.

    A sample is (input, …, target): tensors with the shape of a row. Contiguous datasets are
    memory-mapped; chunked (also compressed) ones are read in runs of nearby rows.

    Args:
        path: The file.
        inputs: The name of the dataset of inputs, or several, in the order of the model's
            arguments.
        targets: The name of the dataset of targets.

    Raises:
        UserFault: The file or a dataset is missing, or rows don't match.
    """

    def __init__(
        self, path: str | os.PathLike[str], inputs: str | Sequence[str], targets: str
    ) -> None:
        self._path = Path(path)
        self._names = [*([inputs] if isinstance(inputs, str) else inputs), targets]
        self._process = -1
        self._file: Any = None
        self._parts: list[Any] = []
        self._length = 0
        try:
            self._open()
            self._length = self._common_length()
        finally:
            self._forget()

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        place = range(self._length)[index]  # negative: counted from the end; IndexError
        return tuple(part[0] for part in self.batch(np.array([place])))

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, ...]]:
        """Return the samples; torch's DataLoader fetches batches with this method."""
        batch = self.batch(np.asarray(indices, dtype=np.int64))
        return list(zip(*(part.unbind() for part in batch), strict=True))

    def batch(self, indices: NDArray[np.int64]) -> tuple[torch.Tensor, ...]:
        """Return each part of the samples as one tensor, shape (len(indices), *row)."""
        if len(indices) and not (indices.min() >= 0 and indices.max() < self._length):
            raise IndexError(f"samples are 0 to {self._length - 1}, not {indices}")
        if self._process != os.getpid():
            self._open()
        try:
            return tuple(torch.from_numpy(_rows(part, indices)) for part in self._parts)
        except OSError as error:
            raise UserFault(f"{self._path} can't be read: {error}",
                            hint="check that the file is whole") from error  # fmt: skip

    def targets(self) -> Any:
        """Return the rows of the targets, in memory or in the file, like a numpy array."""
        if self._process != os.getpid():
            self._open()
        return self._parts[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": -1, "_file": None, "_parts": []}

    def close(self) -> None:
        """Close the file; it is opened again when a sample is read."""
        if self._file is not None and self._process == os.getpid():
            self._file.close()
        self._forget()

    def _forget(self) -> None:
        self._process, self._file, self._parts = -1, None, []

    def _open(self) -> None:
        import h5py

        if not self._path.is_file():
            raise UserFault(f"there is no file {self._path}",
                            hint="name a file below DATA_DIR")  # fmt: skip
        try:
            self._file = h5py.File(self._path, "r", locking=False, rdcc_nbytes=_CACHE_BYTES)
        except OSError as error:
            raise UserFault(f"{self._path} can't be read as HDF5: {error}",
                            hint="check that the file is whole, and that it is HDF5"
                            ) from error  # fmt: skip
        self._parts = [self._part(name) for name in self._names]
        self._process = os.getpid()

    def _part(self, name: str) -> Any:
        import h5py

        found = self._file.get(name)
        if not isinstance(found, h5py.Dataset):
            there: list[str] = []
            self._file.visititems(
                lambda path, item: there.append(path) if isinstance(item, h5py.Dataset) else None
            )
            close = difflib.get_close_matches(name, there, 1)
            has = ", ".join(sorted(there)) or "none"
            raise UserFault(
                f"{self._path} has no dataset {name!r}; it has {has}",
                hint=f"did you mean {close[0]!r}?" if close else "name one of these",
            )
        if found.ndim == 0 or not _fits_torch(found.dtype):
            raise UserFault(
                f"the dataset {name!r} in {self._path} has shape {found.shape} and type "
                f"{found.dtype}, which makes no tensors",
                hint="store numbers, one row a sample",
            )
        plain = _is_plain(found) and self._file.userblock_size == 0
        return _mapped(self._path, found) if plain else found

    def _common_length(self) -> int:
        lengths = {name: len(part) for name, part in zip(self._names, self._parts, strict=True)}
        if len(set(lengths.values())) > 1:
            rows = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise UserFault(f"the datasets in {self._path} differ in rows: {rows}",
                            hint="store one row of each for every sample")  # fmt: skip
        length = next(iter(lengths.values()))
        if length == 0:
            raise UserFault(f"the datasets in {self._path} have no rows",
                            hint="store at least one sample")  # fmt: skip
        return length


def _fits_torch(dtype: np.dtype[Any]) -> bool:
    try:
        torch.from_numpy(np.empty(0, dtype.newbyteorder("=")))
    except TypeError:
        return False
    return True


def _is_plain(stored: Any) -> bool:
    """Return whether the file has the rows as they lie in memory."""
    offset = stored.id.get_offset()
    external = stored.external is not None
    return stored.chunks is None and offset is not None and not external and stored.size > 0


def _mapped(path: Path, stored: Any) -> NDArray[Any]:
    """Map a dataset; refuse a file that is too short: a read past its end kills the process."""
    offset = stored.id.get_offset()
    end = offset + stored.size * stored.dtype.itemsize
    if path.stat().st_size < end:
        raise UserFault(f"{path} is cut off: {stored.name} ends at byte {end}",
                        hint="bring the whole file")  # fmt: skip
    return np.asarray(np.memmap(path, stored.dtype, "r", offset, stored.shape))


def _rows(stored: Any, indices: NDArray[np.int64]) -> NDArray[Any]:
    """Return new rows in the order asked for, in the machine's byte order."""
    native = stored.dtype.newbyteorder("=")
    if isinstance(stored, np.ndarray):
        return np.asarray(stored[indices], dtype=native)
    rows = np.empty((len(indices), *stored.shape[1:]), native)
    order = np.argsort(indices, kind="stable")
    row_bytes = max(1, rows.itemsize * int(np.prod(stored.shape[1:])))
    for part in _runs(indices[order], 1 + _GAP_BYTES // row_bytes):
        places = order[part]
        first, last = int(indices[places[0]]), int(indices[places[-1]])
        rows[places] = stored[first : last + 1][indices[places] - first]
    return rows


def _runs(ordered: NDArray[np.int64], gap: int) -> list[slice]:
    """Return the runs of sorted indices in which neighbours are at most `gap` apart."""
    if not len(ordered):
        return []
    breaks = (np.flatnonzero(np.diff(ordered) > gap) + 1).tolist()
    return [slice(*ends) for ends in zip([0, *breaks], [*breaks, len(ordered)], strict=True)]
