"""`dlctl prune` removes what may go, and nothing that anybody may be using at that moment."""

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from login_side import BadTransport, Scene, cancel, run_everything, send

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.stores import CachedData
from dlctl.data import SiteCache
from dlctl.errors import DlctlError, RecordError
from dlctl.files.site_folders import all_damaged, damaged
from dlctl.lifecycle import delete, refresh, resume, submit
from dlctl.record import RecordStore
from dlctl.transport.local import LocalTransport
from dlctl.upkeep.inventory import adopt, take_inventory
from dlctl.upkeep.prune import look, remove

DAY_S = 86400
ANY = -2
"""Whatever has ended: a site's clock counts whole seconds."""


def completed(scene):
    record = send(scene)
    run_everything(scene)
    return refresh(scene.session, [record], scene.store)[0]


def halted(scene):
    record = send(scene)
    cancel(scene.session, record, scene.store)
    return refresh(scene.session, [record], scene.store)[0]


def job(scene, record):
    return scene.root / "jobs" / record.training_id


def age(*folders):
    """Nobody has asked for these in the last day."""
    then = time.time() - 3 * DAY_S
    for folder in folders:
        os.utime(folder, (then, then))


def shared(scene):
    return [*(scene.root / "runtime").iterdir(), *(scene.root / "store").iterdir()]


def prune_now(scene, **how):
    return remove(scene.session, scene.store, look(scene.session, scene.store, ANY, **how))


def leave_unused(scene):
    """Leave what a training that is gone has shared, and nobody has asked for since."""
    completed(scene)
    prune_now(scene)
    age(*shared(scene))
    return look(scene.session, scene.store, ANY)


# Trainings ----------------------------------------------------------------------------------------


def test_what_has_ended_goes_and_what_waits_or_runs_stays(scene):
    ended, waiting = completed(scene), send(scene)
    scene.scheduler.set_state(2, "RUNNING")
    unasked = Path(scene.root, "jobs", "sent-abcdefgh")  # nobody has asked the scheduler yet
    unasked.mkdir()
    going = look(scene.session, scene.store, ANY)
    assert [each.record.training_id for each in going.trainings] == [ended.training_id]
    assert going.size_bytes > 0
    transport = BadTransport()
    done = remove(scene.connect(transport), scene.store, going)
    assert transport.calls == 1
    assert done.trainings == [ended.training_id]
    assert done.freed_bytes == going.size_bytes
    assert not job(scene, ended).exists()
    assert job(scene, waiting).exists() and unasked.exists()
    assert [each.training_id for each in scene.store.all()] == [waiting.training_id]


def test_only_what_ended_long_ago_goes_and_a_silent_scheduler_ends_nothing(scene):
    record = completed(scene)
    verdict = job(scene, record) / contract.verdict_file(1)
    assert look(scene.session, scene.store, 30 * DAY_S).trainings == []
    verdict.write_text(
        verdict.read_text().replace("}", f', "finished_at": {time.time() - 40 * DAY_S}}}')
    )  # noqa: E501
    assert len(look(scene.session, scene.store, 30 * DAY_S).trainings) == 1
    assert look(scene.session, scene.store, 50 * DAY_S).trainings == []
    prune_now(scene)
    send(scene)
    scene.scheduler.silent = True
    assert look(scene.session, scene.store, ANY).trainings == []


def test_a_training_that_goes_on_or_may_go_on_stays(scene):
    record = completed(scene)
    action = contract.Action(contract.Next.RETRY, "a node was lost", 2, "job", time.time() + 500)
    verdict = contract.Verdict(1, "1", State.FAILED, "A node was lost.", action=action)
    (job(scene, record) / contract.verdict_file(1)).write_text(contract.to_json(verdict))
    assert [r.state for r in take_inventory(scene.session).records] == [State.QUEUED]
    assert look(scene.session, scene.store, ANY).trainings == []
    # Without a word the next dlctl that looks begins another attempt: `dlctl.lifecycle.watch`.
    (job(scene, record) / contract.verdict_file(1)).unlink()
    scene.scheduler.set_state(1, "NODE_FAIL")
    known = take_inventory(scene.session).records[0]
    assert known.state is State.QUEUED and "next dlctl command" in known.reason
    assert look(scene.session, scene.store, ANY).trainings == []


def test_results_stay_if_asked(scene):
    record = completed(scene)
    here = job(scene, record)
    for name in ("checkpoints/step-1/share", "attempts/1/results/model.pt", "state/x", "logs/y"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("x" * 10_000)
    done = prune_now(scene, keep_results=True)
    assert done.trainings == [record.training_id] and done.freed_bytes >= 10_000
    assert not (here / "checkpoints").exists() and not (here / "state").exists()
    assert (here / "attempts/1/results/model.pt").exists() and (here / "logs/y").exists()
    assert scene.store.all()[0].state is State.COMPLETED
    assert refresh(scene.session, scene.store.all(), scene.store)[0].state is State.COMPLETED
    assert not look(scene.session, scene.store, ANY, keep_results=True)


def test_what_another_laptop_submitted_goes_as_well(scene, tmp_path):
    record = completed(scene)
    other = RecordStore(tmp_path / "other.db")
    done = remove(scene.session, other, look(scene.session, other, ANY))
    assert done.trainings == [record.training_id]
    known = refresh(scene.session, scene.store.all(), scene.store)[0]
    assert known.state is State.COMPLETED and "gone from the site" in known.reason
    going = look(scene.session, scene.store, ANY)
    assert [each.training_id for each in going.forgotten] == [record.training_id]
    remove(scene.session, scene.store, going)
    assert scene.store.all() == []


def test_a_root_that_is_not_mounted_makes_nothing_forgotten(scene, tmp_path):
    completed(scene)
    scene.root.rename(tmp_path / "elsewhere")
    assert not look(scene.session, scene.store, ANY)
    scene.root.mkdir()
    assert not look(scene.session, scene.store, ANY)


# Somebody else at the same time -------------------------------------------------------------------


def go_on(scene):
    record = scene.store.all()[0]
    return resume(scene.session, record, scene.store, lambda r: scene.request(r.training_id))


@pytest.mark.parametrize("keep_results", [False, True])
def test_a_training_that_was_resumed_after_the_look_stays(scene, keep_results):
    record = halted(scene)
    share = job(scene, record) / "checkpoints/step-1/share"
    share.parent.mkdir(parents=True)
    share.write_text("x" * 10_000)
    going = look(scene.session, scene.store, ANY, keep_results=keep_results)
    assert [each.record.training_id for each in going.trainings] == [record.training_id]
    again = go_on(scene)
    assert again.attempt == 2
    done = remove(scene.session, scene.store, going)
    assert done.trainings == [] and "attempt 2" in done.stays[record.training_id]
    assert scene.store.all()[0].attempt == 2 and share.exists()
    run_everything(scene)
    assert refresh(scene.session, [again], scene.store)[0].state is State.COMPLETED


@pytest.mark.slow
def test_a_resumption_and_a_prune_at_the_same_time_leave_all_or_nothing(scene):
    """Real processes side by side: a job never runs without its directory."""
    for _ in range(8):
        record = halted(scene)
        going = look(scene.session, scene.store, ANY)
        mine = scene.connect(LocalTransport())
        with ThreadPoolExecutor(1) as pool:
            resuming = pool.submit(resume, mine, record, scene.store,
                                   lambda r: scene.request(r.training_id))  # fmt: skip
            done = remove(scene.connect(LocalTransport()), scene.store, going)
        if record.training_id in done.trainings:
            assert isinstance(resuming.exception(), DlctlError)
            assert not job(scene, record).exists()
        else:
            assert resuming.result().attempt == 2 and job(scene, record).is_dir()
        assert not list((scene.root / "jobs").glob(".dlctl-prune*"))
        prune_now(scene)


def test_a_resumption_that_a_prune_overtakes_says_so(scene):
    """Its script has found the job directory, which a prune moves aside at this moment."""
    record = halted(scene)
    here, aside = job(scene, record), scene.root / "jobs/.dlctl-prune.1.x"
    fence = aside / "attempts/2/submit.begin"
    prune_now = f"mv {here} {aside}; : >{fence}"

    class Overtaken(LocalTransport):
        def start(self, script, **more):
            if "the training was deleted" in script:
                script = script.replace("\nif [ ! -s ", f"\n{prune_now}\nif [ ! -s ", 1)
            return super().start(script, **more)

    session = scene.connect(Overtaken())
    with pytest.raises(RecordError, match="was deleted meanwhile"):
        resume(session, record, scene.store, lambda r: scene.request(r.training_id))
    assert fence.exists() and not here.exists()


def test_a_training_that_is_resumed_while_it_is_deleted_stays_whole(scene):
    record = halted(scene)
    before = sorted(job(scene, record).rglob("*"))
    begun = job(scene, record) / "attempts/2/submit.begin"

    class Overtaken(LocalTransport):
        def start(self, script, **more):
            if "remove_training" in script:
                begun.parent.mkdir(parents=True)
                begun.write_text("now\n")
            return super().start(script, **more)

    with pytest.raises(RecordError, match="was submitted meanwhile"):
        delete(scene.connect(Overtaken()), record, scene.store)
    assert begun.exists() and set(before) <= set(job(scene, record).rglob("*"))
    assert scene.store.find(record.training_id) and not list(scene.root.glob("jobs/.dlctl-*"))


def test_two_prunes_at_once_remove_all_once(scene, tmp_path):
    records = [completed(scene) for _ in range(6)]
    stores = [scene.store, RecordStore(tmp_path / "other.db")]
    adopt(scene.session, stores[1])
    goings = [look(scene.session, store, ANY) for store in stores]
    sessions = [scene.connect(LocalTransport()) for _ in stores]
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(remove, sessions, stores, goings))
    assert all(done.stays == {} for done in found)
    assert not any(job(scene, record).exists() for record in records)
    assert [store.all() for store in stores] == [[], []]
    assert not list((scene.root / "jobs").glob(".*"))


@pytest.mark.parametrize("fenced", [True, False])
def test_a_prune_that_was_killed_is_finished_or_undone_by_the_next(scene, fenced):
    record = completed(scene)
    aside = scene.root / "jobs" / f".dlctl-prune.0123.{record.training_id}"
    job(scene, record).rename(aside)
    if fenced:
        (aside / "attempts/2").mkdir()
        (aside / "attempts/2/submit.begin").touch()
    age(aside)
    remove(scene.session, scene.store, look(scene.session, scene.store, 10 * DAY_S))
    assert not aside.exists()
    assert job(scene, record).exists() is not fenced


# What trainings share -----------------------------------------------------------------------------


def test_what_no_training_names_goes_a_day_after_the_last_question(scene):
    completed(scene)
    assert look(scene.session, scene.store, ANY).unused == {}
    prune_now(scene)
    assert len(shared(scene)) == 2
    assert look(scene.session, scene.store, ANY).unused == {}  # asked for today
    age(*shared(scene))
    own = scene.root / "store" / "my own folder"
    own.mkdir()
    age(own)
    done = prune_now(scene)
    assert len(done.unused) == 2
    assert shared(scene) == [own]


def test_what_any_attempt_names_stays(scene):
    record = completed(scene)
    unknown = scene.root / "runtime" / "0123456789abcdef"
    unknown.mkdir()
    plan = (job(scene, record) / contract.PLAN).read_text()
    (job(scene, record) / "attempts/2").mkdir()
    runtime = next(path.name for path in shared(scene) if path != unknown)
    (job(scene, record) / "attempts/2" / contract.PLAN).write_text(
        plan.replace(runtime, unknown.name))  # fmt: skip
    age(*shared(scene))
    assert look(scene.session, scene.store, 10 * DAY_S).unused == {}


def test_a_damaged_training_keeps_all_that_trainings_share(scene):
    (job(scene, completed(scene)) / contract.PLAN).write_text("{")
    age(*shared(scene))
    going = look(scene.session, scene.store, 10 * DAY_S)
    assert going.unused == {} and len(going.inventory.damaged) == 1


def test_a_check_of_a_site_does_not_count_as_a_question(scene):
    leave_unused(scene)
    assert all_damaged(scene.session.transport, str(scene.root)) == []
    assert len(look(scene.session, scene.store, ANY).unused) == 2


def test_a_submission_after_the_look_keeps_what_it_uses(scene):
    going = leave_unused(scene)
    assert len(going.unused) == 2
    record = send(scene)
    done = remove(scene.session, scene.store, going)
    assert done.unused == [] and len(shared(scene)) == 2
    run_everything(scene)
    assert refresh(scene.session, [record], scene.store)[0].state is State.COMPLETED


def test_a_submission_that_has_only_asked_keeps_what_it_will_use(scene):
    """Between its look and its job directory no plan names the runtime."""
    going = leave_unused(scene)
    names = [f"{path.parent.name}/{path.name}" for path in shared(scene)]
    assert damaged(scene.session.transport, str(scene.root), names) == set()
    assert remove(scene.session, scene.store, going).unused == []
    assert len(shared(scene)) == 2


@pytest.mark.slow
def test_submissions_and_prunes_at_the_same_time(scene):
    """Real processes side by side: whatever the order, what a job needs is whole."""
    completed(scene)
    prune_now(scene)
    stop, aged, at_work = threading.Event(), threading.Event(), threading.Lock()

    def prunes():
        session, store = scene.connect(LocalTransport()), scene.store
        while not stop.is_set():
            with at_work:  # what a submission has asked for does not get older meanwhile
                age(*(folder for folder in shared(scene) if not folder.name.startswith(".")))
            aged.set()
            remove(session, store, look(session, store, 10 * DAY_S))

    records = []
    with ThreadPoolExecutor(1) as pool:
        pruning = pool.submit(prunes)
        try:
            for _ in range(12):
                assert aged.wait(60)
                aged.clear()
                with at_work:
                    mine = scene.connect(LocalTransport())
                    records.append(submit(mine, scene.request(), scene.store))
        finally:
            stop.set()
        pruning.result()
    names = [f"{path.parent.name}/{path.name}" for path in shared(scene)]
    assert len(names) == 2
    assert damaged(scene.session.transport, str(scene.root), names) == set()
    run_everything(scene)
    known = refresh(scene.session, records, scene.store)
    assert {each.state for each in known} == {State.COMPLETED}


def test_a_prune_that_was_killed_gives_back_what_a_plan_names(scene):
    completed(scene)
    runtime = next((scene.root / "runtime").iterdir())
    aside = runtime.with_name(f".dlctl-prune.{runtime.name}")
    runtime.rename(aside)
    age(aside)
    remove(scene.session, scene.store, look(scene.session, scene.store, 10 * DAY_S))
    assert runtime.is_dir() and not aside.exists()


def test_data_that_was_used_just_now_stays_whatever_was_asked(scene, monkeypatch):
    """Another node may not see yet that a training has begun to use it."""
    completed(scene)
    (scene.root / "cache/x").mkdir(parents=True)
    (scene.root / "cache/x/data").write_text("1" * 5000)
    used = [CachedData("e", f"used {ago_s} s ago", 1, 5000, time.time() - ago_s, [])
            for ago_s in (10, 3600)]  # fmt: skip
    asked = []

    def held(session, keep_bytes=None, unused_s=0.0):
        asked.append(unused_s)
        return SiteCache(used, used[1:], 5000)

    monkeypatch.setattr("dlctl.upkeep.prune.look_into_cache", held)
    going = look(scene.session, scene.store, 1)
    assert [each.container for each in going.cached] == ["used 3600 s ago"]
    remove(scene.session, scene.store, going)
    assert asked == [0.0, 60.0]


# A full disk --------------------------------------------------------------------------------------


def test_a_full_disk_is_emptied(small_disk, tmp_path):
    """To claim the next attempt by a file would need the room that there is none of."""
    small = small_disk("nr_inodes=2000")
    scene = Scene(tmp_path, root=small)
    records = [completed(scene), completed(scene)]
    going = look(scene.session, scene.store, ANY)
    number = 0
    with contextlib.suppress(OSError):
        while True:
            (small / f"fill-{number}").touch()
            number += 1
    with pytest.raises(OSError, match="No space left"):
        (small / "one more").mkdir()
    done = remove(scene.session, scene.store, going)
    assert set(done.trainings) == {record.training_id for record in records} and not done.stays
    assert list((small / "jobs").iterdir()) == []
