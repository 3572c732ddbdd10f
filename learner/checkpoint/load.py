"""Find the newest checkpoint that every learner finds complete, and open it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from learner.checkpoint.share_reader import ShareFiles, Stored, attach, attach_own, read_all
from learner.checkpoint.state_tree import unpack
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint, Marker, ShareRecord
from learner.errors import UserFault

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """The small files of a checkpoint, which rank 0 reads for all learners."""

    directory: Path
    marker: Marker
    state: dict[str, Any]
    """Content of state.json."""
    records: list[ShareRecord]


def read_header(directory: Path) -> Header:
    """Read the small files of a checkpoint and compare them with their checksums.

    Raises:
        DamagedCheckpoint: the checkpoint is not complete.
        OtherVersion: another version of dlctl wrote the checkpoint.
        OSError: the file system fails; the checkpoint may be whole.
    """
    marker = layout.read_marker(directory)
    with understood():
        state = json.loads(layout.read_checked(directory, marker, layout.TREE_FILE))
        records = [
            layout.parse_record(layout.read_checked(directory, marker, layout.record_file(rank)))
            for rank in range(marker.learners)
        ]
    return Header(directory, marker, state, records)


@contextmanager
def understood() -> Iterator[None]:
    """Raise DamagedCheckpoint if a JSON record does not have the expected form."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpoint(f"a record can't be understood ({error!r})") from error


def headers(root: Path, warn: Callable[[str], object]) -> Iterator[Header]:
    """Yield the complete checkpoints, newest first; `warn` gets a sentence about each other one."""
    for step in layout.steps_present(root):
        directory = root / layout.directory_name(step)
        try:
            yield read_header(directory)
        except DamagedCheckpoint as damage:
            warn(skipped(directory, str(damage)))


def skipped(directory: Path, problem: str) -> str:
    """Return the warning about a damaged checkpoint."""
    return f"the checkpoint {directory.name} is skipped: {problem}"


class Loaded:
    """An open checkpoint, as one learner sees it.

    Raises:
        DamagedCheckpoint: the records do not match each other.
    """

    def __init__(self, header: Header) -> None:
        self.directory = header.directory
        self.marker = header.marker
        self.files = ShareFiles(header.directory)
        self._header = header
        with understood():
            self.leaves = attach(self.files, header.state["leaves"], header.records)

    def tree(self) -> Any:
        """Return the state with a `Stored` in place of each tensor."""
        return unpack(self._header.state["tree"], self.leaves, Stored.array)

    def own(self, rank: int) -> Any:
        """Read and return the own state of one of the learners that wrote the checkpoint.

        Raises:
            DamagedCheckpoint: the state can't be read.
        """
        with understood():
            stored, raw = attach_own(self.files, self._header.records[rank])
            return filled(unpack(raw["tree"], stored, Stored.array))

    def close(self) -> None:
        """Close the checkpoint's files."""
        self.files.close()


def filled(state: Any) -> Any:
    """Return a state with every `Stored` replaced by its tensor, all read together.

    Raises:
        DamagedCheckpoint: a block does not match its checksum.
    """
    found: dict[int, tuple[Stored, torch.Tensor]] = {}

    def note(stored: Stored) -> None:
        found[id(stored)] = (stored, stored.empty())

    def tensor(stored: Stored) -> torch.Tensor:
        return found[id(stored)][1].view(stored.dtype).reshape(stored.shape)

    _with_each(state, note)
    read_all((stored, memory, 0) for stored, memory in found.values())
    return _with_each(state, tensor)


def _with_each(state: Any, change: Callable[[Stored], Any]) -> Any:
    """Return a state with another value in place of each `Stored`."""
    if isinstance(state, Stored):
        return change(state)
    if isinstance(state, dict):
        changed = {key: _with_each(value, change) for key, value in state.items()}
        return changed if type(state) is dict else type(state)(changed)
    if type(state) in (list, tuple):
        return type(state)(_with_each(value, change) for value in state)
    return state


def check_settings(found: dict[str, int], now: dict[str, int], directory: Path) -> None:
    """Refuse a checkpoint with another order of the data; the number of learners may differ.

    Raises:
        UserFault: the checkpoint would not continue the same training.
    """
    for name, value in now.items():
        if name in _WORDS and found.get(name) != value:
            raise UserFault(
                f"the checkpoint {directory.name} was written with {_WORDS[name]} "
                f"{found.get(name)}, but this attempt has {value}",
                hint="resume with the old value, or submit a new training that starts from the "
                "old one's model (framework.arguments.weights)",
            )


_WORDS = {
    "seed": "training.seed",
    "batch_size": "training.batch_size",
    "samples": "a number of training samples of",
}


class Learners(Protocol):
    """The part of an `Exchange` that checkpoints need."""

    rank: int
    size: int

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value, in rank order."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """The newest complete checkpoint."""

    step: int
    used: T
    """The result of `use`."""
    damaged: list[int]
    """The later steps whose checkpoints were skipped."""


def use_newest(
    root: Path, learners: Learners, warn: Callable[[str], None], use: Callable[[Loaded], T]
) -> Found[T] | None:
    """Open the newest complete checkpoint; return the result of `use`, or None if there is none.

    Every learner must call this. If any learner finds the checkpoint damaged, `use` is called again
    with the previous one, and rank 0 calls `warn` about the one it skips.

    Raises:
        UserFault: there are checkpoints, but all are damaged, or the file system fails. A failing
            file system is no damage: starting from scratch would waste finished training.
    """
    present: list[int] = []  # filled on rank 0 only, which looks and shares its result
    found = _headers(root, warn, present)
    while (header := _next(found, learners)) is not None:
        used, problem = _try(use, header)
        problems = learners.collect(problem)
        if not any(problems):
            step = header.marker.step
            return Found(step, used, [n for n in present if n > step])  # type: ignore[arg-type]
        if learners.rank == 0:
            first = next(problem for problem in problems if problem)
            warn(skipped(header.directory, first))
    return None


def _headers(root: Path, warn: Callable[[str], None], present: list[int]) -> Iterator[Header]:
    """Yield the complete checkpoints, newest first; `present` gets the steps of all there are."""
    try:
        present += layout.steps_present(root)
        yield from headers(root, warn)
    except OSError as error:
        raise _unreadable(root, error) from error
    if present:
        raise UserFault(
            f"none of the {len(present)} checkpoints in {root} is whole",
            hint="`dlctl checkpoints verify` shows what is wrong; remove them to start again",
        )


def _next(found: Iterator[Header], learners: Learners) -> Header | None:
    """Return rank 0's next header, or raise rank 0's error on every learner."""
    answer: tuple[Header | None, UserFault | None] = (None, None)
    if learners.rank == 0:
        try:
            answer = (next(found, None), None)
        except UserFault as refused:
            answer = (None, refused)
    header, fault = learners.share(answer)
    if fault is not None:
        raise fault
    return header  # type: ignore[no-any-return]


def _try(use: Callable[[Loaded], T], header: Header) -> tuple[T | None, str | None]:
    try:
        loaded = Loaded(header)
    except (DamagedCheckpoint, KeyError, IndexError, ValueError, TypeError) as damage:
        return None, str(damage)
    try:
        return use(loaded), None
    except DamagedCheckpoint as damage:
        return None, str(damage)
    except OSError as error:
        raise _unreadable(header.directory, error) from error
    finally:
        loaded.close()


def _unreadable(path: Path, error: OSError) -> UserFault:
    return UserFault(
        f"{path} can't be read: {error}",
        hint="repair the file system and resume; if only this checkpoint stays unreadable, "
        "remove it to continue from the previous one",
    )
