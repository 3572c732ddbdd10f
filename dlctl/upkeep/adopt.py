"""Rebuild the local record from what a site's job directories tell."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import with_made
from dlctl.record import Record, RecordStore
from dlctl.upkeep.inventory import Damaged, take_inventory


@dataclass(frozen=True)
class Adopted:
    """What came of adopting a site's trainings."""

    site: str
    added: list[Record]
    known: list[str]
    """The trainings that the local record had already; it stays as it was."""
    damaged: list[Damaged]
    root: str


def adopt(session: Session, store: RecordStore) -> Adopted:
    """Add the trainings of a site that the local record lacks.

    Raises:
        RecordError: the record can't be read or written.
        TransportError
    """
    found = take_inventory(session)
    added = store.add_missing(found.records)
    looked = [with_made(session, record) for record in added]  # a killed node has left no verdict
    store.update(*(new for old, new in zip(added, looked, strict=True) if new != old))
    added = looked
    names = {record.training_id for record in added}
    known = [each.training_id for each in found.records if each.training_id not in names]
    return Adopted(session.site.name, added, known, found.damaged, found.root)
