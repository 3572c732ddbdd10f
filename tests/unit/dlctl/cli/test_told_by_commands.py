"""What `fetch`, `rehearse`, `resume`, `prune`, `adopt` and `delete` tell, ask and refuse."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from login_side import make_record, plan_of, session_of

from dlctl import contract, lifecycle
from dlctl.cli import costs, output
from dlctl.cli.fetch import _tell_fetched
from dlctl.cli.upkeep import _print_done
from dlctl.contract import Amount, Made, OutputPlace, Rehearsed, State
from dlctl.errors import ConnectionLost, RecordError
from dlctl.outputs.fetch import Fetched
from dlctl.outputs.metrics import cache
from dlctl.plan.rehearsal import Forecast
from dlctl.record import FETCHED, RecordStore
from dlctl.service import verbs
from dlctl.service.client import Client
from dlctl.service.costs import Rehearsal
from dlctl.service.describe import lost_by_deletion, next_fetch, only_copies
from dlctl.transport.local import LocalTransport
from dlctl.upkeep.inventory import Inventory
from dlctl.upkeep.prune import Prunable, Pruned


def test_of_several_trainings_the_one_that_files_are_missing_of_is_named(capsys):
    record = make_record(training_id="odd-e3k9367e", state=State.FAILED)
    came = Fetched(record.training_id, "results", [], complete=False, left_out=["pipe"], kept=["a"])
    _tell_fetched(record, came)
    told = capsys.readouterr().err.splitlines()
    assert all("odd-e3k9367e" in line for line in told) and len(told) == 3
    assert "so far" not in told[-1]  # nothing more will come of a training that has failed


def test_what_else_a_training_has_made_is_named_with_the_command_that_brings_it(capsys):
    made = Made(Amount(1, 1), Amount(0, 0), [OutputPlace("model.pt", 1, 200)])
    record = make_record(state=State.COMPLETED, made=made, fetched_attempt=1)
    came = Fetched(record.training_id, "results", ["r.txt"], complete=True)
    _tell_fetched(record, came)
    told = capsys.readouterr().err
    assert told == (
        "t-1: not fetched: output (model.pt: 200 B; not in RESULT_DIR) (dlctl fetch output t-1)\n"
    )
    for other in (replace(record, output_fetched_attempt=1), replace(record, state=State.TRAINING)):
        _tell_fetched(other, came)
    assert not capsys.readouterr().err


def test_ctrl_c_in_submit_says_what_becomes_of_it(run, monkeypatch, tmp_path):
    """It said nothing."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    (tmp_path / "manifest.yml").write_text("name: t\nframework: {name: pytorch, command: 'true'}\n")
    monkeypatch.setattr("dlctl.service.submit.submit_variants", interrupted)
    done = run("submit", str(tmp_path / "manifest.yml"))
    assert done.exit_code == 130
    assert "the same command goes on where it was" in done.stderr
    assert "next: dlctl list" in done.stderr


FOUND = Rehearsed(
    True, 20, halted_at=6, killed_at=13, total_steps=1_900_000, step_s=0.08757523,
    samples_per_s=730.8002, checkpoint_s=12.3456, checkpoint_bytes=7 * 2**30,
    memory_bytes=3 * 2**30, start_s=15.9, restart_s=21.809,
)  # fmt: skip
NAMES = [f"['optimizer']['state']['state'][{n}]['exp_avg']" for n in range(40)]


@pytest.mark.parametrize("found", [
    FOUND,
    Rehearsed(False, 20, NAMES, largest_difference=1.25e-07, killed_at=13, halted_at=6),
])  # fmt: skip
def test_the_answer_fits_into_80_columns(found, capsys):
    costs._print(Rehearsal("t-1", FOUND, Forecast(9.0, 1, 9.0, 0.0, 2.0), 2**34))
    assert "2 h is NOT enough" in capsys.readouterr().out
    whole = Forecast(46.2, 13, 184.8, 739.2, 14 * 24.0) if found is FOUND else None
    costs._print(Rehearsal("t-1", found, whole, 2**34))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80, lines
    told = dict(line.split("  ", 1) for line in lines)
    if found is FOUND:
        assert told["restarts"].strip() == "bit for bit" and "differing" not in told
        assert "46.2 h in 13 jobs, 185 h of nodes, 739 h of GPUs" in told["training"]
        assert "14 d is enough" in told["time"]
    else:
        assert "NOT bit for bit: 40 parts of the state differ, by at most 1.25e-07" in lines[0]


@pytest.fixture
def resume(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    RecordStore().add(make_record(state=State.FAILED))
    again = make_record(attempt=2, state=State.PENDING)
    monkeypatch.setattr(lifecycle, "resume", lambda *_, **__: again)
    return partial(run, "resume", "t-1")


def test_changes_that_can_not_be_read_are_no_failure(resume, monkeypatch):
    """The job was submitted: a script that repeats what failed would be told so, and stop."""

    def lose(*_):
        raise ConnectionLost("the connection was lost")

    monkeypatch.setattr(lifecycle, "read_plan", lose)
    done = resume()
    assert done.exit_code == 0, done.exception
    assert "PENDING" in done.stdout
    assert "the connection was lost" in done.stderr


@pytest.mark.parametrize(
    ("options", "changes", "told"), [((), [], True), ((), ["a.py"], False), (["--code"], [], False)]
)
def test_that_the_same_error_comes_again_is_said(
    resume, monkeypatch, tmp_path, options, changes, told
):
    record = make_record(tmp_path)
    verdict = Path(record.job_dir, contract.verdict_file(1))
    verdict.parent.mkdir(parents=True)
    verdict.write_text(contract.to_json(contract.Verdict(
        1, "7", State.FAILED, "NameError", kind=contract.VerdictKind.USER_ERROR
    )))  # fmt: skip
    session = session_of(transport=LocalTransport())
    monkeypatch.setattr(Client, "open", lambda *_, **__: session)
    again = replace(record, attempt=2, state=State.PENDING)
    monkeypatch.setattr(lifecycle, "resume", lambda *_, **__: again)
    monkeypatch.setattr(lifecycle, "read_plan", lambda *_: plan_of())
    monkeypatch.setattr(lifecycle, "changed_since_sent", lambda *_: changes)
    done = resume(*options)
    assert done.exit_code == 0, done.exception
    assert ("ended attempt 1, and the same code runs again" in done.stderr) is told
    monkeypatch.setattr(lifecycle, "changed_since_sent", lambda *_: [f"{n}.py" for n in range(7)])
    said = resume("--learners", "3").stderr
    assert "differs from what was sent: 0.py, 1.py, 2.py, 3.py, 4.py and 2 more; the" in said
    assert "learners is now 1" in said


def test_a_site_without_anything(dlctl, local_site):
    assert dlctl("prune", "--dry-run", "--json", ok=True).json[0]["trainings"] == []
    assert dlctl("du", "local", "--json", ok=True).json["total_bytes"] == 0
    assert dlctl("adopt", "local", "--json", ok=True).json == {
        "site": "local", "added": [], "known": [], "damaged": [],
    }  # fmt: skip
    assert "nothing on local may go" in dlctl("prune", "local", "--yes", ok=True).stderr


def test_what_a_prune_refuses(dlctl, local_site):
    assert dlctl("prune", "--json").exit_code == 2
    assert dlctl("prune", "--older-than", "5x").exit_code == 2
    assert dlctl("doctor", "--deep").exit_code == 2
    assert dlctl("adopt", "nowhere").exit_code == 4


def test_a_damaged_record_is_kept_aside_by_adopt(dlctl, local_site, xdg):
    assert "`dlctl adopt SITE` finds those of a site" in dlctl("list", ok=True).stderr
    record = xdg.state / "dlctl/record.db"
    record.parent.mkdir(exist_ok=True)
    record.write_bytes(b"no database at all, but longer than the head of one: " * 10)
    broken = dlctl("list")
    assert broken.exit_code == 11 and "dlctl adopt SITE" in broken.stderr
    assert len(broken.stderr.splitlines()) == 2, "one sentence, and what to do"
    adopted = dlctl("adopt", "local", ok=True)
    (kept,) = record.parent.glob("record.db.damaged-*")
    assert f"it is kept as {kept}" in adopted.stderr
    assert dlctl("list", "--json", ok=True).json == []


@pytest.mark.parametrize(("keeps", "unused", "cached", "told"), [
    (True, [], [], "removed 4.1 kB of 2 trainings"),
    (False, [], [], "removed 4.1 kB: 2 trainings"),
    (False, ["store/a"], ["data"], "removed 4.1 kB: 2 trainings, 1 unused folder, 1 cached folder"),
])  # fmt: skip
def test_a_prune_that_keeps_trainings_does_not_call_them_removed(
    capsys, keeps, unused, cached, told
):
    """It said `removed 4.1 kB: 2 trainings, 0 unused folders`; cached data it did not count."""
    done = Pruned(["a-1", "b-2"], unused, 4100, cached=cached)
    site = Inventory("here", "/", 0.0, [], [], "")
    _print_done(Prunable(site, [], [], {}, keeps, removed=done))
    assert capsys.readouterr().out == f"here: {told}\n"


# `dlctl delete` asks, names what would be lost, and takes several ids ----------------------------


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = RecordStore()
    for name in ("one-aaaa", "two-bbbb"):
        store.add(make_record(training_id=name, state=State.COMPLETED))
    return store


@pytest.fixture
def delete(run):
    return partial(run, "delete")


def ids(store):
    return [record.training_id for record in store.all()]


def test_without_a_terminal_nothing_is_deleted_unless_told(store, delete):
    done = delete("one", "--forget")
    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert ids(store) == ["one-aaaa", "two-bbbb"]
    assert delete("one", "bbbb", "--forget", "--yes").stdout == "forgot one-aaaa\nforgot two-bbbb\n"
    assert ids(store) == []


def test_what_is_kept_of_its_metrics_goes_with_it(store, delete, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for record in store.all():
        cache.store(record, cache.Cached(1.0, {}))
    assert delete("one", "--forget", "--yes").exit_code == 0
    assert cache.load(store.find("two-bbbb")) is not None
    assert [path.name for path in cache.cache_folder().iterdir()] == ["two-bbbb.metrics"]


@pytest.mark.parametrize("ids_given", [[], [""], ["one", " "]])
def test_yes_needs_an_id(store, delete, ids_given, tmp_path, monkeypatch):
    """A script whose variable was empty deleted the newest training of its folder."""
    store.add(make_record(training_id="new-cccc", folder=str(tmp_path), state=State.COMPLETED))
    monkeypatch.chdir(tmp_path)
    done = delete(*ids_given, "--forget", "--yes")
    assert done.exit_code == 2
    assert "--yes needs the id of each training" in " ".join(done.stderr.split())
    assert sorted(ids(store)) == ["new-cccc", "one-aaaa", "two-bbbb"]


@pytest.mark.parametrize(("program", "more", "warns"), [
    ("print(1)", {}, True), ("signal.signal(signal.SIGUSR2, save)", {}, False),
    ("os.environ['CHECKPOINT_DIR']", {}, False), ("print(1)", {"epochs": 3}, False),
    ("print(1)", {"state": State.PENDING}, False), ("print(1)", {"is_search": True}, False),
])  # fmt: skip
def test_a_halt_of_a_program_that_knows_of_none_is_warned_of(tmp_path, program, more, warns):
    """It was killed in its 53rd epoch while dlctl said that it saved a checkpoint."""
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "manifest.yml").write_text("# $CHECKPOINT_DIR\n")
    known = {"state": State.TRAINING, "manifest_path": str(tmp_path / "manifest.yml")} | more
    warning = verbs._lost_by_halting([make_record(**known)])
    assert ("neither handles SIGUSR2 nor names CHECKPOINT_DIR" in warning) is warns


@pytest.mark.parametrize(("answer", "left"), [("y", ["two-bbbb"]), ("", ["one-aaaa", "two-bbbb"])])
def test_only_a_yes_deletes(store, delete, monkeypatch, answer, left):
    monkeypatch.setattr(output, "ask", lambda text, hidden: answer)
    done = delete("one", "--forget")
    assert done.exit_code == 0
    assert ids(store) == left
    assert ("nothing was deleted" in done.stderr) == (answer == "")
    assert delete("two", "--forget", "--json").exit_code == 2, "no question is asked in JSON"
    assert ids(store) == left


def test_what_was_not_fetched_is_named_before(store, delete, monkeypatch):
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
        told = delete(name).stderr
        assert name in told and said in told
        assert (fetching in told) == (name == "cut-cccc")


def test_one_that_runs_keeps_the_others_from_nothing(store, delete, monkeypatch):
    def remove(_, records, store):
        runs, gone = records
        store.remove(gone.training_id)
        return [RecordError(f"{runs.training_id} is TRAINING: it can't be deleted"), gone]

    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(lifecycle, "delete_all", remove)
    done = delete("one", "two", "-y")
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
