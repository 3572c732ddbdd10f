"""Have a site export a training's model, then download the file and verify it.

`python -m learner.export` of the job's own runtime does the export, because the site can build the
user's model and has its weights.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl.contract import State
from dlctl.errors import RecordError, ResultsError
from dlctl.files.download import download
from dlctl.lifecycle.remote_module import run_module
from dlctl.outputs.fetched_folder import FetchedFolder

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record, RecordStore

_TIMEOUT_S = 3600.0
_WITH_QUEUE_S = 24 * 3600.0


@dataclass(frozen=True)
class ExportRequest:
    """The export that the user asks for."""

    format: str
    checkpoint: str | None = None
    """A step, or `newest`; None is the trained model."""
    fixed_batch: bool = False
    on_node: bool = False


def export_model(
    session: Session, record: Record, store: RecordStore, wanted: ExportRequest,
    on_line: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:  # fmt: skip
    """Export at the site; return the module's answer (`learner.export.write.Exported`).

    For a training that has not completed, this is the newest checkpoint, unless one is named.

    Raises:
        RecordError: it still runs.
        ResultsError: the model can't be exported this way; one sentence.
        TransportError
    """
    from dlctl.lifecycle import make_environment, read_plan, refresh

    record = refresh(session, [record], store)[0]
    if not record.state.final and wanted.checkpoint is None:
        raise RecordError(
            f"{record.training_id} is {record.state}: it has no trained model yet",
            hint="--checkpoint newest exports what its newest checkpoint holds",
        )
    if record.state is not State.COMPLETED and wanted.checkpoint is None:
        wanted = dataclasses.replace(wanted, checkpoint="newest")
    plan = read_plan(session, record)
    arguments = [record.job_dir, "--format", wanted.format]
    if wanted.checkpoint is not None:
        arguments += ["--checkpoint", wanted.checkpoint]
    if wanted.fixed_batch:
        arguments += ["--fixed-batch"]
    make_environment(session, plan, on_line)  # somebody may have removed it to free space
    found = run_module(
        session, plan, "learner.export", arguments, on_node=wanted.on_node, on_line=on_line,
        timeout_s=_WITH_QUEUE_S if wanted.on_node else _TIMEOUT_S,
    )  # fmt: skip
    if not isinstance(found, dict) or not {"path", "sha256"} <= found.keys():
        raise ResultsError(
            f"{session.transport.name}: the answer of the export can't be understood"
        )
    return found


def bring(
    session: Session, record: Record, exported: dict[str, Any], output: Path | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:  # fmt: skip
    """Download the exported file to `output`, or to the folder of `dlctl fetch results`.

    Raises:
        ResultsError: something else is there.
        TransferError
    """
    base, _, name = f"{record.job_dir}/{exported['path']}".rpartition("/")
    files = {name: str(exported["sha256"])}
    if output is None:
        folder = (Path("results") / record.training_id).absolute()
        with FetchedFolder(folder, record) as fetched:
            return download(session.transport, base, files, fetched, on_progress)[0]
    output = (output / name if output.is_dir() else output).absolute()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".dlctl-export.", dir=output.parent) as folder_name:
            [path] = download(session.transport, base, files, Path(folder_name), on_progress)
            return path.replace(output)
    except OSError as error:
        raise ResultsError(
            f"{output} can't be written: {error.strerror}", hint="name another file: --output FILE"
        ) from error
