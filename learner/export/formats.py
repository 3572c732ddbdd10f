"""The export formats: how each is written, and how its own runtime loads and runs it.

A writer gets a model from `learner.export.servable`; a loader gets the path alone, except for
safetensors, which holds weights only and needs the model's code.
"""

from __future__ import annotations

import copy
import importlib
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.jit._trace import TracerWarning
from torch.utils._pytree import tree_leaves

from learner.errors import UserFault
from learner.export.inputs import Inputs, dynamic_shapes, input_names
from learner.export.outputs import leaves

Run = Callable[[Inputs], Any]
"""A loaded model: positional arguments → outputs."""


@dataclass(frozen=True)
class ExportTask:
    """The model to write, and where."""

    model: torch.nn.Module
    inputs: Inputs
    outputs: Any
    """The model's own, for the inputs."""
    dynamic_batch: bool
    path: Path


@dataclass(frozen=True)
class Format:
    """One format."""

    name: str
    suffix: str
    packages: tuple[str, ...]
    """The packages that the format needs beside torch."""
    runtime: str
    """The name of the runtime that loads the file."""
    write: Callable[[ExportTask], list[str]]
    """Writes the file; returns notes for the user."""
    load: Callable[[ExportTask], Run]

    def check_packages(self) -> None:
        """Raise a UserFault that names the packages that this Python lacks."""
        lacking = [name for name in self.packages if not _is_there(name)]
        if lacking:
            raise UserFault(
                f"the format {self.name} needs {' and '.join(lacking)}, which the Python "
                f"{sys.executable} lacks",
                hint=f"{sys.executable} -m pip install {' '.join(self.packages)}",
            )


def _is_there(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


@contextmanager
def quiet() -> Iterator[list[str]]:
    """Hide the exporters' messages about themselves; yield their warnings about the model."""
    sentences: list[str] = []
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns about operators of packages that are not installed
    try:
        with warnings.catch_warnings(record=True) as caught:
            for message, category in _THEIR_OWN:
                warnings.filterwarnings("ignore", message=message, category=category)
            warnings.filterwarnings("always", category=TracerWarning)
            yield sentences
    finally:
        log.setLevel(level)
    for warning in caught:
        if issubclass(warning.category, TracerWarning):
            sentences.append(_sentence(warning))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


_THEIR_OWN: list[tuple[str, type[Warning]]] = [
    (r"`torch\.jit\.\w+` is deprecated", DeprecationWarning),
    (r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning),
    (r"# The axis name: batch will not be used", UserWarning),
]


def _sentence(warning: warnings.WarningMessage) -> str:
    text = re.split(r"\. We can't|\. This|\n", str(warning.message))[0]
    return f"{Path(warning.filename).name}, line {warning.lineno}: {text}"


# TorchScript -------------------------------------------------------------------------------------


def _write_torchscript(request: ExportTask) -> list[str]:
    """Trace the model; if tracing warns about control flow, compile it as a script if possible."""
    with quiet() as sentences:
        trace: Any = torch.jit.trace  # untyped
        traced = trace(request.model, request.inputs, strict=False, check_trace=False)
    notes: list[str] = []
    if sentences:
        try:
            with quiet():
                traced = torch.jit.script(request.model)
        except Exception:  # whatever keeps it from being a script: the trace is checked
            what = "traced, so one way through the model was taken for all"
            notes = [f"{what}: {sentence}" for sentence in sentences]
    traced.save(str(request.path))
    return notes


def _load_torchscript(request: ExportTask) -> Run:
    load: Any = torch.jit.load  # untyped
    with quiet():
        loaded = load(str(request.path), map_location="cpu")
    return lambda inputs: loaded(*inputs)


# torch.export ------------------------------------------------------------------------------------


def _write_torch_export(request: ExportTask) -> list[str]:
    _check_torch("torch-export")
    shapes = dynamic_shapes(request.model, request.inputs) if request.dynamic_batch else None
    with quiet():
        program = torch.export.export(request.model, request.inputs, dynamic_shapes=shapes)
        torch.export.save(program, str(request.path))
    return []


def _load_torch_export(request: ExportTask) -> Run:
    with quiet():
        loaded = torch.export.load(str(request.path)).module()
    return lambda inputs: loaded(*inputs)


def _check_torch(name: str) -> None:
    """Raise a UserFault if torch is older than its exporter."""
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < (2, 6):
        raise UserFault(
            f"the format {name} needs torch 2.6 or newer, and this is {torch.__version__}",
            hint="export to torchscript or safetensors, or use a newer torch",
        )


# ONNX --------------------------------------------------------------------------------------------


def _write_onnx(request: ExportTask) -> list[str]:
    _check_torch("onnx")
    names = input_names(request.model, request.inputs)
    shapes = dynamic_shapes(request.model, request.inputs) if request.dynamic_batch else None
    outputs = [_name(path, names) for path in leaves(request.outputs)]
    with quiet():
        torch.onnx.export(
            request.model, request.inputs, str(request.path), dynamo=True, dynamic_shapes=shapes,
            input_names=names, output_names=outputs, external_data=False, verbose=False,
        )  # fmt: skip
    return []


def _name(path: str, taken: list[str]) -> str:
    """Return a unique name for an output: inputs and outputs share one namespace."""
    name = re.sub(r"\W", "_", path)
    name = f"output_{name}" if not name or name[0].isdigit() else name
    name = name.rstrip("_")
    return f"{name}_out" if name in taken else name


def _load_onnx(request: ExportTask) -> Run:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(
        str(request.path), options, providers=["CPUExecutionProvider"]
    )
    names = input_names(request.model, request.inputs)
    known = {value.name for value in session.get_inputs()}

    def run(inputs: Inputs) -> Any:
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        feed = {n: t.numpy() for n, t in zip(names, tensors, strict=True) if n in known}
        return [torch.as_tensor(value) for value in session.run(None, feed)]

    return run


# safetensors -------------------------------------------------------------------------------------


def _write_safetensors(request: ExportTask) -> list[str]:
    save_file = importlib.import_module("safetensors.torch").save_file
    state = request.model.state_dict()
    strange = [name for name, value in state.items() if not isinstance(value, torch.Tensor)]
    if strange:
        raise UserFault(
            f"safetensors holds only tensors, but the model's state has {strange[0]!r}",
            hint="export to another format, or keep get_extra_state out of the model",
        )
    tensors = {name: value.clone().contiguous() for name, value in state.items()}  # tied ones, too
    save_file(tensors, str(request.path), metadata={"format": "pt"})
    return ["weights only: it is loaded into the model's own code"]


def _load_safetensors(request: ExportTask) -> Run:
    """Load into a copy whose weights were all overwritten, so that a missing weight shows."""
    load_file = importlib.import_module("safetensors.torch").load_file
    model = copy.deepcopy(request.model)
    for tensor in model.state_dict().values():
        tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
    model.load_state_dict(load_file(str(request.path)))
    return lambda inputs: model(*inputs)


FORMATS = {
    fmt.name: fmt
    for fmt in (
        Format("torchscript", "torchscript.pt", (), "torch.jit.load",
               _write_torchscript, _load_torchscript),
        Format("onnx", "onnx", ("onnx", "onnxscript", "onnxruntime"), "onnxruntime",
               _write_onnx, _load_onnx),
        Format("torch-export", "export.pt2", (), "torch.export.load",
               _write_torch_export, _load_torch_export),
        Format("safetensors", "safetensors", ("safetensors",), "safetensors.torch.load_file",
               _write_safetensors, _load_safetensors),
    )
}  # fmt: skip
