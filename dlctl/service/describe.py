"""Describe one training, and what it has made: how much is fetched, and how to fetch it."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.contract.metrics import LOSS, EventKind
from dlctl.errors import RecordError, TransportError
from dlctl.units import counted, format_bytes, format_duration, format_size, unix_seconds

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dlctl.contract import Amount, Plan
    from dlctl.lifecycle import Session
    from dlctl.outputs.insight import Insight, TrainingFiles
    from dlctl.outputs.metrics.reader import MetricsReader
    from dlctl.record import Record, RecordStore
    from dlctl.series.run import Run
    from dlctl.service.client import Client
    from dlctl.tell import Tell


def starts(record: Record, now: float) -> str:
    """Return `starts at about 14:30, in 40 min`; "" if nobody knows.

    Args:
        now: Unix seconds.
    """
    in_s = record.starts_at - now
    if record.state is not State.PENDING or in_s <= 0:
        return ""
    form = "%H:%M" if in_s < 20 * 3600 else "%Y-%m-%d %H:%M"
    at = time.strftime(form, time.localtime(record.starts_at))
    return f"starts at about {at}, in {format_span(in_s)}"


def progress_in_words(record: Record) -> list[str]:
    """Return `40 %`, `epoch 3/8` and `step 70`, as far as they are known.

    While data is loaded or results are stored, return how far that is, alone.
    """
    if record.moved is not None and record.state.runs:
        return [f"{100 * record.moved:.0f} %"]
    of = f"/{record.epochs}" if record.epochs else ""
    is_told = record.step is None or record.step in (-1, record.epoch)
    return [
        *([] if record.done is None else [f"{100 * record.done:.0f} %"]),
        *([] if record.epoch is None else [f"epoch {record.epoch}{of}"]),
        *([] if is_told else [f"step {record.step:,}"]),
    ]


def loss_in_words(record: Record) -> list[str]:
    """Return `loss 0.1462`; nothing if it is not known."""
    from dlctl.series.readable import readable

    return [] if record.loss is None else [f"loss {readable(LOSS, record.loss)}"]


@dataclass(frozen=True)
class Details:
    """All about a training."""

    record: Record
    """Brought forward to the newest step of the metrics."""
    files: TrainingFiles | None
    """None if the site does not answer, or the job directory is gone."""
    insight: Insight | None
    """None if no metrics are known."""
    next_command: str
    """Brings what a training that has completed has made; empty if it is here."""
    stored_as: list[str]
    """The versions of stored models that it made, as far as is known here."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        found = self.record.plain() | {
            "output": output_in_words(self.record), "next_command": self.next_command,
            "stored_as": self.stored_as, "shown_state": self.record.state_in_words,
            "starts_in_words": starts(self.record, time.time()),
        }  # fmt: skip
        if self.files:
            found |= self.files.plain()
            found["plan"]["created_at"] = unix_seconds(self.files.plan.created_at)
        return found | (self.insight.plain() if self.insight else {})


def describe(session: Session, record: Record, store: RecordStore, tell: Tell) -> Details:
    """Return all about a training.

    If the site does not answer, return what is known locally, marked as stale; if the job directory
    is gone, what is known locally.

    Raises:
        RecordError: files of the job directory are lost, or of another version of dlctl.
    """
    from dlctl.lifecycle import refresh, stale
    from dlctl.outputs.checkpoints import list_checkpoints
    from dlctl.outputs.insight import insight, read_training_files, saved_of
    from dlctl.outputs.metrics.reader import MetricsReader
    from dlctl.series.pace import progress

    meaning = None
    try:
        record = refresh(session, [record], store)[0]
        files, reader = read_training_files(session, record), MetricsReader(record)
        reader.refresh(session.transport)
        saved = saved_of(list_checkpoints(session.transport, record.job_dir))
        meaning = insight(reader.run, record, files.plan, saved)
        record = replace(record, **progress(reader.run, record)._asdict())
    except (TransportError, RecordError) as error:
        if isinstance(error, TransportError):
            tell.warn(error.message)
            record = stale([record], error, store)[0]
        elif not record.is_gone:
            raise
        files, reader = None, MetricsReader(record)
        if reader.seen_at:
            tell.warn(f"the metrics are as of {format_span(time.time() - reader.seen_at)} ago")
            meaning = replace(insight(reader.run, record, None, None), left=None)
    return Details(record, files, meaning, _next_command(record), _stored_as(record))


def runs_of(mine: Client, records: Sequence[Record]) -> dict[str, Run]:
    """Return what was measured of trainings, by id; of a silent site, what it told before."""
    known = {record.training_id: _reader_of(record) for record in records}
    runs = {training_id: reader.run for training_id, (reader, _) in known.items()}
    due: dict[str, list[Record]] = {}
    for record in records:
        is_whole = known[record.training_id][1]
        if not is_whole:
            due.setdefault(record.site, []).append(record)
    for site, answer in mine.sites_at_once(due, lambda s: read_runs(s, due[s.site.name])):
        if isinstance(answer, dict):
            runs |= answer
        else:
            mine.tell.warn(f"{site}: {answer.message}; its metrics are those of an earlier look")
    return runs


def read_runs(session: Session, records: Sequence[Record]) -> dict[str, Run]:
    """Return what was measured of trainings of one site, by id.

    Raises:
        TransportError
    """
    found = {}
    for record in records:
        reader, is_whole = _reader_of(record)
        if not is_whole:
            reader.refresh(session.transport)
            reader.save()
        found[record.training_id] = reader.run
    return found


def _reader_of(record: Record) -> tuple[MetricsReader, bool]:
    """Return what this machine knows of the metrics, and whether it was read after the end."""
    from dlctl.outputs.metrics.reader import MetricsReader

    reader = MetricsReader(record)
    return reader, _is_whole(record, reader.run)


def _is_whole(record: Record, run: Run) -> bool:
    """Return whether nothing more will be measured: the supervisor has written its verdict."""
    return record.state.final and any(
        event.kind == EventKind.VERDICT.value and event.attempt == record.attempt
        for event in run.events
    )


def _next_command(record: Record) -> str:
    """Return the command that brings what a training that has completed has made; "" if none."""
    from dlctl.record import FETCHED

    is_here = any(map(record.was_fetched, FETCHED))
    is_due = record.state is State.COMPLETED and not (is_here or record.hint or record.is_gone)
    return next_fetch(record) if is_due else ""


def _stored_as(record: Record) -> list[str]:
    """Return the versions of stored models that the training made, as far as is known here."""
    from dlctl.models.known import ModelRecord

    try:
        return ModelRecord().made_from(record.training_id)
    except RecordError:
        return []


def output_in_words(record: Record) -> str:
    """Return `out/: 14 files, 8.0 MB; not in RESULT_DIR` of a program's output; "" without any."""
    return contract.tell_output(record.made.output) if record.made else ""


def lost_by_deletion(record: Record) -> str:
    """Return what exists nowhere else, as far as the local record knows."""
    parts = _parts(record)
    lost = {part: words for part, words in parts.items() if not record.was_fetched(part)}
    fetched = [part for part in parts if part not in lost]
    if record.made and not record.made.results.files:
        fetched = ["logs" if part == "results" else part for part in fetched]
    verb = "was" if fetched == ["output"] else "were"
    sentence = f"its {_listed(fetched)} {verb} fetched" if fetched else ""
    if not lost:
        return f"nothing is lost: {sentence}"
    missing = f"its {_listed([word for words in lost.values() for word in words])} were NOT"
    missing += f" ({_command(record, lost)})" if fetched else f" fetched ({_command(record, lost)})"
    return f"{sentence}, {missing}" if sentence else missing


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
    words = [word for part in lost for word in parts[part]]
    return f"{_listed(words)} ({_command(record, lost)})" if words else ""


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
    parts = {"results": [*_amount_in_words("results", made.results), "logs"]}
    if made.checkpoints.files and not record.is_search:  # a hub keeps a file of its own there
        parts["checkpoints"] = _amount_in_words("checkpoints", made.checkpoints)
    if made.output:
        parts["output"] = [f"output ({output_in_words(record)})"]
    return parts


def _amount_in_words(name: str, amount: Amount) -> list[str]:
    size = f"{counted(amount.files, 'file')}, {format_bytes(amount.size_bytes)}"
    return [f"{name} ({size})"] if amount.files else []


def asked_in_words(plan: Plan) -> str:
    """Return what a plan asks the scheduler for."""
    resources, links = plan.resources, plan.lifecycle.links if plan.lifecycle else 1
    memory_bytes = resources.memory_bytes_per_learner
    parts = [
        f"{counted(resources.learners, 'learner')} on {counted(resources.nodes, 'node')}",
        f"{counted(resources.cpus_per_learner, 'CPU')} each",
        f"{counted(resources.gpus_per_learner, 'GPU')} each" if resources.gpus_per_learner else "",
        f"{format_size(memory_bytes)} each" if memory_bytes else "",
    ]
    if resources.time_s:
        each = f" in each of about {links} jobs" if links > 1 else ""
        parts.append(f"at most {format_duration(resources.time_s)}{each}")
    return ", ".join(filter(None, parts))


def parameters(mine: Client, record: Record) -> dict[str, str]:
    """Return what a training was asked to train with, by the manifest's keys; none if unknown."""
    from dlctl.lifecycle import read_plan

    try:
        with closing(mine.open(record.site)) as session:
            plan = read_plan(session, record)
    except (TransportError, RecordError):
        return {}
    sections = {"": plan.framework.arguments, "training.": asdict(plan.training)}
    if not plan.framework.has_loop:
        del sections["training."]
    found = {f"{head}{name}": str(value) for head, part in sections.items()
             for name, value in part.items() if value is not None}  # fmt: skip
    command = plan.framework.command
    own = {} if command is None else {"framework.command": command} | record.varied_values
    return found | own | {"learners": str(plan.resources.learners)}
