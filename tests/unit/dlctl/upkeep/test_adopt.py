"""A record made anew from job directories, by a machine that knows nothing."""

import contextlib
import json
import sqlite3
from dataclasses import replace

import pytest
from login_side import BadTransport, run_everything, send
from made_past import past

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.programs.verdict_rules import GO_ON
from dlctl.errors import ManifestError, RecordError
from dlctl.lifecycle import delete_all, refresh
from dlctl.lifecycle.watch import with_made
from dlctl.record import ADOPTED, RecordStore
from dlctl.record.used import known
from dlctl.request.build import prepare_again
from dlctl.upkeep.inventory import adopt, take_inventory
from dlctl.upkeep.prune import look, remove


@pytest.fixture
def other(tmp_path):
    """The record of another laptop."""
    return RecordStore(tmp_path / "other.db")


def in_file(scene, statement):
    """Do something with the record's file that dlctl doesn't do, and return the first column."""
    with contextlib.closing(sqlite3.connect(scene.store.path)) as connection, connection:
        return [row[0] for row in connection.execute(statement)]


def test_another_laptop_learns_all_in_few_calls(scene, other):
    ended = send(scene)
    run_everything(scene)
    waiting = send(scene)
    plan = scene.root / "jobs" / waiting.training_id / contract.PLAN
    known = contract.read_record(contract.Plan, plan)
    plan.write_text(contract.to_json(replace(known, tags=["sweep", "batch-1"], varied="lr=1")))
    known = refresh(scene.session, scene.store.all(), scene.store)
    mine = {each.training_id: each for each in known}
    transport = BadTransport()
    found = adopt(scene.connect(transport), other)
    assert transport.calls == 2, "the second asks for what the verdict does not say: `made`"
    assert [each.training_id for each in found.added] == [ended.training_id, waiting.training_id]
    theirs = {each.training_id: each for each in other.all()}
    assert theirs[ended.training_id].state is State.COMPLETED
    assert theirs[waiting.training_id].state is State.PENDING
    assert theirs[waiting.training_id].tags == ["sweep", "batch-1"]
    assert theirs[waiting.training_id].varied_values == {"lr": "1"}
    for training_id, record in theirs.items():
        same = ("name", "job_dir", "created_at", "attempt", "job_id", "state", "reason", "site")
        assert [getattr(record, n) for n in same] == [getattr(mine[training_id], n) for n in same]
        assert record.folder == ADOPTED
    assert refresh(scene.session, other.all(), other) == other.all()


def test_what_trainings_have_used_is_kept_by_whoever_reads_their_verdicts(scene, other, tmp_path):
    record = send(scene)
    run_everything(scene)
    path = scene.root / "jobs" / record.training_id / contract.verdict_file(1)
    verdict = contract.read_record(contract.Verdict, path)
    used = past(training_id=record.training_id)
    path.write_text(contract.to_json(replace(verdict, pasts=[used], finished_at=1e9)))
    pruning = RecordStore(tmp_path / "pruning.db")
    going = look(scene.session, pruning, 0.0)
    assert known(pruning) == [], "nothing changes before the user agrees"
    adopt(scene.session, other)
    assert known(other) == [used]
    (ended,) = refresh(scene.session, [record], scene.store)
    transport = BadTransport()
    delete_all(scene.connect(transport), [ended], scene.store)
    assert transport.calls == 2, "a look and the removal: what it used is no question"
    assert known(scene.store) == [used] and scene.store.all() == []
    remove(scene.session, pruning, going)
    assert known(pruning) == [used]


def test_what_a_training_without_a_verdict_has_made_is_looked_up(scene, other):
    """A killed node tells nobody of its output: `adopt` named none of it."""
    record = send(scene)
    run_everything(scene)
    job_dir = scene.root / "jobs" / record.training_id
    (job_dir / contract.verdict_file(1)).unlink()
    (job_dir / "code/model.pt").write_text("weights")
    (added,) = adopt(scene.session, other).added
    assert added.state is State.QUEUED, "the next command that looks at it judges it"
    assert added.made.output == [contract.OutputPlace("model.pt", 1, 7)]
    assert other.all() == [added]


def test_a_hint_of_a_training_without_checkpoints_offers_none(scene):
    record = replace(send(scene), state=State.FAILED, hint=GO_ON.format(id="t-1"))
    assert "there is no checkpoint" in with_made(scene.session, record).hint
    saved = scene.root / "jobs" / record.training_id / contract.CHECKPOINTS / "model.pt"
    saved.parent.mkdir(exist_ok=True)
    saved.write_text("weights")
    assert with_made(scene.session, record).hint == record.hint


def test_what_is_known_stays_as_it_is(scene):
    record = send(scene)
    before = scene.store.all()
    found = adopt(scene.session, scene.store)
    assert (found.added, found.known) == ([], [record.training_id])
    assert scene.store.all() == before


def test_what_is_damaged_is_named_and_left_out(scene, other):
    good = send(scene)
    jobs = scene.root / "jobs"
    half = jobs / send(scene).training_id
    (half / contract.PLAN).write_text('{"training_id": "half')
    empty = jobs / "empty-abcdefgh"
    empty.mkdir()
    moved = jobs / "moved-abcdefgh"
    moved.mkdir()
    (moved / contract.PLAN).write_bytes((jobs / good.training_id / contract.PLAN).read_bytes())
    (jobs / "a file").write_text("")
    (jobs / "odd name").mkdir()
    found = adopt(scene.session, other)
    assert [each.training_id for each in other.all()] == [good.training_id]
    told = {each.training_id: each.why for each in found.damaged}
    assert set(told) == {half.name, empty.name, moved.name}
    assert "not JSON" in told[half.name]
    assert "is missing" in told[empty.name]
    assert good.training_id in told[moved.name]


def test_a_later_attempt_and_a_scheduler_that_is_silent(scene, other):
    record = send(scene)
    here = scene.root / "jobs" / record.training_id / "attempts"
    for number in (2, 10):
        (here / str(number)).mkdir()
        (here / str(number) / "submit.begin").write_text(f"{record.training_id}.{number}\n")
    scene.scheduler.silent = True
    found = take_inventory(scene.session)
    assert "no controller" in found.queue_problem
    assert [each.attempt for each in found.records] == [10]
    assert found.records[0].stale_since is not None


def test_code_of_another_machine_is_not_rebuilt_from_here(scene, other, tmp_path):
    send(scene)
    record = adopt(scene.session, other).added[0]
    with pytest.raises(ManifestError, match="submitted from another machine"):
        prepare_again(record, scene.site)
    scene.site = scene.site.model_copy(update={"root": str(tmp_path / "nowhere")})
    assert adopt(scene.connect(BadTransport()), other).added == [], "a site without a root"


# A record that is damaged -------------------------------------------------------------------------


def test_a_damaged_record_is_told_with_the_command_and_kept(scene):
    record = send(scene)
    path = scene.store.path
    path.write_bytes(b"no database at all, but longer than the head of one: " * 10)
    with pytest.raises(RecordError, match="can't be used: file is not a database") as told:
        scene.store.all()
    assert "dlctl adopt SITE" in told.value.hint
    done = scene.store.repair()
    assert done is not None and done.saved == 0
    assert done.kept_as.read_bytes().startswith(b"no database")
    adopt(scene.session, scene.store)
    assert [each.training_id for each in scene.store.all()] == [record.training_id]
    assert scene.store.repair() is None


def test_what_can_be_read_of_a_damaged_record_is_saved(scene):
    """Trainings of other sites would otherwise be lost until each is adopted."""
    record = send(scene)
    for number in range(200):
        scene.store.add(replace(record, training_id=f"t-{number}", reason="x" * 300))
    with scene.store.path.open("r+b") as file:
        file.truncate(scene.store.path.stat().st_size * 2 // 3)
    done = scene.store.repair()
    assert done is not None and 0 < done.saved < 201
    assert len(scene.store.all()) == done.saved
    adopt(scene.session, scene.store)
    assert record.training_id in {each.training_id for each in scene.store.all()}


def test_a_record_of_a_newer_dlctl_is_neither_damaged_nor_changed(scene):
    send(scene)
    in_file(scene, "PRAGMA user_version = 99")
    assert scene.store.repair() is None
    with pytest.raises(RecordError, match="newer version"):
        adopt(scene.session, scene.store)
    assert len(scene.store.all()) == 1


def test_fields_of_a_newer_dlctl_survive_an_adoption(scene):
    """Two versions of dlctl share one record: the older one must not drop what it does not know."""
    record = send(scene)
    in_file(scene, "UPDATE trainings SET fields = json_set(fields, '$.colour', 'red')")
    adopt(scene.session, scene.store)
    refresh(scene.session, scene.store.all(), scene.store)
    scene.store.mark_fetched(scene.store.find(record.training_id))
    (fields,) = in_file(scene, "SELECT fields FROM trainings")
    assert json.loads(fields)["colour"] == "red"
