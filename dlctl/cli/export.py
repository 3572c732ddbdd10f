"""The command that exports a servable model of a training."""

from __future__ import annotations

import enum
from pathlib import Path

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, folder_name, training


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


class ModelFormat(str, enum.Enum):
    """What a model can be exported to."""

    torchscript = "torchscript"
    onnx = "onnx"
    torch_export = "torch-export"
    safetensors = "safetensors"


def export(
    training_id: str | None = ID,
    format_: ModelFormat = typer.Option(
        ModelFormat.torchscript, "--format", help="What will load it: torch.jit, an ONNX runtime, "
        "torch.export, or your own model (weights only)."),
    checkpoint: str | None = typer.Option(
        None, "--checkpoint", metavar="STEP", help="Weights of this checkpoint, or `newest`; "
        "by default those of the trained model."),
    to: Path | None = typer.Option(
        None, "--output", "-o", help="Output file; by default in ./results/<training id>."),
    fixed_batch: bool = typer.Option(
        False, "--fixed-batch", help="For this batch size only, if the model takes no other."),
    on_node: bool = typer.Option(
        False, "--on-node", help="Run it in a job step, if Python works only on compute nodes."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Export a servable model file, check it against the trained model, and download it.

    Example: dlctl export digits-3k9f --format onnx
    """
    from dlctl.outputs.export import ExportRequest, bring, export_model

    wanted = ExportRequest(format_.value, checkpoint, fixed_batch, on_node)
    with training(training_id) as (session, record, store):
        done = export_model(session, record, store, wanted, output.note)
        with output.progress("fetching") as on_progress:
            file = bring(session, record, done, to, on_progress)
    answer = {"training_id": record.training_id, "file": str(file)} | done
    output.report(answer, as_json, lambda _: output.line(folder_name(file)))
    for note in done["notes"]:
        output.note(note)
    output.note(f"checked on {len(done['checked'])} inputs: the largest difference is "
                f"{done['largest_difference']:.2g}")  # fmt: skip
