"""`dlctl delete` asks, names what would be lost, and takes several ids."""

from dataclasses import replace
from functools import partial

import pytest
from login_side import make_record, session_of

from dlctl.cli import output
from dlctl.contract import Amount, Made, OutputPlace, State
from dlctl.errors import RecordError
from dlctl.outputs.metrics import cache
from dlctl.record import FETCHED, RecordStore
from dlctl.service.client import Client
from dlctl.service.describe import lost_by_deletion, next_fetch, only_copies


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = RecordStore()
    for name in ("one-aaaa", "two-bbbb"):
        store.add(make_record(training_id=name, state=State.COMPLETED))
    return store


@pytest.fixture
def run(run):
    return partial(run, "delete")


def ids(store):
    return [record.training_id for record in store.all()]


def test_without_a_terminal_nothing_is_deleted_unless_told(store, run):
    done = run("one", "--forget")
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert ids(store) == ["one-aaaa", "two-bbbb"]
    assert run("one", "bbbb", "--forget", "--yes").stdout == "forgot one-aaaa\nforgot two-bbbb\n"
    assert ids(store) == []


def test_what_is_kept_of_its_metrics_goes_with_it(store, run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for record in store.all():
        cache.store(record, cache.Cached(1.0, {}))
    assert run("one", "--forget", "--yes").exit_code == 0
    assert cache.load(store.find("two-bbbb")) is not None
    assert [path.name for path in cache.cache_folder().iterdir()] == ["two-bbbb.metrics"]


@pytest.mark.parametrize("ids_given", [[], [""], ["one", " "]])
def test_yes_needs_an_id(store, run, ids_given, tmp_path, monkeypatch):
    """A script whose variable was empty deleted the newest training of its folder."""
    store.add(make_record(training_id="new-cccc", folder=str(tmp_path), state=State.COMPLETED))
    monkeypatch.chdir(tmp_path)
    done = run(*ids_given, "--forget", "--yes")
    assert done.exit_code == 2
    assert "--yes needs the id of each training" in " ".join(done.stderr.split())
    assert sorted(ids(store)) == ["new-cccc", "one-aaaa", "two-bbbb"]


@pytest.mark.parametrize(("answer", "left"), [("y", ["two-bbbb"]), ("", ["one-aaaa", "two-bbbb"])])
def test_only_a_yes_deletes(store, run, monkeypatch, answer, left):
    monkeypatch.setattr(output, "ask", lambda text, hidden: answer)
    done = run("one", "--forget")
    assert done.exit_code == 0
    assert ids(store) == left
    assert ("nothing was deleted" in done.stderr) == (answer == "")
    assert run("two", "--forget", "--json").exit_code == 2, "no question is asked in JSON"
    assert ids(store) == left


def test_what_was_not_fetched_is_named_before(store, run, monkeypatch):
    """`dlctl fetch ID`, which was advised, brings no checkpoints."""
    monkeypatch.setattr(output, "ask", lambda text, hidden: "n")
    store.add(make_record(training_id="cut-cccc", state=State.HALTED))
    fetching = "dlctl fetch checkpoints cut-cccc"
    for name, found, said in (
        ("one-aaaa", False, "(COMPLETED on testbed): its model and logs were NOT fetched"),
        ("one-aaaa", True, "(COMPLETED on testbed): nothing is lost: its results were fetched"),
        ("cut-cccc", False, "its logs and checkpoints were NOT fetched"),
        ("cut-cccc", True, "its checkpoints were NOT"),
    ):
        if found:
            store.mark_fetched(store.find(name))
        told = run(name).stderr
        assert name in told and said in told
        assert (fetching in told) == (name == "cut-cccc")


def test_one_that_runs_keeps_the_others_from_nothing(store, run, monkeypatch):
    from dlctl import lifecycle

    def remove(_, records, store):
        runs, gone = records
        store.remove(gone.training_id)
        return [RecordError(f"{runs.training_id} is TRAINING: it can't be deleted"), gone]

    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(lifecycle, "delete_all", remove)
    done = run("one", "two", "-y")
    assert isinstance(done.exception, RecordError)
    assert done.stdout == "deleted two-bbbb\n"
    assert ids(store) == ["one-aaaa"]


MADE = Made(Amount(), Amount(2, 3_100_000), [OutputPlace("out/", 14, 8_000_000)])
OUTPUT = "output (out/: 14 files, 8.0 MB; not in RESULT_DIR)"


@pytest.mark.parametrize(
    ("made", "fetched", "lost"),
    [
        (MADE, (), f"its logs, checkpoints (2 files, 3.1 MB) and {OUTPUT} were NOT fetched "
         "(dlctl fetch all t-1)"),
        (MADE, ("results", "output"), "its logs and output were fetched, its checkpoints "
         "(2 files, 3.1 MB) were NOT (dlctl fetch checkpoints t-1)"),
        (MADE, ("checkpoints",), f"its checkpoints were fetched, its logs and {OUTPUT} were NOT "
         "(dlctl fetch t-1)"),
        (MADE, FETCHED, "nothing is lost: its logs, checkpoints and output were fetched"),
        (Made(Amount(1, 5)), (), "its results (1 file, 5 B) and logs were NOT fetched "
         "(dlctl fetch t-1)"),
        (Made(Amount(1, 5), output=MADE.output), ("results",), "its results were fetched, its "
         f"{OUTPUT} were NOT (dlctl fetch output t-1)"),
        (Made(), ("results",), "nothing is lost: its logs were fetched"),
    ],
)  # fmt: skip
def test_what_was_made_and_what_was_fetched_are_told_part_by_part(made, fetched, lost):
    """After `dlctl fetch checkpoints` it said that the checkpoints were not fetched."""
    marks = {FETCHED[part]: 1 for part in fetched}
    record = make_record(state=State.COMPLETED, made=made, **marks)
    assert lost_by_deletion(record) == lost


def test_the_next_command_brings_what_there_is():
    assert next_fetch(make_record(made=MADE)) == "dlctl fetch results t-1"
    only_saved = make_record(made=Made(checkpoints=Amount(1, 5)))
    assert next_fetch(only_saved) == "dlctl fetch checkpoints t-1"


def test_only_copies_are_named_before_a_prune():
    done = make_record(state=State.COMPLETED, made=MADE)
    assert only_copies(done) == f"{OUTPUT} (dlctl fetch t-1)".replace("fetch t", "fetch output t")
    only_saved = replace(done, made=Made(checkpoints=Amount(1, 5)))
    assert only_copies(only_saved) == "checkpoints (1 file, 5 B) (dlctl fetch checkpoints t-1)"
    assert only_copies(replace(only_saved, checkpoints_fetched_attempt=1)) == ""
    with_model = replace(done, made=Made(Amount(1, 5), Amount(1, 5)))
    assert only_copies(with_model) == ""
    told = "results (1 file, 5 B) and logs (dlctl fetch t-1)"
    assert only_copies(with_model, ["results", "checkpoints"]) == told
    assert only_copies(done, ["checkpoints"]) == ""  # of --keep-results: the output stays
    search = make_record(state=State.FAILED, is_search=True, made=Made(checkpoints=Amount(1, 0)))
    assert only_copies(search) == "", "what its hub keeps is no checkpoint"
    assert lost_by_deletion(search) == "its logs were NOT fetched (dlctl fetch t-1)"
