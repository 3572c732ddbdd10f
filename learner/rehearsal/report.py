"""Report what the attempts of a rehearsal have measured, and how their checkpoints compare.

Checksums show the latter, for which the standard library is enough.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan, Rehearsed, Status
from dlctl.contract.metrics import (
    CHECKPOINT_S,
    CHECKPOINT_STALL_S,
    MEMORY_BYTES,
    SAMPLES_PER_S,
    STEP_PARTS,
    STEP_S,
    MetricsLine,
    parse_line,
)
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint, read_marker
from learner.rehearsal.drill import KILLED

_REFERENCE, _HALTED, _KILLED, _LAST = 1, 2, 3, 4
"""The attempts, by number."""


def lines_of(job_dir: Path, attempt: int) -> list[MetricsLine]:
    """Return learner 0's measurements in an attempt."""
    try:
        text = (job_dir / contract.metrics_file(attempt, 0)).read_text()
    except OSError:
        return []
    return [line for line in map(parse_line, text.split("\n")) if line is not None]


def was_killed(job_dir: Path, attempt: int) -> bool:
    """Return whether the rehearsal has killed a learner of an attempt."""
    return any(line.event == KILLED for line in lines_of(job_dir, attempt))


def compared(job_dir: Path, plan: Plan) -> Rehearsed:
    """Return what the rehearsal found, once its last attempt has completed."""
    assert plan.rehearsal is not None
    first = newest(job_dir / contract.REHEARSAL_FOLDER / contract.CHECKPOINTS)
    second = newest(job_dir / contract.CHECKPOINTS)
    parts = ["the final checkpoint is missing"]
    if first is not None and second is not None:
        try:
            parts = differing(first, second)
        except (DamagedCheckpoint, OSError) as error:
            parts = [f"the final checkpoint can't be read: {error}"]
    found = Rehearsed(not parts, plan.rehearsal.steps, parts)
    if parts:
        found = replace(found, largest_difference=largest_difference(plan, job_dir))
    return replace(_measured(found, job_dir, plan), checkpoint_bytes=_size(second))


def _size(checkpoint: Path | None) -> int | None:
    with contextlib.suppress(DamagedCheckpoint, OSError):
        if checkpoint is not None:
            return sum(file.size_bytes for file in read_marker(checkpoint).files.values())
    return None


def _measured(found: Rehearsed, job_dir: Path, plan: Plan) -> Rehearsed:
    lines = lines_of(job_dir, _REFERENCE)
    ranks = range(plan.resources.learners)
    statuses = [_status(job_dir, _REFERENCE, "learner", rank) for rank in ranks]
    supervisor = _status(job_dir, _REFERENCE, "supervisor", 0)
    killed = [line for line in lines_of(job_dir, _KILLED) if line.event == KILLED]
    begun_at, again_at = first_step_at(lines), first_step_at(lines_of(job_dir, _LAST))
    step_s = undisturbed_step_s(lines)
    kill_at = killed[-1].time if killed else None
    return replace(
        found,
        halted_at=_halted_at(job_dir),
        killed_at=killed[-1].step if killed else None,
        total_steps=_total_steps(statuses[0]),
        step_s=step_s,
        samples_per_s=plan.training.batch_size / step_s if step_s else None,
        checkpoint_s=_last(lines, CHECKPOINT_S),
        memory_bytes=_memory(lines, statuses),
        start_s=begun_at - supervisor.started_at if begun_at and supervisor else None,
        restart_s=again_at - kill_at if again_at and kill_at else None,
    )


def _halted_at(job_dir: Path) -> int | None:
    path = job_dir / contract.verdict_file(_HALTED)
    verdict = contract.readable_record(contract.Verdict, path)
    return verdict.progress if verdict else None


def _status(job_dir: Path, attempt: int, role: str, rank: int) -> Status | None:
    return contract.readable_record(Status, job_dir / contract.status_file(attempt, role, rank))


def first_step_at(lines: Iterable[MetricsLine]) -> float | None:
    """Return when an attempt began its first step, in Unix seconds; a line covers one step."""
    for line in lines:
        if not line.event and line.time is not None and (step_s := line.values.get(STEP_S)):
            return line.time - step_s
    return None


def undisturbed_step_s(lines: Iterable[MetricsLine]) -> float | None:
    """Return the mean of a step without the wait for checkpoints, over the second half."""
    steps = [
        max(0.0, step_s - (line.values.get(CHECKPOINT_STALL_S) or 0.0))
        for line in lines
        if (step_s := line.values.get(STEP_S))
    ]
    half = steps[len(steps) // 2 :]
    return sum(half) / len(half) if half else None


def _last(lines: Iterable[MetricsLine], name: str) -> float | None:
    known = [value for line in lines if (value := line.values.get(name)) is not None]
    return known[-1] if known else None


def _memory(lines: Iterable[MetricsLine], statuses: Iterable[Status | None]) -> int | None:
    values = [line.values.get(MEMORY_BYTES) for line in lines]
    values += [status.metrics.get(MEMORY_BYTES) for status in statuses if status]
    return int(max((value for value in values if value), default=0)) or None


def _total_steps(status: Status | None) -> int | None:
    """Return the steps of the whole training, by what learner 0 says is done."""
    if status is None or not status.step or not status.done:
        return None
    return round(status.step / status.done)


_TIMEOUT_S = 300.0
_TIMES = {SAMPLES_PER_S, STEP_S, CHECKPOINT_S, MEMORY_BYTES, *STEP_PARTS}
"""The entries in the history of the epochs that differ from run to run."""


def newest(root: Path) -> Path | None:
    """Return the newest checkpoint of a folder, or None."""
    steps = layout.steps_present(root)
    return root / layout.directory_name(steps[0]) if steps else None


def differing(first: Path, second: Path) -> list[str]:
    """Return the parts of the state that differ between two checkpoints, by name.

    Raises:
        DamagedCheckpoint: one of them is not complete.
        OSError: the file system fails.
    """
    one, two = _parts(first), _parts(second)
    names = dict.fromkeys([*one, *two])
    return [name for name in names if one.get(name) != two.get(name)]


def _parts(directory: Path) -> dict[str, Any]:
    """Return what identifies each part of the state: checksums of tensors, values of the rest."""
    marker = layout.read_marker(directory)
    found: dict[str, Any] = {}
    try:
        state = json.loads(layout.read_checked(directory, marker, layout.TREE_FILE))
        names = {str(number): leaf["name"] for number, leaf in enumerate(state["leaves"])}
        for name in sorted(marker.files):
            if name.startswith("share-") and name.endswith(".json"):
                record = layout.parse_record(layout.read_checked(directory, marker, name))
                for piece in record.pieces:
                    key, _, first = piece.name.partition(":")
                    own = f"learner {record.rank}'s own state"
                    key = own if key == "rank" else str(names[key])
                    place = (record.rank, first, piece.dtype, piece.count)
                    found.setdefault(key, []).append((*place, tuple(piece.crc32)))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{directory} can't be understood ({error})") from error
    found["step"] = marker.step
    found["position, schedule and settings"] = _without_times(state)
    return found


def _without_times(value: Any) -> Any:
    """Return a state's tree without durations; a dict in it is a list of pairs."""
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_times(each) for each in value if not _is_time(each)]
    return value


def _is_time(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and str(pair[0]) in _TIMES


def largest_difference(plan: Plan, job_dir: Path) -> float | None:
    """Return the largest difference between two elements of the newest checkpoints; None: unknown.

    Another process reads the tensors: this one must start without torch.
    """
    reference = str(job_dir / contract.REHEARSAL_FOLDER)
    program = ["learner.checkpoint.tool", "diff", reference, "-", str(job_dir), "-"]
    argv = [*plan.environment.container, plan.environment.python, "-m", *program]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        done = subprocess.run(
            argv, cwd=plan.runtime_dir, capture_output=True, text=True, timeout=_TIMEOUT_S,
            check=False,
        )  # fmt: skip
        known = [each["largest"] for each in json.loads(done.stdout)["tensors"]]
        return max((float(each) for each in known if each is not None), default=None)
    return None
