"""What another command does to a training meanwhile: `dlctl delete` and `dlctl prune`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlctl.errors import (
    RecordError,
    RemoteCommandError,
    ResultsError,
    TransferError,
    TransportError,
)

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport


@contextlib.contextmanager
def unless_deleted(transport: Transport, record: Record) -> Iterator[None]:
    """Say that a training was deleted, instead of an error that only follows from that.

    Raises:
        RecordError: inside the `with` block an error occurred, and the job directory is gone.
    """
    try:
        yield
    except (RemoteCommandError, TransferError, ResultsError) as error:
        is_gone = False
        with contextlib.suppress(TransportError):
            asked = f"[ -d {shlex.quote(record.job_dir)} ] || echo gone"
            is_gone = not record.is_gone and transport.run(asked).text.strip() == "gone"
        if not is_gone:
            raise
        raise RecordError(
            f"{record.training_id} was deleted meanwhile: {transport.name} has no "
            f"{record.job_dir} any more",
            hint="`dlctl list` shows what there is",
        ) from error
