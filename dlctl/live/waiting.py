"""Wait until trainings have ended."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from dlctl.errors import RecordError, TimeIsUp
from dlctl.lifecycle.end import interrupted
from dlctl.lifecycle.observe import INTERRUPTED
from dlctl.live.sites import Live
from dlctl.units import format_duration, several

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.service.client import Client


def wait_for(
    mine: Client, records: Sequence[Record], timeout_s: float | None = None
) -> Iterator[Record]:
    """Yield each training once it has ended, the first to end first.

    A site that does not answer is asked again.

    Args:
        timeout_s: How long to wait at most; None: however long it takes.

    Raises:
        RecordError: one was never sent, so that it would never end.
        TimeIsUp: some have not ended by then; they go on.
        TransportError: a site can't be reached, and waiting would not help.
    """
    for each in records:
        if interrupted(each) and each.reason.startswith(INTERRUPTED):
            raise RecordError(f"{each.training_id} has no job: {each.reason}", hint=each.hint)
    until = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    left = {record.training_id: record for record in records}
    silent: dict[str, str] = {}

    def chosen() -> list[Record]:
        return [each for each in mine.store.all() if each.training_id in left]

    with closing(Live(mine.store, mine.open_to_watch, chosen)) as live:
        for _ in live.looks():
            for record in live.records:
                if record.state.final and record.training_id in left:
                    del left[record.training_id]
                    yield record
            for site, error in live.errors.items():
                if silent.get(site) != error.message:
                    mine.tell.warn(f"{site}: {error.message}; trying again")
            silent = {site: error.message for site, error in live.errors.items()}
            if left and time.monotonic() >= until:
                assert timeout_s is not None
                raise TimeIsUp(
                    f"{several([*left])} did not end within {format_duration(int(timeout_s))}",
                    hint="dlctl status " + " ".join(left),
                )
