"""Read what is new of a training's logs and of its metrics with one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlctl.contract import METRICS
from dlctl.files.small_files import read_appended
from dlctl.logs.reader import LogReader, Wanted
from dlctl.outputs.metrics import FILES
from dlctl.transport import Transport


@dataclass(frozen=True)
class Found:
    """What a look has found."""

    asked: Wanted
    """What the reader of the logs asked for."""
    logs: dict[str, bytes]
    metrics: dict[str, bytes] | None
    """Of each file of metrics what is new; None: there may be more than a look brings."""


def look(
    transport: Transport, reader: LogReader, offsets: Mapping[str, int] | None, *,
    once: bool = False,
) -> Found:  # fmt: skip
    """Read the news of the logs, which `reader.take` takes in, and of the metrics.

    Args:
        transport: To the site.
        reader: Of the logs.
        offsets: How far each file of metrics was read; None: no metrics are wanted.
        once: As of `LogReader.news`.

    Raises:
        TransferError, TransportError
    """
    asked = reader.wanted(once)
    known = {f"{METRICS}/{name}": offset for name, offset in (offsets or {}).items()}
    globs = [*asked.globs, f"{METRICS}/{FILES}"] if offsets is not None else asked.globs
    found = read_appended(
        transport, reader.job_dir, globs, asked.offsets | known, asked.limit_bytes
    )
    news = {name.removeprefix(f"{METRICS}/"): found.pop(name)
            for name in [*found] if name.startswith(f"{METRICS}/")}  # fmt: skip
    is_whole = offsets is not None and all(len(c) < asked.limit_bytes for c in news.values())
    return Found(asked, found, news if is_whole else None)
