"""Describe a training by its files (plans, processes, verdict, orders) and by its metrics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import Plan, State, understood
from dlctl.contract.metrics import EventKind, finite
from dlctl.files.small_files import read_texts
from dlctl.lifecycle.orders import Ordered, given_orders
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import closed_statuses, last_lines
from dlctl.outputs.checkpoints import Checkpoint
from dlctl.record import Record
from dlctl.request.attempts import read_all
from dlctl.series.answers import Answer, Known, Saved, answers, found_events, main_curve
from dlctl.series.pace import JobLimit, TimeLeft, time_left
from dlctl.series.run import Event, Run
from dlctl.series.utilisation import Use, sentences, use_of

if TYPE_CHECKING:
    from dlctl.record import Record


@dataclass(frozen=True)
class Insight:
    """The story of a training."""

    answers: list[Answer] = field(default_factory=list)
    utilisation: list[str] = field(default_factory=list)
    left: TimeLeft | None = None
    events: list[Event] = field(default_factory=list)
    """Changes of the learning rate, which follow from the curves; plateaus that were told."""
    judged: str = ""
    """The name of the metric by which the training is judged."""
    use: Use = field(default_factory=Use)

    def plain(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "answers": [_without_infinity(asdict(answer)) for answer in self.answers],
            "utilisation": self.utilisation,
            "use": _without_infinity(asdict(self.use)),
            "events": [
                _without_infinity(asdict(event))
                for event in sorted(self.events, key=lambda event: event.step)
            ],
            "time_left_s": asdict(self.left) if self.left else None,
        }


def _without_infinity(value: Any) -> Any:
    """Return a value for JSON, which knows neither NaN nor infinity."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {name: _without_infinity(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinity(inner) for inner in value]
    return value


def insight(
    run: Run, record: Record, plan: Plan | None, checkpoints: list[Saved] | None,
    now: float | None = None,
) -> Insight:  # fmt: skip
    """Return what a run means, for the state that a record knows.

    Args:
        checkpoints: None: nobody has looked, so that there may be some of which no event told.
    """
    now = record.site_time(time.time() if now is None else now)
    made, is_completed = record.made, record.state is State.COMPLETED
    has_model = is_completed and bool(made and (made.results.files or made.output))
    classes = plan.training.classes if plan else None
    wants = plan is None or plan.framework.command is None or plan.checkpoint.files is not None
    known = Known(now, classes, checkpoints or [], record.state.final, has_model, wants)
    limit = job_limit(plan, record, now)
    left = None if record.state.final else time_left(run, record.step, record.done, limit)
    use = use_of(run)
    utilisation = sentences(use, plan.resources if plan else None)
    curve = main_curve(run)
    name = "" if curve is None else curve.key.name
    plateaus = [event for event in run.events if event.kind == EventKind.PLATEAU.value]
    found = [each for each in answers(run, known)
             if checkpoints is not None or each.key != "checkpoint" or each.evidence]  # fmt: skip
    return Insight(found, utilisation, left, [*found_events(run), *plateaus], name, use)


def job_limit(plan: Plan | None, record: Record, now: float) -> JobLimit | None:
    """Return how long the jobs of a training may train; None without a time limit.

    Args:
        now: Unix seconds.
    """
    if plan is None or plan.resources.time_s is None or not record.started_at:
        return None
    each_s = plan.resources.time_s - plan.resources.halt_margin_s
    return JobLimit(each_s, record.started_at + each_s - now)


def saved_of(found: Sequence[Checkpoint]) -> list[Saved]:
    """Return what may be resumed from, or what a program has saved in its place."""
    return [
        Saved(c.step, c.written_at, c.size_bytes, "" if c.complete else c.name)
        for c in found if c.complete is not False
    ]  # fmt: skip


@dataclass(frozen=True)
class Attempt:
    """The plan of an attempt."""

    attempt: int
    resources: contract.Resources
    code_digest: str
    code_changes: list[str]
    """Files that were sent and differ from those of the attempt before."""


@dataclass(frozen=True)
class TrainingFiles:
    """The content of a training's files; the newest attempt's, if nothing else is said."""

    plan: contract.Plan
    attempts: list[Attempt]
    verdict: contract.Verdict | None
    learners: list[contract.Status]
    servers: list[contract.Status]
    homes: contract.Homes | None
    job_output: list[str]
    """The last lines of a failed job without a verdict, which would name the process at fault."""
    orders: list[Ordered]

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self) | {"orders": [asdict(o) | {"text": str(o)} for o in self.orders]}


def read_training_files(session: Session, record: Record) -> TrainingFiles:
    """Return what the files of a training tell.

    Raises:
        RecordError: they are lost, or of another version of dlctl.
        TransportError
    """
    files_of, n = read_all(session.transport, record), record.attempt
    plan, digests = files_of[-1].plan, [files.plan.code_digest for files in files_of]
    nodes = plan.resources.nodes if plan.parameter_server else 0
    learners = [contract.status_file(n, "learner", r) for r in range(plan.resources.learners)]
    servers = [contract.status_file(n, "server", node) for node in range(nodes)]
    about = [contract.verdict_file(n), contract.homes_file(n), contract.rulings_file(n)]
    names = [*about, *learners, *servers]
    texts = read_texts(session.transport, [f"{record.job_dir}/{name}" for name in names])
    verdict, homes, rulings, *statuses = (texts[f"{record.job_dir}/{name}"] for name in names)
    ruled = understood(contract.Rulings, rulings) or contract.Rulings()
    judged = understood(contract.Verdict, verdict)

    def known(role: str, files: list[bytes | None]) -> list[contract.Status]:
        own = (understood(contract.Status, text) for text in files)
        found = (ruled.on(role, rank, status) for rank, status in enumerate(own))
        return closed_statuses(record, [each for each in found if each is not None], judged)

    # A plan is taken over by the attempts after it, until one gets other code.
    attempts = [
        Attempt(files.attempt, files.plan.resources, files.plan.code_digest,
                files.plan.code_changes if digest != files.plan.code_digest else [])
        for files, digest in zip(files_of, ["", *digests], strict=False)
    ]  # fmt: skip
    is_unexplained = record.state is State.FAILED and not verdict
    return TrainingFiles(
        plan, attempts, judged,
        known("learner", statuses[: len(learners)]), known("server", statuses[len(learners) :]),
        understood(contract.Homes, homes),
        last_lines(session, [record])[0] if is_unexplained else [], given_orders(session, record),
    )  # fmt: skip
