"""Commands that change or await a training: tune, halt, resume, cancel, wait, tag, note, delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.common import (
    DRY_RUN,
    ID,
    IDS,
    JSON,
    NOTHING,
    ask_nothing_in_json,
    client,
    complete_tags,
    filtered,
    overriding,
    print_record,
    raise_lasting,
    seconds,
    tell_failures,
    training,
)
from dlctl.cli.logs import LogLines, end_of_following, follow
from dlctl.contract import State
from dlctl.errors import TrainingFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.lifecycle.orders import Ordered
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record
    from dlctl.service.client import Client, Filter
    from dlctl.service.verbs import WouldEnd


@filtered
def halt(training_ids: list[str] = IDS, *, wanted: Filter, as_json: bool = JSON) -> None:
    """Save a checkpoint and stop; `dlctl resume` continues.

    A search stops with its workers.

    Example: dlctl halt digits-3k9f
    """
    end("halt", client(), training_ids, wanted, as_json)


def end(
    verb: str, mine: Client, ids: list[str], wanted: Filter, as_json: bool, *, dry_run: bool = False
) -> None:
    """Halt or cancel trainings, and print what became of them; or only what would."""
    from dlctl.service import verbs

    if dry_run:
        would, problems = verbs.would_cancel(mine, ids, wanted)
        _print_would(would, as_json)
        return raise_lasting(problems)
    done = verbs.end(mine, verb, ids, wanted)
    rows = [[each.training_id, str(each.state), each.reason] for each in done.known]
    if done.is_one and done.known:
        output.report(done.known[0], as_json, print_record)
    elif rows or not done.failures:
        output.report(done.known, as_json, lambda _: output.table(
            ["training", "state", "reason"], rows, NOTHING))  # fmt: skip
    return tell_failures(done.failures)


def _print_would(would: Sequence[WouldEnd], as_json: bool) -> None:
    rows = [[each.training_id, each.site, each.state, each.would, each.lost] for each in would]
    columns = ["training", "site", "state", "would", "lost"]
    output.report(would, as_json, lambda _: output.table(columns, rows, NOTHING))


@overriding("set")
def resume(
    training_id: str | None = ID, *, overrides: Overrides,
    code: bool = typer.Option(
        False, "--code", help="Train with your folder, and its requirements, as they are now."
    ),
    epochs: str = typer.Option(
        "", "--epochs", metavar="N|+N", show_default=False,
        help="How many epochs the built-in loop trains in all, or how many more; then a training "
        "that has completed goes on, too.",
    ),
    stay: bool = typer.Option(False, "--follow", "-f", help="Stay and print the log as it grows."),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Continue from the newest checkpoint.

    An interrupted submission is finished; a search gets new workers, and no trial is done twice.
    The options change the resources, `--epochs` the length and `--code` the program; all else
    stays as submitted.

    Example: dlctl resume digits-3k9f --learners 2 --time 2h
    """
    from dlctl.logs.reader import LogReader
    from dlctl.service import verbs

    with training(training_id) as (session, record, store):
        known = verbs.resume(session, record, store, output.Shown(), overrides, new_code=code,
                             epochs=epochs)  # fmt: skip
        output.report(known, as_json, lambda _: print_record(known))
        if stay:
            reader = LogReader(known.job_dir, first_attempt=known.attempt)
            lines = LogLines(as_json=as_json)
            return end_of_following(follow(session, known, store, reader, lines))
    return output.hint(f"dlctl logs --follow {known.training_id}")


@filtered
def cancel(
    training_ids: list[str] = IDS, *, wanted: Filter, dry_run: bool = DRY_RUN, as_json: bool = JSON
) -> None:
    """End trainings, or searches, without saving.

    Example: dlctl cancel digits-3k9f
    """
    end("cancel", client(), training_ids, wanted, as_json, dry_run=dry_run)


@filtered
def delete(
    training_ids: list[str] = IDS, *, wanted: Filter,
    yes: bool = typer.Option(
        False, "--yes", "-y", help="Don't ask; needs an id, --name, --state or --tag; required "
        "without a terminal.",
    ),
    forget: bool = typer.Option(
        False, "--forget", help="Remove only the local record; the files on the site stay."
    ),
    dry_run: bool = DRY_RUN,
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Delete ended trainings and their files; asks first.

    Their job directories and local records go.

    Example: dlctl delete digits-3k9f words-7h2m --yes
    """
    from dlctl.service import verbs
    from dlctl.service.client import chosen

    ask_nothing_in_json(as_json, answered=yes or dry_run)
    if yes and not wanted and not (training_ids and all(each.strip() for each in training_ids)):
        raise typer.BadParameter("--yes needs the id of each training: dlctl delete ID --yes")
    mine = client()
    records = chosen(mine.store, training_ids, wanted)
    if not records:
        return output.report([], as_json, lambda _: output.note(NOTHING))
    if not (forget or yes) or dry_run:
        records, _ = mine.refreshed(records)
    if dry_run:
        return _print_would(verbs.would_delete(records, forget=forget), as_json)
    if not (yes or _confirmed(records, forget)):
        return None
    done = verbs.delete(mine, records, forget=forget)
    gone = [verbs.Deleted(r.training_id) for r in done.known]
    if gone:
        verb = "forgot" if forget else "deleted"
        names = [f"{verb} {r.training_id}" for r in done.known]
        output.report(gone[0] if done.is_one else gone, as_json, lambda _: output.lines(names))
    return tell_failures(done.failures)


def _confirmed(records: list[Record], forget: bool) -> bool:
    from dlctl.service.verbs import would_delete

    for each in would_delete(records, forget=forget):
        output.note(f"{each.training_id} ({each.state} on {each.site}): {each.lost}")
    which = "it" if len(records) == 1 else f"these {len(records)}"
    return output.agreed(f"{'forget' if forget else 'delete'} {which}?", "dlctl delete")


def tune(
    words: list[str] = typer.Argument(
        ..., metavar="[ID] NAME=VALUE…", show_default=False,
        help="A training id (the latest training of this folder by default), and the settings: lr, "
        "batch_size, clip_gradient_norm, momentum, weight_decay.",
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Change settings of a training while it runs.

    All learners change at the same step. The change is noted in the metrics, and holds for later
    attempts, too.

    Example: dlctl tune digits-3k9f lr=0.01 batch_size=64
    """
    from dlctl.service import verbs

    wanted = None if "=" in words[0] else words[0]
    with training(wanted) as (session, record, store):
        done = verbs.tune(session, record, store, words if wanted is None else words[1:])
    output.report(done, as_json, _print_order)


def save(training_id: str | None = ID, as_json: bool = JSON) -> None:
    """Save a checkpoint now; the training goes on.

    Example: dlctl checkpoints save digits-3k9f
    """
    from dlctl.service import verbs

    with training(training_id) as (session, record, store):
        done = verbs.save(session, record, store)
    output.report(done, as_json, _print_order)


def _print_order(done: Ordered) -> None:
    say = output.warn if done.answer and done.answer.problem else output.line
    say(done.sentence)


@filtered
def wait(
    training_ids: list[str] = IDS, *, wanted: Filter,
    timeout: str | None = typer.Option(
        None, "--timeout", metavar="TIME", help="Wait at most so long, e.g. 2h; exit code 124 then."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Wait until trainings have ended.

    Each is printed as it ends. Exit code 0 if all of them have completed, else 10. Ctrl-C ends only
    the waiting.

    Example: dlctl wait digits-3k9f && dlctl fetch results digits-3k9f
    """
    from dlctl.live.waiting import wait_for
    from dlctl.service.client import chosen

    mine = client()
    ends = wait_for(mine, chosen(mine.store, training_ids, wanted),
                    None if timeout is None else seconds(timeout, "--timeout"))  # fmt: skip
    known = []
    for record in ends:
        known.append(record)
        if not as_json:
            output.line(" ".join(filter(None, [record.training_id, str(record.state),
                                               record.reason])))  # fmt: skip
    output.report(known, as_json, lambda _: None)
    failed = [each for each in known if each.state is not State.COMPLETED]
    if failed:
        others = len(failed) - 1
        raise TrainingFailed(
            f"{failed[0].training_id} is {failed[0].state}"
            + (f", and {others} more have not completed" if others else ""),
            hint=failed[0].hint or failed[0].show_command,
        )


@filtered
def tag(
    training_ids: list[str] = IDS, *, wanted: Filter,
    add: list[str] = typer.Option(None, "--add", metavar="WORD", help="Give this tag."),
    remove: list[str] = typer.Option(None, "--remove", metavar="WORD", help="Take this tag away.",
                                     autocompletion=complete_tags),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Show or change the tags of trainings; asks no site.

    Example: dlctl tag digits-3k9f --add baseline
    """
    from dlctl.service import client as choose

    store = client().store
    known = choose.tag(store, choose.chosen(store, training_ids, wanted), add, remove)
    rows = [[each.training_id, ", ".join(each.tags) or "-"] for each in known]
    output.report(known, as_json,
                  lambda _: output.table(["training", "tags"], rows, NOTHING))  # fmt: skip


def note(
    training_id: str | None = ID,
    text: str = typer.Argument("", metavar="TEXT", help="The remark; without one, show all."),
    remove: int = typer.Option(0, "--remove", min=0, metavar="N", help="Take the N-th away."),
    as_json: bool = JSON,
) -> None:
    """Show or add remarks on a training; asks no site.

    `dlctl show` prints them, too.

    Example: dlctl note digits-3k9f "diverges from step 400 on: the learning rate is too high"
    """
    from dlctl.service import client as choose

    store = client().store
    known = store.find(training_id)
    if text or remove:
        known = choose.note(store, known, text, remove)
    output.report(known, as_json, lambda _: output.lines(
        f"{number} {each}" for number, each in enumerate(known.notes, 1)))  # fmt: skip
