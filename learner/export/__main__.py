"""Export the model of a training: `python -m learner.export <job dir> --format F`.

Builds the user's model as the built-in loop does, loads results/model.pt or a checkpoint, and
writes into results/; the index of the results gets the file, so that a fetch can verify it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dlctl import contract
from dlctl.contract.programs.answers import run
from learner.checkpoint.load import Header, Loaded, filled, headers, read_header, understood
from learner.checkpoint_files import layout
from learner.checkpoint_files.layout import DamagedCheckpoint
from learner.data.sampling import fetch
from learner.errors import UserFault
from learner.export import formats
from learner.export.results import MODEL_FILE
from learner.export.write import FORMATS, Exported, export, find_format
from learner.model.user_model import Parts
from learner.model.user_program import build_alone
from learner.model.weights import restore_buffers, restore_model
from learner.storage.index import alone

NEWEST = "newest"
_EXAMPLES, _MORE = 4, 16
"""How many samples are used for tracing, and how many others for checking the file."""


def main(arguments: list[str]) -> dict[str, Any]:
    """Export one model; return the fields of `Exported`, and the step of its weights.

    Raises:
        UserFault
    """
    options = _parse(arguments)
    job_dir = Path(options.job_dir).resolve()
    plan = _read_plan(job_dir)
    find_format(options.format).check_packages()  # before the data is loaded
    parts = build_alone(plan, job_dir)
    step = _load_weights(parts.model, job_dir, options.checkpoint)
    example, more = _samples(parts)
    path = job_dir / contract.RESULTS / _file_name(options.format, step)
    print(f"exporting {type(parts.model).__name__} to {path.name}", file=sys.stderr, flush=True)
    done = export(
        parts.model, example, path, options.format, check_inputs=more,
        dynamic_batch=not options.fixed_batch,
    )  # fmt: skip
    _add_to_index(job_dir, done)
    return dataclasses.asdict(done) | {"path": f"{contract.RESULTS}/{path.name}", "step": step}


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m learner.export", description=__doc__)
    parser.add_argument("job_dir", help="the job directory of a training")
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--checkpoint", metavar="STEP", help=f"a step, or {NEWEST}")
    parser.add_argument("--fixed-batch", action="store_true", help="for one batch size alone")
    return parser.parse_args(arguments)


def _read_plan(job_dir: Path) -> contract.Plan:
    try:
        plan = contract.read_record(contract.Plan, job_dir / contract.PLAN)
    except contract.ContractError as error:
        raise UserFault(f"{job_dir / contract.PLAN} can't be understood: {error}") from error
    if plan is None:
        raise UserFault(f"there is no {contract.PLAN} in {job_dir}")
    if not plan.framework.has_loop:
        raise UserFault(
            f"{plan.training_id} ran its own command (framework.command), so its model can't "
            "be built here",
            hint="at the end of that program: from learner.export import export; "
            'export(model, inputs, os.environ["RESULT_DIR"] + "/model.onnx", format="onnx")',
        )
    return plan


# Weights -----------------------------------------------------------------------------------------


def _load_weights(model: torch.nn.Module, job_dir: Path, checkpoint: str | None) -> int | None:
    """Load the trained model (None) or a checkpoint; return the checkpoint's step."""
    if checkpoint is None:
        path = job_dir / contract.RESULTS / MODEL_FILE
        restore_model(model, _read_model(path), path.name)
        return None
    root = job_dir / contract.CHECKPOINTS
    header = _find_checkpoint(root, checkpoint)
    try:
        with contextlib.closing(Loaded(header)) as loaded, understood():
            state = filled(loaded.tree()["model"])
            own = loaded.own(0)["buffers"]
    except (DamagedCheckpoint, OSError) as damage:
        raise UserFault(
            f"the checkpoint {header.directory.name} can't be read: {damage}",
            hint="`dlctl checkpoints verify` shows which are complete",
        ) from damage
    restore_model(model, state, header.directory.name)
    restore_buffers(model, own)
    return header.marker.step


def _read_model(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserFault(
            f"there is no trained model in {path.parent}",
            hint=f"--checkpoint {NEWEST} takes the weights of a checkpoint",
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserFault(f"{path} can't be read: {str(error).splitlines()[0]}") from error
    return dict(state)


def _find_checkpoint(root: Path, wanted: str) -> Header:
    steps = layout.steps_present(root)
    if wanted == NEWEST:
        skipped: list[str] = []
        if found := next(headers(root, skipped.append), None):
            return found
        raise UserFault(f"there is no whole checkpoint in {root}", hint="; ".join(skipped))
    if not wanted.isdecimal() or int(wanted) not in steps:
        known = ", ".join(str(step) for step in steps) or "none"
        raise UserFault(f"there is no checkpoint {wanted!r}", hint=f"there are: {known}")
    try:
        return read_header(root / layout.directory_name(int(wanted)))
    except DamagedCheckpoint as damage:
        raise UserFault(
            f"the checkpoint {wanted} is not whole: {damage}", hint=f"--checkpoint {NEWEST}"
        ) from damage


# Inputs and results ------------------------------------------------------------------------------


def _samples(parts: Parts) -> tuple[Any, list[Any]]:
    """Return the inputs of some samples, from validation data if there is any, and of others."""
    data = parts.train if parts.validation is None else parts.validation
    count = min(len(data), _EXAMPLES + _MORE)
    inputs, _ = fetch(data, np.arange(min(count, _EXAMPLES)))
    rest = np.arange(_EXAMPLES, count)
    return inputs, [fetch(data, rest)[0]] if len(rest) else []


def _file_name(name: str, step: int | None) -> str:
    at = "" if step is None else f".step-{step}"
    return f"model{at}.{formats.FORMATS[name].suffix}"


def _add_to_index(job_dir: Path, done: Exported) -> None:
    """Add the file to results.json, which exists once the training has ended."""
    # Beside the folder that results/ leads to: that of the attempt which owns them.
    path = (job_dir / contract.RESULTS).resolve().with_name(contract.RESULTS_INDEX)
    new = contract.ResultFile(Path(done.path).name, done.size_bytes, done.sha256)
    with alone(job_dir / contract.RESULTS):
        index = contract.read_record(contract.ResultsIndex, path)
        if index is not None:
            files = [file for file in index.files if file.path != new.path]
            files = sorted([*files, new], key=lambda file: file.path)
            contract.write_whole(path, contract.to_json(dataclasses.replace(index, files=files)))


if __name__ == "__main__":
    sys.exit(run(main))
