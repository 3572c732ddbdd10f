"""Commands about checkpoints: checkpoints list, show, save, verify, diff."""

from __future__ import annotations

import time
from typing import Any

import typer

from dlctl.cli import output
from dlctl.cli.common import ID, JSON, ago, dash, training
from dlctl.cli.jobs import save
from dlctl.contract.ground.safe_text import printable
from dlctl.units import format_bytes

_WHOLE = {True: "yes", False: "no", None: "?"}
STEP = typer.Argument(None, metavar="STEP", help="Step; the newest complete checkpoint by default.")
STEPS = typer.Argument(None, metavar="STEP…", help="Steps; all by default.")
ON_NODE = typer.Option(
    False, "--on-node", help="Run it in a job step, if Python works only on compute nodes."
)


def list_(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """List the checkpoints of a training, newest first.

    Example: dlctl checkpoints list digits-3k9f
    """
    from dlctl.lifecycle import refresh
    from dlctl.outputs.checkpoints import list_checkpoints
    from dlctl.record import GONE

    with training(training_id) as (session, record, store):
        found = list_checkpoints(session.transport, record.job_dir)
        if not found:
            record = refresh(session, [record], store)[0]
    told = [
        [dash(c.size_bytes, format_bytes), ago(time.time() - c.written_at) if c.written_at else "-",
         _WHOLE[c.complete]] for c in found
    ]  # fmt: skip
    columns = ["size", "written", "complete"]
    if any(c.name for c in found):  # a program's own
        columns = ["name", "step", *columns]
        rows = [[c.name, dash(c.step), *row] for c, row in zip(found, told, strict=True)]
    else:
        columns = ["step", "epoch", "learners", *columns, "kept"]
        rows = [[dash(c.step), dash(c.epoch), dash(c.learners), *row,
                 "forever" if c.kept_for_ever else "-"]
                for c, row in zip(found, told, strict=True)]  # fmt: skip
    none = f"{record.training_id} ({record.state}) has no checkpoint"
    none += f": {GONE}" if record.is_gone else "" if record.state.final else " yet"
    output.report(found, as_json, lambda _: output.table(columns, rows, none))
    if any(c.complete is None for c in found):
        output.note(
            "dlctl can't tell whether the program's files are whole: checkpoint.files in the "
            "manifest says which are checkpoints, and `dlctl checkpoints verify` reads them through"
        )


def show(training_id: str | None = ID, step: int | None = STEP, as_json: bool = JSON) -> None:
    """Show the settings, files and tensors of a checkpoint.

    Example: dlctl checkpoints show digits-3k9f 120
    """
    from dlctl.outputs.checkpoints import show_checkpoint

    with training(training_id) as (session, record, _):
        found = show_checkpoint(session.transport, record.job_dir, step)
    output.report(found, as_json, _print_checkpoint)


def verify(
    training_id: str | None = ID,
    steps: list[int] = STEPS,
    on_node: bool = ON_NODE,
    as_json: bool = JSON,
) -> None:
    """Verify checkpoints against their checksums; exit code 9 if one is damaged.

    Example: dlctl checkpoints verify digits-3k9f
    """
    from dlctl.errors import ResultsError
    from dlctl.outputs import checkpoints

    with training(training_id) as (session, record, _):
        found = checkpoints.verify(session, record, steps or [], on_node=on_node)
    rows = [[c.get("name") or str(c["step"]), c["problem"] or "whole"] for c in found]
    columns = ["checkpoint", "found"]
    output.report(found, as_json, lambda _: output.table(columns, rows, "no checkpoint"))
    damaged = [c.get("name") or f"step {c['step']}" for c in found if c["problem"]]
    if damaged:
        raise ResultsError(
            f"damaged: {', '.join(map(printable, damaged))}",
            hint="a resumed training uses the newest undamaged one",
        )


def diff(
    training_id: str | None = ID,
    steps: list[int] = typer.Argument(None, metavar="STEP…", help="Two steps; the newest by default."),  # noqa: E501
    other: str | None = typer.Option(None, "--with", metavar="ID", help="Another training on the same site."),  # noqa: E501
    on_node: bool = ON_NODE,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Compare the tensors of two checkpoints, from one training or two.

    Example: dlctl checkpoints diff digits-3k9f 120 240
    """
    from dlctl.outputs import checkpoints

    with training(training_id) as (session, record, store):
        second = store.find(other) if other else record
        found = checkpoints.diff(session, record, second, steps or [], on_node=on_node)
    rows = [[t["name"], t["difference"], f"{t['largest']:.3g}" if t["largest"] is not None else "-"]
            for t in found["tensors"] if t["difference"] != "none"]  # fmt: skip
    same = f"all {len(found['tensors'])} tensors are bit-identical"
    output.report(
        found, as_json, lambda _: output.table(["tensor", "difference", "largest"], rows, same)
    )


def _print_checkpoint(found: dict[str, Any]) -> None:
    output.fields({
        "step": found["step"], "epoch": found.get("epoch"), "learners": found["learners"],
        **found["settings"],
    })  # fmt: skip
    files = [[name, format_bytes(file["size_bytes"])] for name, file in found["files"].items()]
    output.table(["file", "size"], files)
    tensors = [
        [t["name"], t["dtype"], "×".join(map(str, t["shape"])) or "scalar", " ".join(t["places"])]
        for t in found["tensors"]
    ]
    output.table(["tensor", "dtype", "shape", "place"], tensors)


GROUPS = {"checkpoints": (
    "Look at the checkpoints of a training, or save one.",
    (list_, show, save, verify, diff),
)}  # fmt: skip
