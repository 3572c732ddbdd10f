"""Say what a training has made, how much of it was fetched, and how to fetch the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlctl.contract import State, tell_output
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dlctl.contract import Amount
    from dlctl.record import Record


def told_output(record: Record) -> str:
    """Return `out/: 14 files, 8.0 MB; not in RESULT_DIR` of a program's output; "" without any."""
    return tell_output(record.made.output) if record.made else ""


def lost_by_deletion(record: Record) -> str:
    """Return what exists nowhere else, as far as the local record knows."""
    parts = _parts(record)
    lost = {part: told for part, told in parts.items() if not record.was_fetched(part)}
    fetched = [part for part in parts if part not in lost]
    if record.made and not record.made.results.files:
        fetched = ["logs" if part == "results" else part for part in fetched]
    verb = "was" if fetched == ["output"] else "were"
    said = f"its {_listed(fetched)} {verb} fetched" if fetched else ""
    if not lost:
        return f"nothing is lost: {said}"
    missing = f"its {_listed([word for told in lost.values() for word in told])} were NOT"
    missing += f" ({_command(record, lost)})" if fetched else f" fetched ({_command(record, lost)})"
    return f"{said}, {missing}" if said else missing


def only_copies(record: Record, among: Collection[str] = ("output", "checkpoints")) -> str:
    """Return what of these parts was not fetched, with the command; "" if nothing.

    The checkpoints of a training that has completed count only if they are all that it has made.
    """
    made, lost = record.made, list[str]()
    if "results" in among and made and made.results.files and not record.was_fetched("results"):
        lost.append("results")
    if "output" in among and made and made.output and not record.was_fetched("output"):
        lost.append("output")
    completed = record.state is State.COMPLETED
    is_model = made and not (completed and (made.results.files or made.output))
    parts = _parts(record)
    if made and "checkpoints" in parts and is_model and not record.was_fetched("checkpoints"):
        lost.append("checkpoints")
    told = [word for part in lost for word in parts[part]]
    return f"{_listed(told)} ({_command(record, lost)})" if told else ""


def next_fetch(record: Record) -> str:
    """Return the command that brings the model of a training that has completed."""
    made = record.made
    is_only_saved = made and made.checkpoints.files and not (made.results.files or made.output)
    return f"dlctl fetch {'checkpoints' if is_only_saved else 'results'} {record.training_id}"


def _command(record: Record, parts: Collection[str]) -> str:
    names = {"results": "", "checkpoints": "checkpoints ", "output": "output "}
    if len(parts) == len(names):
        return f"dlctl fetch all {record.training_id}"
    if "results" in parts and record.made and not record.made.results.files:
        parts = [part for part in parts if part != "output"]  # the results bring it
    return "; ".join(f"dlctl fetch {names[part]}{record.training_id}" for part in parts)


def _listed(words: Iterable[str]) -> str:
    *before, last = words
    return f"{', '.join(before)} and {last}" if before else last


def _parts(record: Record) -> dict[str, list[str]]:
    """Return in words what each part holds that a training has made; results bring the logs."""
    made = record.made
    if made is None:  # nobody has looked
        if record.state is State.COMPLETED:
            return {"results": ["model", "logs"]}
        return {"results": ["logs"], "checkpoints": ["checkpoints"]}
    parts = {"results": [*_told("results", made.results), "logs"]}
    if made.checkpoints.files and not record.is_search:  # a hub keeps a file of its own there
        parts["checkpoints"] = _told("checkpoints", made.checkpoints)
    if made.output:
        parts["output"] = [f"output ({told_output(record)})"]
    return parts


def _told(name: str, amount: Amount) -> list[str]:
    size = f"{counted(amount.files, 'file')}, {format_bytes(amount.size_bytes)}"
    return [f"{name} ({size})"] if amount.files else []
