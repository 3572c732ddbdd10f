"""Find, with all learners, the newest checkpoint that is whole for each of them, and use it."""

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
    """What checkpoints need of an `Exchange`."""

    rank: int
    size: int

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value, in rank order."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """The newest whole checkpoint."""

    step: int
    used: T
    """What was made of it."""
    damaged: list[int]
    """The later steps whose checkpoints were skipped."""


def use_newest(
    root: Path, learners: Learners, warn: Callable[[str], None], use: Callable[[Loaded], T]
) -> Found[T] | None:
    """Open the newest whole checkpoint and return what `use` makes of it; None if there is none.

    `use` is called again with the one before where any learner finds it damaged. Called by every
    learner; `warn` says, on rank 0, what is skipped.

    Raises:
        UserFault: there are some and none is whole, or the file system fails: that is no damage,
            and to begin anew for it would waste what was trained.
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
            said = next(problem for problem in problems if problem)
            warn(skipped(header.directory, said))


class _Seek:
    """Rank 0 looks, and tells the others."""

    def __init__(self, root: Path, learners: Learners, warn: Callable[[str], None]) -> None:
        self._root = root
        self._learners = learners
        self._warn = warn
        self._problems: list[str] = []
        self.present: list[int] = []
        """Steps of the checkpoints, whole or not, on rank 0."""
        self._found: Iterator[Header] | None = None

    def next_header(self) -> Header | None:
        """Return rank 0's next header, or raise on every learner what it met."""
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
                hint="`dlctl checkpoints verify` tells what is wrong; remove them to begin anew",
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
        hint="see to the file system and resume; where only this one stays unreadable, "
        "remove it to go on from the one before",
    )
