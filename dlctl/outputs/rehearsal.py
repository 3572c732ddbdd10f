"""Read what a rehearsal found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import Rehearsed
from dlctl.errors import TrainingFailed
from dlctl.files.small_files import read_files

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport


def read_rehearsed(transport: Transport, record: Record) -> Rehearsed:
    """Return what a rehearsal found, once it has ended.

    Raises:
        TrainingFailed: it ended before all its stages.
        TransportError
    """
    path = f"{record.job_dir}/{contract.REHEARSAL}"
    content = read_files(transport, [path])[path]
    if content is None:
        raise TrainingFailed(
            f"the rehearsal {record.training_id} ended {record.state} in attempt "
            f"{record.attempt} of 4, before its last stage: {record.reason or 'see its log'}",
            hint=f"dlctl logs {record.training_id}",
        )
    return contract.from_json(Rehearsed, content)
