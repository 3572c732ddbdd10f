"""Export a model: write it, load it again in its own runtime, and compare both models' outputs."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dlctl.contract import whole_path
from dlctl.contract.ground.whole_files import sha256_of
from learner.errors import UserFault
from learner.export import formats
from learner.export.formats import ExportTask, Format, Run
from learner.export.inputs import Case, as_inputs, cases, copied, shapes_of
from learner.export.outputs import compare
from learner.export.servable import copy_of, remove_hooks

FORMATS = tuple(formats.FORMATS)
_ONE_BATCH_HINT = "dynamic_batch=False (--fixed-batch) exports for the example's batch size alone"


@dataclass(frozen=True)
class Exported:
    """An exported file that passed its checks."""

    path: str
    format: str
    size_bytes: int
    sha256: str
    largest_difference: float
    """The largest absolute difference of any output on any of the inputs."""
    input_shapes: list[list[int]]
    """The shapes of the example inputs, in the order of forward's parameters."""
    checked: list[str]
    """Descriptions of the inputs on which both models were run."""
    dynamic_batch: bool
    """Whether the file accepts batches of any size."""
    notes: list[str] = field(default_factory=list)


@torch.no_grad()
def export(
    model: torch.nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    format: str = "torchscript",
    *,
    check_inputs: Sequence[Any] = (),
    dynamic_batch: bool = True,
) -> Exported:
    """Write and check a servable model: on the CPU, in eval mode, with nothing distributed in it.

    The model may be wrapped (DistributedDataParallel, torch.compile) and its weights may be shared
    with other learners; it is not changed. In a training of several learners one of them calls it.

    Args:
        example_inputs: the model's positional arguments as a tuple, or its only one. The first
            dimension of each tensor is the batch.
        format: `torchscript`, `onnx`, `torch-export` or `safetensors` (weights only).
        check_inputs: further inputs on which the file is compared with the model.
        dynamic_batch: whether the file must accept batches of any size.

    Raises:
        UserFault: the model can't be exported so, or the file does not answer as the model does;
            then nothing is left.
    """
    chosen = find_format(format)
    chosen.check_packages()
    bare = copy_of(model)
    inputs = as_inputs(example_inputs)
    tried = list(cases(inputs, [as_inputs(other) for other in check_inputs]))
    buffers = [buffer.clone() for buffer in bare.buffers()]
    tests, dynamic = _references(bare, tried, dynamic_batch)
    remove_hooks(bare)
    for buffer, value in zip(bare.buffers(), buffers, strict=False):
        buffer.copy_(value)  # a model may count its calls
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_path(path, suffix=f".{chosen.suffix}") as temporary:
            temporary.touch()  # a place that can't be written is told as such, by no library
            request = ExportTask(bare, inputs, tests[0][1], dynamic, temporary)
            notes = _written(chosen, request)
            largest = _checked(chosen, request, tests)
    except OSError as error:
        raise UserFault(
            f"{path} can't be written: {error.strerror or error}",
            hint=f"look at the space and the permissions in {path.parent}",
        ) from error
    if dynamic_batch and not dynamic:
        notes.append(f"the model itself takes batches of {shapes_of(inputs)[0][0]} only")
    return Exported(
        str(path), chosen.name, path.stat().st_size, sha256_of(path), largest, shapes_of(inputs),
        [case.what for case, _ in tests], dynamic, notes,
    )  # fmt: skip


def find_format(name: str) -> Format:
    """Return a format by its name.

    Raises:
        UserFault: there is no such format.
    """
    if name in formats.FORMATS:
        return formats.FORMATS[name]
    close = difflib.get_close_matches(name, FORMATS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(FORMATS)}"
    raise UserFault(f"there is no format {name!r}", hint=hint)


def _references(
    model: torch.nn.Module, tried: list[Case], dynamic_batch: bool
) -> tuple[list[tuple[Case, Any]], bool]:
    """Return the model's own outputs, and whether it accepts other batch sizes.

    What the model itself refuses (a value out of its range) is left out.

    Raises:
        UserFault: it does not run on the example, or answers otherwise when asked again.
    """
    first, *more = tried
    try:
        answers = [(first, model(*copied(first.inputs)))]
    except Exception as error:
        raise UserFault(
            f"the model can't run on the example inputs {shapes_of(first.inputs)}: {_line(error)}",
            hint="give what forward takes, in its order, as a tuple",
        ) from error
    dynamic = dynamic_batch
    for case in more:
        if case.other_batch and not dynamic:
            continue
        try:
            answers.append((case, model(*copied(case.inputs))))
        except Exception:
            dynamic = dynamic and not case.other_batch
    if not dynamic:
        answers = [(case, answer) for case, answer in answers if not case.other_batch]
    again = compare(answers[0][1], model(*copied(first.inputs)))
    if again.why:
        raise UserFault(
            f"the model gives another output for the same input: {again.why}",
            hint="in eval mode forward must depend only on its inputs: no counter, no dropout "
            "that ignores self.training",
        )
    return answers, dynamic


def _written(chosen: Format, request: ExportTask) -> list[str]:
    try:
        return chosen.write(request)
    except (UserFault, OSError):
        raise
    except Exception as error:
        others = ", ".join(name for name in FORMATS if name != chosen.name)
        about_batch = request.dynamic_batch and re.search(r"batch|dynamic|Constraint", str(error))
        raise UserFault(
            f"the model can't be written as {chosen.name}: {_line(error)}",
            hint=_ONE_BATCH_HINT if about_batch else f"other formats are {others}",
        ) from error


def _checked(chosen: Format, request: ExportTask, tests: list[tuple[Case, Any]]) -> float:
    """Return the largest difference between the file's outputs and the model's.

    Raises:
        UserFault: it is too large, or the file does not run.
    """
    run = _loaded(chosen, request)
    largest = 0.0
    for case, right in tests:
        try:
            with formats.quiet():
                got = run(copied(case.inputs))
        except Exception as error:
            raise _unlike(chosen, case, f"it fails: {_line(error)}") from error
        difference = compare(right, got)
        if difference.why:
            raise _unlike(chosen, case, difference.why)
        largest = max(largest, difference.largest)
    return largest


def _loaded(chosen: Format, request: ExportTask) -> Run:
    try:
        return chosen.load(request)
    except Exception as error:
        raise UserFault(
            f"{chosen.runtime} can't load what was written as {chosen.name}: {_line(error)}",
            hint="nothing was kept; try another format",
        ) from error


def _unlike(chosen: Format, case: Case, why: str) -> UserFault:
    hint = "nothing was kept; "
    if case.other_batch:
        hint += f"make forward independent of the batch size, or {_ONE_BATCH_HINT}"
    else:
        hint += "control flow that depends on values or on the model's own state can't be exported"
    return UserFault(
        f"as {chosen.name} the model is not the same: with {case.what}, inputs of shapes "
        f"{shapes_of(case.inputs)}, {why}",
        hint=hint,
    )


def _line(error: BaseException) -> str:
    """Return the first meaningful line of an exporter's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]
