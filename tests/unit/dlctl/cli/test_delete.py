"""`dlctl delete` asks, names what would be lost, and takes several ids."""

from contextlib import nullcontext
from functools import partial

import pytest
from login_side import make_record

from dlctl.cli import choosing, output
from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.outputs.metrics import cache
from dlctl.record import RecordStore


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
        cache.store(record, cache.Cached(1, 1.0, {}))
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


def test_no_question_is_asked_in_json(store, run, monkeypatch):
    monkeypatch.setattr(output, "ask", lambda text, hidden: "y")
    assert run("one", "--forget", "--json").exit_code == 2
    assert ids(store) == ["one-aaaa", "two-bbbb"]


def test_what_was_not_fetched_is_named_before(store, run, monkeypatch):
    monkeypatch.setattr(output, "ask", lambda text, hidden: "n")
    assert (
        "one-aaaa (COMPLETED on testbed): its model and logs were NOT fetched" in run("one").stderr
    )
    store.mark_fetched(store.find("one-aaaa"))
    assert "one-aaaa (COMPLETED on testbed): its results were fetched" in run("one").stderr


def test_checkpoints_that_were_not_fetched_are_named(store, run, monkeypatch):
    """`dlctl fetch ID`, which was advised, brings none; after it nothing was said to be lost."""
    monkeypatch.setattr(output, "ask", lambda text, hidden: "n")
    store.add(make_record(training_id="cut-cccc", state=State.HALTED))
    fetching = "dlctl fetch checkpoints cut-cccc"
    said = run("cut").stderr
    assert "its logs and checkpoints were NOT fetched" in said
    assert fetching in said
    store.mark_fetched(store.find("cut-cccc"))
    said = run("cut").stderr
    assert "its checkpoints were NOT" in said
    assert fetching in said


def test_one_that_runs_keeps_the_others_from_nothing(store, run, monkeypatch):
    from dlctl import lifecycle

    def remove(_, records, store):
        runs, gone = records
        store.remove(gone.training_id)
        return [RecordError(f"{runs.training_id} is TRAINING: it can't be deleted"), gone]

    monkeypatch.setattr(choosing, "opened", lambda name: nullcontext())
    monkeypatch.setattr(lifecycle, "delete_all", remove)
    done = run("one", "two", "-y")
    assert isinstance(done.exception, RecordError)
    assert done.stdout == "deleted two-bbbb\n"
    assert ids(store) == ["one-aaaa"]
