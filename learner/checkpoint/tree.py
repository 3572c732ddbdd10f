"""Any training state as JSON text and a list of arrays, and back, exactly and without pickle.

A state is nested dicts, lists and tuples of tensors, arrays, numbers, text, bytes and None. Floats
keep every bit (JSON writes the shortest text that reads back the same). Keys may be numbers.
"""

from __future__ import annotations

import base64
import collections
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learner.faults import UserFault

Array = NDArray[Any]

_AS_NUMPY = {
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint8,
}  # fmt: skip
"""Dtypes stored as such; all others (bfloat16, float8, bool, complex) as their bytes."""

_DICTS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "Counter": collections.Counter,
}


@dataclass
class Packed:
    """A state, taken apart."""

    text: str
    arrays: list[Array] = field(default_factory=list)
    """Each of shape (n,), of a dtype that numpy and HDF5 know."""


def pack(value: Any) -> Packed:
    """Take a state apart. CPU tensors are not copied.

    Raises:
        UserFault: it holds an object that a checkpoint can't hold.
    """
    packed = Packed("")
    packed.text = json.dumps(_pack(value, packed.arrays, "state"))
    return packed


def unpack(packed: Packed) -> Any:
    """Put a state together again; tensors share memory with the arrays."""
    return _unpack(json.loads(packed.text), packed.arrays)


def _pack(value: Any, arrays: list[Array], where: str) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return _pack_tensor(value, arrays, where)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return _pack_array(value, arrays)
    if isinstance(value, (np.bool_, np.integer, np.floating)):
        return {"is": "scalar", "of": _pack_array(np.asarray(value), arrays)}
    if isinstance(value, bytes):
        return {"is": "bytes", "base64": base64.b64encode(value).decode()}
    if type(value).__name__ in _DICTS and isinstance(value, dict):
        items = [
            [_pack(k, arrays, where), _pack(v, arrays, f"{where}[{k!r}]")] for k, v in value.items()
        ]
        return {"is": type(value).__name__, "items": items}
    if isinstance(value, collections.defaultdict):
        return _pack(dict(value), arrays, where)
    if type(value) in (list, tuple, set):
        items = [_pack(v, arrays, f"{where}[{i}]") for i, v in enumerate(value)]
        return {"is": type(value).__name__, "items": items}
    raise UserFault(
        f"a checkpoint can't hold {where}: it is an object of the type {type(value).__name__}",
        hint="model, optimizer and schedule may keep tensors, numbers, text, lists and dicts",
    )


def _pack_tensor(tensor: torch.Tensor, arrays: list[Array], where: str) -> dict[str, Any]:
    if tensor.is_sparse or tensor.is_quantized:
        raise UserFault(f"a checkpoint can't hold {where}: it is a sparse or quantized tensor")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    if flat.dtype not in _AS_NUMPY:
        flat = flat.view(torch.uint8)
    arrays.append(flat.numpy())
    return {
        "is": "tensor",
        "array": len(arrays) - 1,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }


def _pack_array(array: Array, arrays: list[Array]) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    arrays.append(flat.view(np.uint8) if flat.dtype.kind == "b" else flat)
    return {
        "is": "array",
        "array": len(arrays) - 1,
        "dtype": array.dtype.str,
        "shape": list(array.shape),
    }


def _unpack(node: Any, arrays: list[Array]) -> Any:
    if not isinstance(node, dict):
        return node
    kind = node["is"]
    if kind in _DICTS:
        return _DICTS[kind]({_unpack(k, arrays): _unpack(v, arrays) for k, v in node["items"]})
    if kind in ("list", "tuple", "set"):
        sequence = {"list": list, "tuple": tuple, "set": set}[kind]
        return sequence(_unpack(item, arrays) for item in node["items"])
    if kind == "tensor":
        dtype = getattr(torch, node["dtype"])
        flat = torch.from_numpy(arrays[node["array"]])
        return flat.view(dtype).reshape(node["shape"])
    if kind == "array":
        return arrays[node["array"]].view(np.dtype(node["dtype"])).reshape(node["shape"])
    if kind == "scalar":
        return _unpack(node["of"], arrays)[()]
    if kind == "bytes":
        return base64.b64decode(node["base64"])
    raise ValueError(f"a checkpoint holds an unknown kind of value {kind!r}")
