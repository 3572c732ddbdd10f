"""Which trainings are meant: those with these ids, or all that fit; and their tags."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import State
from dlctl.errors import Misused

if TYPE_CHECKING:
    from dlctl.record import Record, RecordStore


_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True)
class Filter:
    """What trainings must fit.

    Args:
        name: A pattern of the shell, for the name or the id; None: any.
        states: Words; empty: any.
        tags: Words that it must have, all of them.

    Raises:
        Misused: a word is no state.
    """

    name: str | None = None
    states: Sequence[str] | None = ()
    tags: Sequence[str] | None = ()

    def __post_init__(self) -> None:
        known = [str(state) for state in State]
        for word in self.states or ():
            if word.upper() not in known:
                raise Misused(f"{word!r} is no state; there are {', '.join(known)}")

    def __bool__(self) -> bool:
        return self.name is not None or bool(self.states or self.tags)

    def fits(self, record: Record) -> bool:
        """Return whether a training fits."""
        name = self.name
        named = name is None or any(
            fnmatch.fnmatchcase(text, name) for text in (record.name, record.training_id)
        )
        in_state = not self.states or str(record.state) in map(str.upper, self.states)
        return named and in_state and set(self.tags or ()) <= set(record.tags)


def chosen(store: RecordStore, ids: Sequence[str] | None, wanted: Filter) -> list[Record]:
    """Return the trainings with these ids; without ids those that fit, or the folder's latest.

    Raises:
        Misused: there are ids and a filter.
        RecordError: an id is nobody's, or several trainings'.
    """
    if ids and wanted:
        raise Misused("either ids, or --name, --state and --tag, say which trainings are meant")
    if not wanted:
        return store.find_all(ids or [])
    return [record for record in store.all() if wanted.fits(record)]


def checked_tags(tags: Sequence[str] | None) -> list[str]:
    """Return the tags, each once.

    Raises:
        Misused: one has letters that no tag has.
    """
    for tag in tags or ():
        if not _TAG.fullmatch(tag):
            raise Misused(f"{tag!r} is no tag: up to 40 letters, digits, `.`, `_`, `-`")
    return list(dict.fromkeys(tags or ()))


def tag(
    store: RecordStore, records: list[Record], add: Sequence[str] | None,
    remove: Sequence[str] | None,
) -> list[Record]:  # fmt: skip
    """Give tags to trainings, and take some away; return the trainings as they are then.

    Raises:
        Misused: a new one has letters that no tag has.
    """
    new, old = checked_tags(add), remove or ()
    if not records or not (new or old):
        return records
    store.tag(records, lambda tags: list(
        dict.fromkeys([*(each for each in tags if each not in old), *new])))  # fmt: skip
    return store.find_all(each.training_id for each in records)


def running(store: RecordStore, ids: Sequence[str] | None, wanted: Filter) -> list[Record]:
    """Return what `chosen` does; of those that fit, only the ones that have not ended."""
    found = chosen(store, ids, wanted)
    return [each for each in found if not each.state.final] if wanted else found
