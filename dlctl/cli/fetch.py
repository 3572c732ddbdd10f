"""Commands for results: `fetch` and `export` bring them here, `checkpoints` looks at them there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    NOTHING,
    ago,
    client,
    dash,
    filtered,
    folder_name,
    tell_failures,
    training,
    whole,
)
from dlctl.cli.jobs import save
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import Misused
from dlctl.service.describe import only_copies
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.outputs.fetch import Fetched
    from dlctl.record import Record, RecordStore
    from dlctl.service.client import Filter


_RESULTS = "results"
ON_NODE = typer.Option(
    False, "--on-node", help="Run it in a job step, if Python works only on compute nodes."
)


@filtered
def fetch(
    what: str = typer.Argument(
        _RESULTS, metavar="[WHAT]", show_default=False,
        help="What to download: results (model, logs, metrics; the default), output (what the "
        "program has written into its own folder or beside it; results bring it if RESULT_DIR is "
        "empty), checkpoints (of a training that runs the newest), logs, metrics, code, or all of "
        "it.",
    ),
    training_ids: list[str] = IDS, *, wanted: Filter,
    to: Path | None = typer.Option(
        None, "--to", help="Target folder, with a folder for each of several trainings; "
        "./results/<training id> by default.",
    ),
    include: list[str] = typer.Option(
        None, "--include", metavar="GLOB", help="Only files whose path or name fits, or a folder "
        "above them, such as '*.pt' or 'model'; may be given more than once.",
    ),
    restore: bool = typer.Option(
        False, "--restore", help="First have the login node write the results to the data stores."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Download the model, the logs and the metrics.

    Every file is verified. After an interruption the same command goes on where it was, even in
    mid-file. Files that you edited are kept.

    Example: dlctl fetch digits-3k9f
    """
    from dlctl.service import fetching
    from dlctl.service.client import chosen

    ids = list(training_ids or [])
    if what not in fetching.PARTS:
        what, ids = _RESULTS, [what, *ids]
    mine = client()
    _check_words(mine.store, ids)
    records = chosen(mine.store, ids, wanted)

    done, failures = fetching.fetch(mine, records, what, to, include or (), restore=restore)
    fetched = [each for _, each in done]
    where = [
        f"{counted(len(each.files), 'file')} in {folder_name(_common_folder(each))}"
        for each in fetched
    ]
    if fetched or not failures:
        output.report(whole(fetched), as_json,
                      lambda _: output.lines(where) if where else output.note(NOTHING))  # fmt: skip
    for record, each in done:
        _tell_fetched(record, each)
    tell_failures(failures)


def _common_folder(fetched: Fetched) -> Path:
    """Return the folder here that holds all files, which may be one part's: `…/checkpoints`."""
    folders = [path.rpartition("/")[0] for path in fetched.files]
    return Path(fetched.folder, os.path.commonpath(folders) if folders else "")


def _check_words(store: RecordStore, ids: list[str]) -> None:
    """Refuse a second word for what to fetch, and one that is misspelt.

    Raises:
        typer.BadParameter
    """
    from difflib import get_close_matches

    from dlctl.service.fetching import PARTS

    word, parts = ids[0] if ids else "@latest", ", ".join(PARTS)
    known = [record.training_id for record in store.all()]
    if word[:1] == "@" or any(each.startswith(word) or each.endswith(word) for each in known):
        return
    if word in PARTS:
        raise typer.BadParameter(f"name one of {parts}, not several: `all` brings all of them")
    near = get_close_matches(word, PARTS, 1)
    if len(ids) > 1 or near:
        meant = f"; did you mean {near[0]}?" if near else ""
        raise typer.BadParameter(f"{word!r} is none of {parts}, and no training{meant}")


def _tell_fetched(record: Record, fetched: Fetched) -> None:
    """Name what did not come as it is at the site, and what else there is."""
    if fetched.left_out:
        output.warn(
            f"{record.training_id}: left out, because they are not regular files or can't be "
            f"read: {', '.join(map(printable, fetched.left_out))}"
        )
    if fetched.kept:
        output.warn(
            f"{record.training_id}: your own or edited files were in the way, and have another "
            f"name now: {', '.join(map(printable, fetched.kept))}"
        )
    if not fetched.complete:
        so_far = "that it has left" if record.state.final else "so far"
        output.note(f"{record.training_id} is {record.state}: these are the files {so_far}")
    if record.state.final and (rest := only_copies(record)):
        output.note(f"{record.training_id}: not fetched: {rest}")


def export(
    training_id: str | None = ID,
    format_: Literal["torchscript", "onnx", "torch-export", "safetensors"] = typer.Option(
        "torchscript", "--format", help="What will load it: torch.jit, an ONNX runtime, "
        "torch.export, or your own model (weights only)."),
    checkpoint: str | None = typer.Option(
        None, "--checkpoint", metavar="STEP", help="Weights of this checkpoint, or `newest`; "
        "by default those of the trained model."),
    to: Path | None = typer.Option(
        None, "--output", "-o", help="Output file; by default in ./results/<training id>."),
    fixed_batch: bool = typer.Option(
        False, "--fixed-batch", help="For this batch size only, if the model takes no other."),
    on_node: bool = ON_NODE,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Export a servable model file, and download it.

    It is checked against the trained model.

    Example: dlctl export digits-3k9f --format onnx
    """
    from dlctl.outputs.export import ExportRequest, bring, export_model

    wanted = ExportRequest(format_, checkpoint, fixed_batch, on_node)
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


_WHOLE = {True: "yes", False: "no", None: "?"}
STEP = typer.Argument(None, metavar="STEP", help="Step; the newest complete checkpoint by default.")
STEPS = typer.Argument(None, metavar="STEP…", help="Steps; all by default.")


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
    now = record.site_time(time.time())
    cells = [
        [dash(c.size_bytes, format_bytes), ago(now - c.written_at) if c.written_at else "-",
         _WHOLE[c.complete]] for c in found
    ]  # fmt: skip
    columns = ["size", "written", "complete"]
    if any(c.name for c in found):  # a program's own
        columns = ["name", "step", *columns]
        rows = [[c.name, dash(c.step), *row] for c, row in zip(found, cells, strict=True)]
    else:
        columns = ["step", "epoch", "learners", *columns, "kept"]
        rows = [[dash(c.step), dash(c.epoch), dash(c.learners), *row,
                 "forever" if c.kept_for_ever else "-"]
                for c, row in zip(found, cells, strict=True)]  # fmt: skip
    none = f"{record.training_id} ({record.state}) has no checkpoint"
    none += f": {GONE}" if record.is_gone else "" if record.state.final else " yet"
    output.report(found, as_json, lambda _: output.table(columns, rows, none))
    if any(c.complete is None for c in found):
        output.note(
            "dlctl can't tell whether the program's files are whole: checkpoint.files in the "
            "manifest says which are checkpoints, and "
            f"`dlctl checkpoints verify {record.training_id}` reads them through"
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
    """Verify checkpoints against their checksums.

    Exit code 9 if one is damaged.

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
    steps: list[str] = typer.Argument(None, metavar="STEP…", help="Two steps; the newest by default."),  # noqa: E501
    other: str | None = typer.Option(None, "--with", metavar="ID", help="Another training on the same site."),  # noqa: E501
    on_node: bool = ON_NODE,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Compare the tensors of two checkpoints of any trainings.

    Example: dlctl checkpoints diff digits-3k9f 120 240
    """
    from dlctl.outputs import checkpoints

    if wrong := [each for each in steps or () if not each.isdecimal()]:
        another = f"{wrong[0]!r} is no step; another training comes after --with"
        raise Misused(another, option="STEP…")
    with training(training_id) as (session, record, store):
        second = store.find(other) if other else record
        numbers = [int(each) for each in steps or ()]
        found = checkpoints.diff(session, record, second, numbers, on_node=on_node)
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
    "List, compare, verify and save checkpoints.",
    (list_, show, save, verify, diff),
)}  # fmt: skip
