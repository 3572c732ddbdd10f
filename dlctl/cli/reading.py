"""Commands that only read: status, show, fetch; `list` is in `listing`, `logs` in its room."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dlctl.cli import output
from dlctl.cli.choosing import (
    NAME,
    NOTHING,
    STATE,
    TAG,
    at_sites,
    chosen,
    fitting,
    is_known,
    tell_failures,
    whole,
)
from dlctl.cli.common import (
    ID,
    IDS,
    JSON,
    folder_name,
    open_record,
    plain,
    print_record,
    refreshed,
    shown_state,
    training,
)  # fmt: skip
from dlctl.cli.states import listing
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.outputs.fetch import Fetched
    from dlctl.record import Record, RecordStore


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("list")(listing.list_)
    for command in (status, show, fetch):
        app.command()(command)


def status(
    training_ids: list[str] = IDS,
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
    as_json: bool = JSON,
) -> None:
    """Ask the sites for the state of trainings.

    Example: dlctl status digits-3k9f
    """
    store = open_record()
    known, problems = refreshed(chosen(store, training_ids, fitting(name, state, tag)), store)
    many = [[r.training_id, shown_state(r), r.reason] for r in known]
    output.report(whole([plain(r) for r in known]), as_json,
                  lambda _: print_record(known[0]) if len(known) == 1 else
                  output.table(["training", "state", "reason"], many, NOTHING))  # fmt: skip
    # Such as a changed host key: waiting heals nothing.
    lasting = [problem for problem in problems if not getattr(problem, "transient", False)]
    for problem in lasting[1:]:
        output.warn(problem.message)
    if lasting:
        raise lasting[0]


def show(
    training_id: str | None = ID,
    script: bool = typer.Option(False, "--script", help="Print the batch script that was sent."),
    everything: bool = typer.Option(
        False, "--all", "-a", help="Print all that is known: plan, learners, metrics, servers."
    ),
    as_json: bool = JSON,
) -> None:
    """Show the story of one training on one screen: state, why, progress, what was saved.

    `--all` prints everything: the plan, a row for each learner, their metrics.

    Example: dlctl show digits-3k9f --all
    """
    from dlctl.cli.states.gathering import gather
    from dlctl.cli.states.show_all import print_details
    from dlctl.cli.states.story import print_story

    with training(training_id) as (session, record, store):
        if script:
            from dlctl.lifecycle import read_script

            text = read_script(session, record)
            return output.report({"script": text}, as_json, lambda _: output.raw(text))
        details = gather(session, record, store)
    return output.report(details, as_json, print_details if everything else print_story)


_RESULTS, _CHECKPOINTS = "results", "checkpoints"


def fetch(
    what: str = typer.Argument(
        _RESULTS, metavar="[results|checkpoints]", show_default=False,
        help="What to download: results (model, logs, metrics; the default), or checkpoints.",
    ),
    training_ids: list[str] = IDS,
    name: str | None = NAME,
    state: list[str] = STATE,
    tag: list[str] = TAG,
    to: Path | None = typer.Option(
        None, "--to", help="Target folder, of several trainings a folder with one for each; "
        "./results/<training id> by default.",
    ),
    restore: bool = typer.Option(
        False, "--restore", help="First have the login node write the results to the data stores."
    ),
    as_json: bool = JSON,
) -> None:  # fmt: skip
    """Download the trained model, the logs and the metrics, and verify every file.

    Example: dlctl fetch digits-3k9f
    """
    ids = list(training_ids or [])
    if what not in (_RESULTS, _CHECKPOINTS):
        what, ids = _RESULTS, [what, *ids]
    store = open_record()
    if len(ids) > 1 and not is_known(store, ids[0]):
        raise typer.BadParameter(f"{ids[0]!r} is neither {_RESULTS} nor {_CHECKPOINTS}")
    records = chosen(store, ids, fitting(name, state, tag))

    def bring(session: Session, record: Record, store: RecordStore) -> tuple[Record, Fetched]:
        folder = to or Path("results") / record.training_id
        if to is not None and len(records) > 1:
            folder = to / record.training_id
        return _fetch(session, record, store, what, folder, restore=restore)

    done, failures = at_sites(records, store, bring)
    fetched = [each for _, (_, each) in done]
    where = "\n".join(
        f"{counted(len(each.files), 'file')} in {folder_name(Path(each.folder))}"
        for each in fetched
    )
    if fetched or not failures:
        output.report(
            whole(fetched), as_json, lambda _: output.line(where) if where else output.note(NOTHING)
        )
    for _, (record, each) in done:
        _tell_fetched(record, each)
    tell_failures(failures)


def _fetch(
    session: Session, record: Record, store: RecordStore, what: str, folder: Path, *, restore: bool
) -> tuple[Record, Fetched]:
    from dlctl.lifecycle import refresh
    from dlctl.outputs import fetch as results

    record = refresh(session, [record], store)[0]
    if restore:
        _restore(session, record, store)
    bring = results.fetch_results if what == _RESULTS else results.fetch_checkpoints
    with output.progress("fetching") as on_progress:
        fetched = bring(session.transport, record, folder.absolute(), on_progress)
    if what == _RESULTS and record.state.final:
        store.mark_fetched(record)
    return record, fetched


def _tell_fetched(record: Record, fetched: Fetched) -> None:
    if fetched.left_out:
        output.warn(
            "left out, because they are not regular files or can't be read: "
            f"{', '.join(fetched.left_out)}"
        )
    if fetched.kept:
        output.warn(
            "your own or edited files were in the way, and have another name now: "
            f"{', '.join(fetched.kept)}"
        )
    if not fetched.complete:
        output.note(f"{record.training_id} is {record.state}: these are the files so far")


def _restore(session: Session, record: Record, store: RecordStore) -> None:
    from dlctl.data.results import store_again

    for line in store_again(session, record, store, output.note):
        output.note(line)
