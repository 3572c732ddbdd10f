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
