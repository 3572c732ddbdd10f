"""Compare two checkpoints by their checksums: the standard library is enough."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import Plan
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint

_TIMEOUT_S = 300.0
_TIMES = ("history",)
"""Parts of the position that hold durations, which differ from run to run."""


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
        for name in sorted(marker.files):
            if name.startswith("share-") and name.endswith(".json"):
                record = layout.parse_record(layout.read_checked(directory, marker, name))
                for piece in record.pieces:
                    key, _, first = piece.name.partition(":")
                    key = f"learner {record.rank}'s own state" if key == "rank" else key
                    place = (record.rank, first, piece.dtype, piece.count)
                    found.setdefault(key, []).append((*place, tuple(piece.crc32)))
        tree = json.loads(layout.read_checked(directory, marker, layout.TREE_FILE))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpoint(f"{directory} can't be understood ({error})") from error
    found["step"] = marker.step
    found["state.json"] = _without_times(tree)
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in _TIMES}
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    return value


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
