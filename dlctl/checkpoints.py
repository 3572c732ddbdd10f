"""Look at the checkpoints of a training from here: list and show read small files only.

They need nothing at the site but a shell; `verify` and `diff` run `learner.checkpoint.tool` there.
The files are described in docs/checkpoints.md.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.errors import ResultsError
from dlctl.node_side import run_module
from dlctl.remote_files import read_files

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.store import Record
    from dlctl.transport import Transport

_TIMEOUT_S = 3600.0
_PREFIX = "step-"
_MARKER, _STATE = "complete.json", "state.json"


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, as its marker tells."""

    step: int
    complete: bool
    epoch: int | None = None
    """Epochs finished."""
    learners: int | None = None
    size_bytes: int | None = None
    written_at: float | None = None
    """Seconds since 1970."""
    kept_for_ever: bool = False


def list_checkpoints(transport: Transport, job_dir: str) -> list[Checkpoint]:
    """Return the checkpoints of a job directory, the newest first; none is no error.

    Raises:
        TransportError
    """
    names = _names(transport, job_dir)
    paths = {name: f"{job_dir}/{contract.CHECKPOINTS}/{name}/{_MARKER}" for name in names}
    contents = read_files(transport, list(paths.values()))
    found = [_checkpoint(name, contents[path]) for name, path in paths.items()]
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def show_checkpoint(transport: Transport, job_dir: str, step: int | None) -> dict[str, Any]:
    """Return settings, files and tensors of one checkpoint; of the newest complete one by default.

    Raises:
        ResultsError: there is no such checkpoint, or it can't be understood.
        TransportError
    """
    step = _chosen(transport, job_dir, step)
    base = f"{job_dir}/{contract.CHECKPOINTS}/{_PREFIX}{step:012d}"
    marker = _json(transport, f"{base}/{_MARKER}")
    ranks = range(int(marker.get("learners", 0)))
    state = _json(transport, f"{base}/{_STATE}")
    records = [_json(transport, f"{base}/share-{rank}.json") for rank in ranks]
    places: dict[str, list[str]] = {}
    for record in records:
        for piece in record["pieces"]:
            number, _, start = piece["name"].partition(":")
            places.setdefault(number, []).append(f"share-{record['rank']}.h5:{number}:{start}")
    tensors = [
        {**leaf, "places": places.get(str(number), [])}
        for number, leaf in enumerate(state["leaves"])
    ]
    return {**marker, "tensors": tensors}


def verify(session: Session, record: Record, steps: list[int], *, on_node: bool) -> Any:
    """Compare every byte of checkpoints (of all, if none is named) with its checksums.

    Raises:
        ResultsError: there is no such checkpoint.
        TransportError
    """
    return _tool(session, record, ["verify", record.job_dir, *map(str, steps)], on_node=on_node)


def diff(
    session: Session, record: Record, other: Record, steps: list[int], *, on_node: bool
) -> Any:
    """Compare the tensors of two checkpoints, of one training or of two at the same site.

    Args:
        session: To their site.
        record: The first training.
        other: The second, which may be the first.
        steps: Of the first and of the second; empty for the newest complete ones.
        on_node: Whether Python works on compute nodes only.

    Raises:
        ResultsError: there is no such checkpoint, or the trainings are at different sites.
        TransportError
    """
    if record.site != other.site:
        raise ResultsError(
            f"{record.training_id} is at {record.site} and {other.training_id} at {other.site}",
            hint="checkpoints can be compared at one site only",
        )
    wanted = [*map(str, steps), "-", "-"][:2]
    pairs = [record.job_dir, wanted[0], other.job_dir, wanted[1]]
    return _tool(session, record, ["diff", *pairs], on_node=on_node)


def _tool(session: Session, record: Record, arguments: list[str], *, on_node: bool) -> Any:
    from dlctl.lifecycle import read_plan

    plan = read_plan(session, record)
    module = "learner.checkpoint.tool"
    return run_module(session, plan, module, arguments, on_node=on_node, timeout_s=_TIMEOUT_S).value


def _names(transport: Transport, job_dir: str) -> list[str]:
    folder = shlex.quote(f"{job_dir}/{contract.CHECKPOINTS}")
    listed = transport.run(f"cd {folder} 2>/dev/null && ls -1 || :").text.split()
    return [name for name in listed if name.removeprefix(_PREFIX).isdigit()]


def _checkpoint(name: str, content: bytes | None) -> Checkpoint:
    step = int(name.removeprefix(_PREFIX))
    try:
        raw = json.loads(content or b"")
        size_bytes = sum(int(file["size_bytes"]) for file in raw["files"].values())
        return Checkpoint(
            step, True, raw.get("epoch"), raw.get("learners"), size_bytes, raw.get("written_at"),
            bool(raw.get("kept_for_ever")),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError):
        return Checkpoint(step, False)


def _chosen(transport: Transport, job_dir: str, step: int | None) -> int:
    found = list_checkpoints(transport, job_dir)
    chosen = [c.step for c in found if c.complete and step in (None, c.step)]
    if not chosen:
        what = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        raise ResultsError(f"there is no {what} in {job_dir}", hint="dlctl checkpoints list")
    return chosen[0]


def _json(transport: Transport, path: str) -> dict[str, Any]:
    content = read_files(transport, [path])[path]
    try:
        raw = json.loads(content or b"")
    except ValueError as error:
        raise ResultsError(f"{transport.name}: {path} can't be understood: {error}") from error
    return dict(raw)
