"""Find and use the newest checkpoint that every learner finds complete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from learner.checkpoint.load import Header, Loaded, headers, skipped
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint
from learner.errors import UserFault

T = TypeVar("T")


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
    seek = _Seek(root, learners, warn)
    while True:
        header = seek.next_header()
        if header is None:
            return None
        used, problem = _try(use, header)
        problems = learners.collect(problem)
        if not any(problems):
            step = header.marker.step
            return Found(step, used, [n for n in seek.present if n > step])  # type: ignore[arg-type]
        if learners.rank == 0:
            first = next(problem for problem in problems if problem)
            warn(skipped(header.directory, first))


class _Seek:
    """The search for checkpoints: rank 0 looks, and shares its result with the others."""

    def __init__(self, root: Path, learners: Learners, warn: Callable[[str], None]) -> None:
        self._root = root
        self._learners = learners
        self._warn = warn
        self._problems: list[str] = []
        self.present: list[int] = []
        """The steps of all checkpoints, complete or not; only on rank 0."""
        self._found: Iterator[Header] | None = None

    def next_header(self) -> Header | None:
        """Return rank 0's next header, or raise rank 0's error on every learner."""
        answer: tuple[Header | None, UserFault | None] = (None, None)
        if self._learners.rank == 0:
            try:
                answer = (self._look(), None)
            except UserFault as refused:
                answer = (None, refused)
        header, fault = self._learners.share(answer)
        if fault is not None:
            raise fault
        return header  # type: ignore[no-any-return]

    def _look(self) -> Header | None:
        try:
            if self._found is None:
                self.present = layout.steps_present(self._root)
                self._found = headers(self._root, self._problems)
            header = next(self._found, None)
        except OSError as error:
            raise _unreadable(self._root, error) from error
        for problem in self._problems:
            self._warn(problem)
        self._problems.clear()
        if header is None and self.present:
            raise UserFault(
                f"none of the {len(self.present)} checkpoints in {self._root} is whole",
                hint="`dlctl checkpoints verify` shows what is wrong; remove them to start again",
            )
        return header


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
