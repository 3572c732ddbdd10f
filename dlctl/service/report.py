"""Report where the hours of trainings went."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlctl.lifecycle.accounts import accounts
from dlctl.outputs.ledger import Ledger, Prices, ledger

if TYPE_CHECKING:
    from dlctl.errors import DlctlError
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Client


def report(mine: Client, records: Sequence[Record]) -> list[Ledger]:
    """Return the ledger of each training.

    Raises:
        DlctlError: a site does not answer.
    """

    def of_site(session: Session, some: list[Record], _: RecordStore) -> list[Ledger | DlctlError]:
        price = session.site.price
        prices = Prices(price.node_hour, price.gpu_hour, price.currency) if price else None
        books = accounts(session, some)
        return [ledger(name, attempts, prices, time.time()) for name, attempts in books.items()]

    done, failures = mine.at_sites(records, of_site)
    if failures:
        raise failures[0]
    found = {each.training_id: each for each in done}
    return [found[record.training_id] for record in records]
