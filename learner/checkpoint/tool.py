"""Look at checkpoints where they lie: `python -m learner.checkpoint.tool verify|diff …`.

    verify <job dir> [STEP …]                        every byte against its checksums
    diff <job dir> <STEP|-> <job dir> <STEP|->       tensors that differ, and by how much

Answers one JSON value (`learner.answers`). `-` is the newest whole one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from dlctl import contract
from learner.answers import run
from learner.checkpoint import layout
from learner.checkpoint.layout import BLOCK_BYTES, DamagedCheckpoint
from learner.checkpoint.load import Header, Loaded, headers, read_header
from learner.checkpoint.share import rest_sum
from learner.checkpoint.stored import Stored
from learner.faults import UserFault


def main(arguments: list[str]) -> Any:
    """Return the answer.

    Raises:
        UserFault: there is no such checkpoint, or the arguments make no sense.
    """
    if len(arguments) >= 2 and arguments[0] == "verify":
        return verify(_root(arguments[1]), [int(step) for step in arguments[2:]])
    if len(arguments) == 5 and arguments[0] == "diff":
        return diff(
            _open(_root(arguments[1]), arguments[2]), _open(_root(arguments[3]), arguments[4])
        )
    raise UserFault("usage: verify <job dir> [STEP …] | diff <job dir> STEP <job dir> STEP")


def verify(root: Path, steps: list[int]) -> list[dict[str, Any]]:
    """Return what is wrong with each checkpoint (of all, if no step is named)."""
    present = layout.steps_present(root)
    for step in steps:
        if step not in present:
            raise UserFault(f"there is no checkpoint of step {step} in {root}")
    return [
        {"step": step, "problem": problem(root / layout.directory_name(step))}
        for step in steps or present
    ]


def problem(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if every byte is as it was written."""
    try:
        header = read_header(directory)
        for record in header.records:
            path = directory / layout.share_file(record.rank)
            if rest_sum(path, record.size_bytes, record.pieces) != record.rest_crc32:
                raise DamagedCheckpoint(f"the structure of {path.name} does not match its checksum")
        loaded = Loaded(header)
        try:
            for rank in range(header.marker.learners):
                loaded.own(rank)
            for stored in loaded.leaves:
                _read_through(stored)
        finally:
            loaded.close()
    except (DamagedCheckpoint, UserFault, OSError, KeyError, ValueError) as damage:
        return str(damage)
    return None


def _read_through(stored: Stored) -> None:
    memory = torch.empty(min(stored.size_bytes, BLOCK_BYTES), dtype=torch.uint8)
    for start in range(0, stored.size_bytes, BLOCK_BYTES):
        stored.read_bytes(memory[: min(BLOCK_BYTES, stored.size_bytes - start)], start)


def diff(first: Header, second: Header) -> dict[str, Any]:
    """Return how the tensors of two checkpoints differ."""
    one, two = Loaded(first), Loaded(second)
    try:
        mine, theirs = ({leaf.name: leaf for leaf in x.leaves} for x in (one, two))
        tensors = [
            {"name": name, **_difference(mine.get(name), theirs.get(name))}
            for name in dict.fromkeys([*mine, *theirs])
        ]
    except DamagedCheckpoint as damage:
        raise UserFault(str(damage), hint="dlctl checkpoints verify names what is whole") from None
    finally:
        one.close()
        two.close()
    return {"first": str(first.directory), "second": str(second.directory), "tensors": tensors}


def _difference(a: Stored | None, b: Stored | None) -> dict[str, Any]:
    if a is None or b is None:
        return {"difference": f"only in the {'second' if a is None else 'first'}", "largest": None}
    if (a.shape, a.dtype_name) != (b.shape, b.dtype_name):
        kinds = f"{a.dtype_name} {list(a.shape)}, {b.dtype_name} {list(b.shape)}"
        return {"difference": f"another kind: {kinds}", "largest": None}
    raw = [stored.empty() for stored in (a, b)]
    for stored, memory in zip((a, b), raw, strict=True):
        stored.read_bytes(memory, 0)
    if torch.equal(*raw):
        return {"difference": "none", "largest": 0.0}
    if not hasattr(torch, a.dtype_name):
        return {"difference": "other bits", "largest": None}
    x, y = (memory.view(a.dtype) for memory in raw)
    wide = torch.complex128 if x.is_complex() else torch.float64
    differ = (x.to(wide) - y.to(wide)).abs()
    finite = differ[~differ.isnan()]
    largest = float(finite.max()) if finite.numel() else None
    return {"difference": f"{int((differ != 0).sum())} of {x.numel()} elements", "largest": largest}


def _root(job_dir: str) -> Path:
    return Path(job_dir) / contract.CHECKPOINTS


def _open(root: Path, step: str) -> Header:
    if step == "-":
        found = next(headers(root, []), None)
        if found is None:
            raise UserFault(f"there is no whole checkpoint in {root}")
        return found
    directory = root / layout.directory_name(int(step))
    try:
        return read_header(directory)
    except DamagedCheckpoint as damage:
        raise UserFault(f"the checkpoint {directory} is damaged: {damage}") from damage


if __name__ == "__main__":
    sys.exit(run(main))
