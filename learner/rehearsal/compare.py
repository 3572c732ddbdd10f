"""Compare two checkpoints by their checksums: the standard library is enough."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan
from dlctl.contract.metrics import CHECKPOINT_S, MEMORY_BYTES, SAMPLES_PER_S, STEP_PARTS, STEP_S
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint

_TIMEOUT_S = 300.0
_TIMES = {SAMPLES_PER_S, STEP_S, CHECKPOINT_S, MEMORY_BYTES, *STEP_PARTS}
"""What the history of the epochs holds and differs from run to run."""


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
