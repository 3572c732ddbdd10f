"""Inspect checkpoints where they are stored: `python -m learner.checkpoint.tool verify|diff …`.

    verify <job dir> [STEP …]                        every byte against its checksums
    diff <job dir> <STEP|-> <job dir> <STEP|->       tensors that differ, and by how much

The answer is one JSON value (`dlctl.contract.programs.answers`). `-` is the newest complete
checkpoint.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from dlctl import contract
from dlctl.contract.programs.answers import run
from learner.checkpoint.load import Header, Loaded, headers, read_header, understood
from learner.checkpoint.share_reader import Stored
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import BLOCK_BYTES, DamagedCheckpoint
from learner.checkpoint_files.share_writer import rest_sum
from learner.errors import UserFault


def main(arguments: list[str]) -> Any:
    """Return the answer to a command line.

    Raises:
        UserFault: there is no such checkpoint, or the arguments are invalid.
    """
    if len(arguments) >= 2 and arguments[0] == "verify":
        return verify(_root(arguments[1]), [int(step) for step in arguments[2:]])
    if len(arguments) == 5 and arguments[0] == "diff":
        first, second = (_open(_root(arguments[n]), arguments[n + 1]) for n in (1, 3))
        return diff(first, second)
    raise UserFault("usage: verify <job dir> [STEP …] | diff <job dir> STEP <job dir> STEP")


def verify(root: Path, steps: list[int]) -> list[dict[str, Any]]:
    """Return what is wrong with each of these checkpoints (with all, if `steps` is empty).

    Checkpoints that a running training removes meanwhile are left out.
    """
    present = layout.steps_present(root)
    for step in steps:
        if step not in present:
            raise UserFault(f"there is no checkpoint of step {step} in {root}")
    found = []
    for step in steps or present:
        directory = root / layout.directory_name(step)
        what = problem(directory)
        if what is None or directory.exists():
            found.append({"step": step, "problem": what})
    return found


def problem(directory: Path) -> str | None:
    """Return what is wrong with a checkpoint; None if every byte is as it was written."""
    try:
        with understood():
            _read_through(read_header(directory))
    except (DamagedCheckpoint, UserFault, OSError) as damage:
        return str(damage)
    return None


def _read_through(header: Header) -> None:
    for record in header.records:
        path = header.directory / layout.share_file(record.rank)
        if rest_sum(path, record.size_bytes, record.pieces) != record.rest_crc32:
            raise DamagedCheckpoint(f"the structure of {path.name} does not match its checksum")
    with closing(Loaded(header)) as loaded:
        for rank in range(header.marker.learners):
            loaded.own(rank)
        memory = torch.empty(BLOCK_BYTES, dtype=torch.uint8)
        for stored in loaded.leaves:
            for start in range(0, stored.size_bytes, BLOCK_BYTES):
                stored.read_bytes(memory[: stored.size_bytes - start], start)


def diff(first: Header, second: Header) -> dict[str, Any]:
    """Return how the tensors of two checkpoints differ: how many elements, and by how much.

    Raises:
        UserFault: one of the checkpoints can't be read.
    """
    try:
        with understood(), closing(Loaded(first)) as one, closing(Loaded(second)) as two:
            mine, theirs = ({leaf.name: leaf for leaf in x.leaves} for x in (one, two))
            tensors = [
                {"name": name, **_difference(mine.get(name), theirs.get(name))}
                for name in dict.fromkeys([*mine, *theirs])
            ]
    except (DamagedCheckpoint, OSError) as damage:
        hint = "`dlctl checkpoints verify` shows which are complete"
        raise UserFault(str(damage), hint=hint) from None
    return {"first": str(first.directory), "second": str(second.directory), "tensors": tensors}


def _difference(a: Stored | None, b: Stored | None) -> dict[str, Any]:
    if a is None or b is None:
        return {"difference": f"only in the {'second' if a is None else 'first'}", "largest": None}
    if (a.shape, a.dtype_name) != (b.shape, b.dtype_name):
        kinds = f"{a.dtype_name} {list(a.shape)}, {b.dtype_name} {list(b.shape)}"
        return {"difference": f"another kind: {kinds}", "largest": None}
    changed, largest = 0, list[float]()
    for x, y in _blocks(a, b):
        if torch.equal(x, y):
            continue
        differs = (x != y).any(1)
        changed += int(differs.sum())
        if hasattr(torch, a.dtype_name):
            largest += _farthest(*(raw[differs].reshape(-1).view(a.dtype) for raw in (x, y)))
    if not changed:
        return {"difference": "none", "largest": 0.0}
    elements = a.size_bytes // a.item_bytes
    return {
        "difference": f"{changed} of {elements} elements",
        "largest": max(largest, default=None),
    }


def _blocks(a: Stored, b: Stored) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield corresponding blocks of both tensors: uint8, shape (elements, bytes per element)."""
    step = max(1, BLOCK_BYTES // a.item_bytes) * a.item_bytes
    for start in range(0, a.size_bytes, step):
        size_bytes = min(step, a.size_bytes - start)
        x, y = (torch.empty(size_bytes, dtype=torch.uint8) for _ in range(2))
        a.read_bytes(x, start)
        b.read_bytes(y, start)
        yield x.view(-1, a.item_bytes), y.view(-1, a.item_bytes)


def _farthest(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Return the largest difference in a list, which is empty if every difference is NaN."""
    wide = torch.complex128 if x.is_complex() else torch.float64
    differ = (x.to(wide) - y.to(wide)).abs()
    known = differ[~differ.isnan()]
    return [float(known.max())] if known.numel() else []


def _root(job_dir: str) -> Path:
    return Path(job_dir) / contract.CHECKPOINTS


def _open(root: Path, step: str) -> Header:
    try:
        if step != "-":
            return read_header(root / layout.directory_name(int(step)))
        found = next(headers(root, lambda _: None), None)
    except (DamagedCheckpoint, OSError) as damage:
        raise UserFault(f"the checkpoint {step} in {root} can't be read: {damage}") from damage
    if found is None:
        raise UserFault(f"there is no whole checkpoint in {root}")
    return found


if __name__ == "__main__":
    sys.exit(run(main))
