"""The verbs for trainings that exist; a search is one, with its workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract import TUNABLE, State
from dlctl.contract.programs.lone_program import may_save_at_halt
from dlctl.errors import DlctlError, HasEnded, Misused
from dlctl.service.client import Filter, running
from dlctl.service.describe import lost_by_deletion
from dlctl.tell import SILENT, Tell
from dlctl.units import several

if TYPE_CHECKING:
    from dlctl.contract.search import Pool
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.orders import Ordered
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record, RecordStore
    from dlctl.search.overview import Overview
    from dlctl.service.client import Client

_ANSWER_S = 20.0
"""The time to wait for the answer of learners that train."""


@dataclass(frozen=True)
class Done:
    """The outcome for each training."""

    known: list[Record]
    failures: list[DlctlError]
    is_one: bool
    """Whether one training was meant."""

    def one(self) -> Record:
        """Return the only training that was meant.

        Raises:
            DlctlError: nothing was done.
        """
        for failure in self.failures:
            raise failure
        return self.known[0]


@dataclass(frozen=True)
class WouldEnd:
    """The forecast of a dry run for a training."""

    training_id: str
    site: str
    state: str
    would: str
    lost: str


@dataclass(frozen=True)
class Deleted:
    """A training that was deleted."""

    training_id: str
    deleted: bool = True


# Of many trainings --------------------------------------------------------------------------------


def end(mine: Client, verb: str, ids: Sequence[str] | None, wanted: Filter) -> Done:
    """Halt trainings, which save then, or cancel them; one in the queue leaves it.

    One that has ended meanwhile is a failure only if it was named.
    """
    meant = running(mine.store, ids, wanted)
    if verb == "halt":
        mine.tell.warn(_lost_by_halting(meant))
    known, failures = mine.at_sites(meant, partial(_end_all, verb))
    if wanted:
        for each in failures:
            mine.tell.note(each.message if isinstance(each, HasEnded) else "")
        failures = [each for each in failures if not isinstance(each, HasEnded)]
    return Done(known, failures, len(meant) == 1)


def would_cancel(
    mine: Client, ids: Sequence[str] | None, wanted: Filter
) -> tuple[list[WouldEnd], dict[str, DlctlError]]:
    """Return what `cancel` would end as the sites know it now, and which don't answer."""
    known, problems = mine.refreshed(running(mine.store, ids, wanted))
    return [
        WouldEnd(each.training_id, each.site, each.state_in_words, "refuse: it has ended", "")
        if each.state.final else
        WouldEnd(each.training_id, each.site, each.state_in_words, "cancel",
                 _lost_by_cancelling(each))
        for each in known
    ], problems  # fmt: skip


def delete(mine: Client, records: list[Record], *, forget: bool) -> Done:
    """Remove trainings that have ended, with their job directories.

    Args:
        forget: Remove only what is known here.
    """
    from dlctl.lifecycle import delete_all
    from dlctl.outputs.metrics.cache import forget as forget_metrics

    deleted, failures = records, list[DlctlError]()
    if forget:
        mine.store.remove(*(record.training_id for record in records))
    else:
        deleted, failures = mine.at_sites(records, delete_all)
    for record in deleted:
        forget_metrics(record.training_id)
    return Done(deleted, failures, len(records) == 1)


def would_delete(records: Sequence[Record], *, forget: bool) -> list[WouldEnd]:
    """Return what `delete` would remove, and what would be lost with it."""
    verb = "forget" if forget else "delete"
    return [
        WouldEnd(each.training_id, each.site, str(each.state),
                 verb if each.state.final or forget else "refuse: it has not ended",
                 "nothing is lost: its files on the site stay" if forget
                 else lost_by_deletion(each))
        for each in records
    ]  # fmt: skip


def _lost_by_halting(records: Sequence[Record]) -> str:
    """Return a warning of programs that know of no halt, by their folders here; "" without any."""
    own = {Path(each.manifest_path).parent: each.training_id for each in records
           if each.state is State.TRAINING and each.manifest_path
           and not (each.epochs or each.is_search)}  # fmt: skip
    lost = [training_id for folder, training_id in own.items()
            if folder.is_dir() and not may_save_at_halt(folder)]  # fmt: skip
    if not lost:
        return ""
    return (f"{several(lost)}: the program neither handles SIGUSR2 nor names CHECKPOINT_DIR, so "
            "that it may begin anew at `resume` (docs/run.md#saving-at-a-halt)")  # fmt: skip


def _lost_by_cancelling(record: Record) -> str:
    if record.state in (State.QUEUED, State.PENDING):
        return "its place in the queue"
    saves = f"`dlctl halt {record.training_id}` saves first"
    return f"what it did since its newest checkpoint ({saves})"


def _end_all(
    verb: str, session: Session, records: list[Record], store: RecordStore
) -> list[Record | DlctlError]:
    """Halt or cancel trainings of a site, and end the workers of searches."""
    from dlctl import lifecycle

    end = lifecycle.halt_all if verb == "halt" else lifecycle.cancel_all
    answers = end(session, records, store)
    for answer in answers:
        if not isinstance(answer, DlctlError) and answer.is_search:
            from dlctl.search.workers import end_workers

            end_workers(session, answer)
    return answers


# Of one training ----------------------------------------------------------------------------------


def resume(
    session: Session, record: Record, store: RecordStore, tell: Tell = SILENT,
    overrides: Overrides | None = None, *, new_code: bool = False, epochs: str = "",
) -> Record:  # fmt: skip
    """Continue from the newest checkpoint, and say how the attempt differs from the one before.

    Args:
        overrides: Changes to the resources.
        new_code: Train with the user's folder as it is now.
        epochs: How many the built-in loop trains in all, as in "30", or how many more, as in "+10";
            then a training that has completed goes on, too.

    Raises:
        DlctlError: nothing was submitted, or the answer was lost.
    """
    from dlctl.lifecycle import resume as go_on
    from dlctl.models.use import build_again
    from dlctl.search.start import resume as go_on_searching

    if epochs:
        overrides = _longer(session, record, overrides, epochs, tell)
    if record.is_search:
        known = go_on_searching(session, record, store, tell.note, overrides, new_code=new_code)
    else:
        known = go_on(session, record, store, partial(build_again, session), overrides,
                      new_code=new_code, on_line=tell.note)  # fmt: skip
    if new_code or not record.is_search:
        learners = overrides.learners if overrides else None
        _tell_what_runs(session, known, learners, tell, new_code=new_code)
    return known


def _longer(
    session: Session, record: Record, overrides: Overrides | None, epochs: str, tell: Tell
) -> Overrides:
    """Return overrides with the number of epochs that a resumption is to reach.

    Raises:
        Misused: that is no number, no more than now, or the built-in loop does not train.
    """
    from dlctl.lifecycle import read_plan
    from dlctl.lifecycle.resumption import EPOCHS
    from dlctl.manifest.overrides import Overrides

    plan = read_plan(session, record)
    if not plan.framework.has_loop:
        raise Misused(
            "only the built-in loop trains so many epochs; a program of your own begins anew, and "
            f"--set framework.command changes it: dlctl submit --from {record.training_id}",
            option="--epochs",
        )  # fmt: skip
    before = plan.training.epochs
    number = int(epochs) if epochs.lstrip("+").isdecimal() else 0
    total = before + number if epochs.startswith("+") else number
    if total <= before:
        raise Misused(f"{epochs!r} is no larger number than {before}, which "
                      f"{record.training_id} has now; as in {before + 10}, or +10",
                      option="--epochs")  # fmt: skip
    if (schedule := plan.training.learning_rate_schedule.name) != "constant":
        tell.note(f"{total} epochs: the {schedule} schedule of the learning rate is theirs, too")
    known = overrides or Overrides()
    return replace(known, set=(*known.set, f"{EPOCHS}={total}"))


def _tell_what_runs(
    session: Session, record: Record, learners: object, tell: Tell, *, new_code: bool
) -> None:
    """Say how the attempt differs from what the user may expect; only warn if that is unknown."""
    from dlctl.lifecycle import changed_since_sent, read_plan, repeats_error

    try:
        plan = read_plan(session, record)
        changes = plan.code_changes if new_code else changed_since_sent(session, record)
        again = not (new_code or changes) and repeats_error(session, record)
    except DlctlError as error:  # the job is submitted nevertheless
        return tell.warn(f"can't compare your folder with what was sent: {error.message}")
    mended = f"dlctl halt {record.training_id}, then dlctl resume --code {record.training_id}"
    if changes and new_code:
        tell.note(f"new code: {several(changes)}")
    elif changes:
        tell.warn(
            f"{Path(record.manifest_path).parent} differs from what was sent: {several(changes)}; "
            f"the training continues with the files that were sent (the new ones: {mended})"
        )
    if again:
        tell.warn(
            f"an error of the program ended attempt {record.attempt - 1}, and the same code runs "
            f"again (a mended one: {mended})"
        )
    if learners not in (None, plan.resources.learners):
        tell.warn("another dlctl has resumed it in the meantime: learners is now "
                  f"{plan.resources.learners}")  # fmt: skip
    return None


def tune(
    session: Session, record: Record, store: RecordStore, words: list[str],
    wait_s: float = _ANSWER_S,
) -> Ordered:  # fmt: skip
    """Change settings while it trains: `lr=0.01 batch_size=64`.

    Raises:
        Misused: there is no setting.
        RecordError: a word is no setting that can be tuned, or the program takes no orders.
    """
    from dlctl.lifecycle.orders import give_order, parse_settings

    values = parse_settings(words)
    if not values:
        raise Misused("name at least one setting, as in lr=0.01")
    return give_order(session, record, store, values, wait_s=wait_s)


def save(
    session: Session, record: Record, store: RecordStore, wait_s: float = _ANSWER_S
) -> Ordered:
    """Save a checkpoint now; the training goes on."""
    from dlctl.lifecycle.orders import give_order

    return give_order(session, record, store, {}, save=True, wait_s=wait_s)


def status(session: Session, record: Record, store: RecordStore) -> tuple[Record, Overview]:
    """Return a search as it is now; submit the workers that its hub has asked for in vain."""
    from dlctl.lifecycle import refresh
    from dlctl.search.overview import read_overview
    from dlctl.search.workers import top_up

    record = refresh(session, [record], store)[0]
    overview = read_overview(session, record)
    if overview.hub_asks and not record.state.final:
        top_up(session, record, overview.wanted)
    return record, overview


def scale(
    session: Session, record: Record, store: RecordStore, span: tuple[int, int] | None = None,
    partition: str | None = None,
) -> list[Pool]:  # fmt: skip
    """Return how many workers a search may have, in each partition.

    Args:
        span: How many it may have from now on, at least and at most.
        partition: Of these workers.
    """
    from dlctl.lifecycle import refresh
    from dlctl.search.sent import sent_search
    from dlctl.search.workers import read_pools, set_pool

    if span is not None:
        record = refresh(session, [record], store)[0]
        with sent_search(session, record) as loaded:
            set_pool(session, loaded, record, *span, partition)
    return read_pools(session, record)


# Offered to a person, for a training that is shown --------------------------------------------


@dataclass(frozen=True)
class Offer:
    """A verb that a face offers, after a question."""

    verb: str
    label: str
    question: str
    yes: str
    settings: Sequence[str] = ()
    """The fields that may be filled in."""
    loses: bool = False
    """Whether work may be lost by it."""


_OPEN = (
    Offer("save", "Checkpoint", "Save a checkpoint now? The training goes on.", "Save"),
    Offer("tune", "Tune", "Change settings while it trains, at the same step on all learners.",
          "Change", TUNABLE),
    Offer("halt", "Halt", "Save a checkpoint and stop? You can resume it. A program of your own "
          "saves only if it handles SIGUSR2.", "Halt"),
    Offer("cancel", "Cancel",
          "End it without saving? What came after the newest checkpoint is lost.", "End it",
          loses=True),
)  # fmt: skip
_ENDED = (
    Offer("resume", "Resume", "Continue from the newest checkpoint, with the same resources?",
          "Resume"),
)  # fmt: skip
OFFERED = tuple(offer.verb for offer in (*_OPEN, *_ENDED))


def offers(record: Record) -> Sequence[Offer]:
    """Return what may be done with a training; a program of one's own takes no orders."""
    if record.state.final:
        return () if record.state is State.COMPLETED else _ENDED
    return _OPEN if record.epochs or not record.started_at else _OPEN[2:]


def act(
    session: Session, record: Record, store: RecordStore, verb: str, tell: Tell = SILENT, *,
    settings: Mapping[str, object] | None = None, overrides: Overrides | None = None,
    epochs: str = "", wait_s: float = _ANSWER_S,
) -> tuple[Record, str]:  # fmt: skip
    """Do what a verb says; return the training and a sentence about it.

    Args:
        verb: One of `OFFERED`.
        settings: To tune: their new values.
        overrides: To resume: changes to the resources.
        epochs: To resume: as `resume` takes them.
        wait_s: How long to wait for the answer of learners that train.

    Raises:
        DlctlError
    """
    if verb == "save":
        return record, save(session, record, store, wait_s).sentence
    if verb == "tune":
        words = [f"{name}={value}" for name, value in (settings or {}).items()]
        return record, tune(session, record, store, words, wait_s).sentence
    if verb == "resume":
        done: Record | DlctlError = resume(session, record, store, tell, overrides, epochs=epochs)
    else:
        (done,) = _end_all(verb, session, [record], store)
    if isinstance(done, DlctlError):
        raise done
    why = f": {done.reason}" if done.reason else ""
    return done, f"{done.training_id} is {done.state}{why}"
