"""Convert any training state to JSON and a list of tensors and back, exactly and without pickle.

A state consists of nested dicts, lists and tuples of tensors, arrays, numbers, text, bytes and
None. Floats keep every bit (JSON writes the shortest text that reads back the same). Keys may be
numbers.
"""

from __future__ import annotations

import base64
import collections
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from learner.errors import UserFault

_AS_NUMPY = {
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8,
}  # fmt: skip
"""Dtypes stored natively; all others (bfloat16, float8, bool, complex) are stored as bytes."""

_DICTS: dict[str, type] = {
    kind.__name__: kind for kind in (dict, collections.OrderedDict, collections.Counter)
}
_SEQUENCES: dict[str, type] = {kind.__name__: kind for kind in (list, tuple, set)}


@dataclass(frozen=True)
class Pieces:
    """A tensor of which this learner holds only some ranges; together the learners hold all."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    parts: list[tuple[int, torch.Tensor]]
    """For each range the index of its first element in the flat tensor, and its elements: shape
    (n,), contiguous. Empty if other learners hold everything."""


@dataclass(frozen=True)
class Leaf:
    """One tensor of a state."""

    name: str
    """Its path in the state, for example ['model']['0.weight']."""
    dtype: str
    """torch's name for the dtype, or NumPy's for an array."""
    shape: tuple[int, ...]
    parts: list[tuple[int, torch.Tensor]]
    """For each range the first element and the elements, of shape (n,) and with a dtype that HDF5
    knows: an element of another dtype is stored as several bytes."""
    item_bytes: int
    is_full: bool = True
    """Whether every learner holds the whole tensor."""


@dataclass
class Packed:
    """A state, converted to JSON values and tensors."""

    tree: Any = None
    """JSON values, with {"is": "tensor", "leaf": n} in place of a tensor."""
    leaves: list[Leaf] = field(default_factory=list)

    def to_bytes(self, **more: Any) -> bytes:
        """Return the content of a JSON file with everything except the tensors' elements."""
        leaves = [
            {"name": x.name, "dtype": x.dtype, "shape": list(x.shape), "item_bytes": x.item_bytes}
            for x in self.leaves
        ]
        return (json.dumps({**more, "leaves": leaves, "tree": self.tree}) + "\n").encode()


def pack(value: Any) -> Packed:
    """Convert a state to JSON values and tensors. Contiguous tensors are not copied.

    Raises:
        UserFault: the state has an object that a checkpoint can't hold.
    """
    packed = Packed()
    packed.tree = _pack(value, packed.leaves, "")
    return packed


def unpack(tree: Any, leaves: Sequence[Any], to_array: Callable[[Any], Any]) -> Any:
    """Rebuild a state.

    Args:
        tree: `Packed.tree`.
        leaves: the values to put in place of the tensors.
        to_array: converts such a value to a NumPy array.
    """

    def rebuilt(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        kind = node["is"]
        if kind in _DICTS:
            return _DICTS[kind]({rebuilt(k): rebuilt(v) for k, v in node["items"]})
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](rebuilt(item) for item in node["items"])
        if kind == "tensor":
            return leaves[node["leaf"]]
        if kind == "array":
            return to_array(leaves[node["leaf"]])
        if kind == "scalar":
            return rebuilt(node["of"])[()]
        if kind == "bytes":
            return base64.b64decode(node["base64"])
        raise ValueError(f"a checkpoint holds an unknown kind of value {kind!r}")

    return rebuilt(tree)


def _pack(value: Any, leaves: list[Leaf], where: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (torch.Tensor, Pieces)):
        return _pack_tensor(value, leaves, where)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _pack_array(value, leaves, where)
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return {"is": "scalar", "of": _pack_array(np.asarray(value), leaves, where)}
    if isinstance(value, bytes):
        return {"is": "bytes", "base64": base64.b64encode(value).decode()}
    if type(value).__name__ in _DICTS and isinstance(value, dict):
        items = [
            [_pack(k, leaves, where), _pack(v, leaves, f"{where}[{k!r}]")] for k, v in value.items()
        ]
        return {"is": type(value).__name__, "items": items}
    if isinstance(value, collections.defaultdict):
        return _pack(dict(value), leaves, where)
    if type(value) in (list, tuple, set):
        items = [_pack(v, leaves, f"{where}[{i}]") for i, v in enumerate(value)]
        return {"is": type(value).__name__, "items": items}
    raise UserFault(
        f"a checkpoint can't hold state{where}: it is an object of type {type(value).__name__}",
        hint="model, optimizer and schedule may keep tensors, numbers, text, lists and dicts",
    )


def _pack_tensor(value: torch.Tensor | Pieces, leaves: list[Leaf], where: str) -> dict[str, Any]:
    if isinstance(value, Pieces):
        parts = [(start, _storable(part)) for start, part in value.parts]
    else:
        if value.layout != torch.strided or value.is_quantized:
            raise UserFault(f"a checkpoint can't hold state{where}: a sparse or quantized tensor")
        parts = [(0, _storable(value))]
    dtype = str(value.dtype).removeprefix("torch.")
    is_full, item_bytes = isinstance(value, torch.Tensor), value.dtype.itemsize
    leaves.append(Leaf(where, dtype, tuple(value.shape), parts, item_bytes, is_full))
    return {"is": "tensor", "leaf": len(leaves) - 1}


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, on any device, with shape (n,) and a dtype that HDF5 knows."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    return flat if flat.dtype in _AS_NUMPY else flat.view(torch.uint8)


def _pack_array(array: np.ndarray[Any, Any], leaves: list[Leaf], where: str) -> dict[str, Any]:
    flat = np.array(array).reshape(-1)  # a copy: torch accepts no read-only array
    raw = torch.from_numpy(flat.view(np.uint8))
    item_bytes = array.dtype.itemsize
    leaves.append(Leaf(where, array.dtype.str, tuple(array.shape), [(0, raw)], item_bytes))
    return {"is": "array", "leaf": len(leaves) - 1}
