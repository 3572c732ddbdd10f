"""Compare two models' outputs, allowing for differences from another order of arithmetic."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""The largest difference allowed, relative to the largest output. Integers must be equal."""


@dataclass(frozen=True)
class Difference:
    """The distance of an output from the expected one."""

    largest: float
    """The absolute difference; infinity if shapes, dtypes or names differ."""
    why: str = ""
    """A description if the difference is too large, else empty."""


def leaves(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Return every tensor and number of an output by its path, without None and text."""
    if isinstance(value, torch.Tensor):
        return {path: value.detach().cpu()}
    if isinstance(value, (bool, int, float)):
        return {path: torch.as_tensor(value)}
    if isinstance(value, Mapping):
        parts: list[tuple[Any, Any]] = list(value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = list(vars(value).items())
    elif isinstance(value, (list, tuple)):
        parts = list(enumerate(value))
    else:
        return {}
    found: dict[str, torch.Tensor] = {}
    for key, part in parts:
        found |= leaves(part, f"{path}.{key}" if path else str(key))
    return found


def compare(expected: Any, got: Any) -> Difference:
    """Return the largest difference of two outputs, with a description if it is too large."""
    ours, theirs = leaves(expected), leaves(got)
    if len(ours) != len(theirs):
        why = f"{len(theirs)} outputs come out, and {len(ours)} are right"
        return Difference(float("inf"), why)
    if ours.keys() != theirs.keys():  # a runtime that knows no names: by their order
        theirs = dict(zip(ours, theirs.values(), strict=True))
    found = [_differ(path, ours[path], theirs[path]) for path in ours]
    bad = [difference for difference in found if difference.why]
    largest = max((difference.largest for difference in found), default=0.0)
    return max(bad, key=lambda d: d.largest) if bad else Difference(largest)


def _differ(path: str, right: torch.Tensor, actual: torch.Tensor) -> Difference:
    name = f"output {path}" if path else "the output"
    if right.shape != actual.shape or right.dtype != actual.dtype:
        why = f"{name} is {_kind(actual)} and should be {_kind(right)}"
        return Difference(float("inf"), why)
    if right.numel() == 0:
        return Difference(0.0)
    if not right.is_floating_point() and not right.is_complex():
        count = int((right != actual).sum())
        far = float((right.double() - actual.double()).abs().max())
        return Difference(far, f"{count} values of {name} differ" if count else "")
    return _far(name, right, actual)


def _far(name: str, right: torch.Tensor, actual: torch.Tensor) -> Difference:
    tolerance = TOLERANCES.get(right.dtype, 1e-4)
    wide = torch.complex128 if right.is_complex() else torch.float64
    a, b = right.to(wide), actual.to(wide)
    finite = a.isfinite()
    if not torch.equal(finite, b.isfinite()) or not torch.equal(a.isnan(), b.isnan()):
        return Difference(float("inf"), f"{name} is not finite where it should be, or the reverse")
    a, b = a[finite], b[finite]
    if not a.numel():
        return Difference(0.0)
    largest = float((a - b).abs().max())
    allowed = tolerance * float(a.abs().max()) + torch.finfo(right.dtype).tiny
    why = f"{name} differs by {largest:.3g}, where {allowed:.3g} is allowed"
    return Difference(largest, why if largest > allowed else "")


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
