"""A submission happens once, wherever it is cut off; halt, cancel, resume, delete agree with it."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from login_side import (
    BadTransport,
    Overtaken,
    cancel,
    fail_newest,
    go_on,
    halt,
    look,
    run_everything,
    run_script,
    send,
    send_lost,
)

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RecordError, SubmitRejected, SubmitUnknown, TransportError
from dlctl.lifecycle import delete, refresh, submit
from dlctl.lifecycle.many import ask_all
from dlctl.record import RecordStore, file
from dlctl.transport.streams import SessionRefused
from learner.system.segments import segment_folder


def assert_completed(scene):
    """Run every job of the queue: one of them has trained."""
    run_everything(scene)
    assert look(scene).state is State.COMPLETED
    assert len(scene.ran()) == 1


def test_very_many_trainings_cost_one_script_and_one_transaction(scene, monkeypatch):
    record = send(scene)
    many = [replace(record, training_id=f"t-{n}", job_id="") for n in range(300)]
    for each in many:
        scene.store.add(each)
    written = []
    monkeypatch.setattr(file, "_change", lambda *change: written.append(change))
    transport = BadTransport()
    refresh(scene.connect(transport), many, scene.store)
    assert (transport.calls, len(written)) == (1, 1)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", [1, 2, 3])
def test_a_submission_that_was_cut_off_runs_once(scene, call, when):
    with pytest.raises((TransportError, SubmitUnknown)):
        send(scene, BadTransport(call, when))
    if not scene.store.all():  # nothing was done yet, and no trace is left
        assert (call, scene.scheduler.jobs()) == (1, {})
        return
    if (call, when) == (2, "before"):  # one that never arrived can be deleted
        delete(scene.session, scene.store.all()[0], scene.store)
        assert scene.store.all() == []
        return
    known = look(scene)
    assert known.state in (State.QUEUED, State.PENDING)
    if known.state is State.QUEUED:
        assert f"dlctl resume {known.training_id}" in known.hint
        go_on(scene)
    assert_completed(scene)
    with pytest.raises(RecordError, match="nothing to resume: .* is COMPLETED"):
        go_on(scene)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_resumption_that_was_cut_off_runs_once(scene, call, when):
    with pytest.raises(SubmitUnknown):
        send(scene, BadTransport(3, "before"))
    cut = BadTransport(call, when)
    try:
        go_on(scene, cut)
    except DlctlError:
        if look(scene).state is State.QUEUED:
            go_on(scene)
    assert cut.calls >= call
    assert_completed(scene)


def test_a_submission_without_a_session_was_not_heard(scene, monkeypatch):
    """It was told as one whose answer was lost."""

    def refuse():
        raise SessionRefused("no further session")

    def no_session():  # another command has the only one when the scheduler is to be asked
        return Overtaken(refuse, "submit.begin", "set -C")

    monkeypatch.setattr("dlctl.transport.streams._FREE_S", 0.0)
    with pytest.raises(SessionRefused):
        send(scene, no_session())
    (record,) = scene.store.all()
    assert record.reason == "the submission was interrupted: no further session"
    request = scene.request(record.training_id)
    answers = ask_all(scene.connect(no_session()), [request.plan], [record], scene.store)
    assert [type(each) for each in answers] == [SessionRefused]
    assert look(scene).reason == "the submission was interrupted: no further session"
    assert go_on(scene).state is State.PENDING
    assert_completed(scene)


@pytest.mark.parametrize(("verb", "state"), [(halt, State.HALTED), (cancel, State.CANCELLED)])
@pytest.mark.parametrize(("call", "when"), [(2, "before"), (2, "after"), (3, "before")])
def test_an_interrupted_submission_is_ended_and_taken_up_again(scene, verb, state, call, when):
    with pytest.raises(DlctlError):
        send(scene, BadTransport(call, when))
    assert verb(scene.session, scene.store.all()[0], scene.store).state is state
    assert look(scene).state is state
    go_on(scene)
    assert_completed(scene)


def test_cancel_ends_the_job_that_started_meanwhile(scene):
    send_lost(scene)
    folder = scene.root / "jobs" / scene.store.all()[0].training_id / "attempts/1"
    hidden = (scene.scheduler.folder / "queue/1").rename(scene.root / "hidden")

    def start():  # after the look, before the fence
        (folder / "job_id").write_text("1\n")
        hidden.rename(scene.scheduler.folder / "queue/1")
        scene.scheduler.set_state(1, "RUNNING")

    starts = scene.connect(Overtaken(start, contract.NOBODY))
    record = cancel(starts, scene.store.all()[0], scene.store)
    assert scene.scheduler.jobs()[1][1] == "CANCELLED"
    assert record.state is State.CANCELLED


def test_a_silent_queue_is_stale(scene):
    send(scene)
    scene.scheduler.silent = True
    known = look(scene)
    assert (known.state, known.stale_since is None) == (State.PENDING, False)
    scene.scheduler.silent = False
    assert look(scene).stale_since is None


def test_an_id_that_was_used_again_is_not_ours(scene):
    record = send(scene)
    (scene.scheduler.folder / "names/1").write_text("somebody-elses.1")
    scene.scheduler.set_state(1, "RUNNING")
    assert look(scene).state is State.PENDING  # just submitted: not believed yet
    assert record.job_id == "1"


def test_delete_frees_what_killed_learners_left_in_shared_memory(scene):
    """No later attempt would; and a node has no more of it than memory."""
    record = send(scene)
    run_everything(scene)
    left = [segment_folder(record.training_id, attempt) for attempt in (1, 12)]
    others = segment_folder(f"{record.training_id}x", 1)
    try:
        for folder in [*left, others]:
            folder.mkdir(mode=0o700)
            (folder / "shard-0").touch()
        delete(scene.session, record, scene.store)
        assert [folder.exists() for folder in [*left, others]] == [False, False, True]
    finally:
        for folder in [*left, others]:
            shutil.rmtree(folder, ignore_errors=True)


def test_what_cannot_be_resumed_says_why(scene, monkeypatch):
    request = scene.request()
    plan = replace(request.plan, rehearsal=contract.Rehearsal(20))
    record = submit(scene.session, replace(request, plan=plan), scene.store)
    assert (record.folder, record.manifest_path) == ("", ""), "it is no training of a folder"
    with pytest.raises(RecordError, match="is a rehearsal"):
        go_on(scene)
    scene.store.remove(record.training_id)
    reason = "is being halted: saving a checkpoint"  # right after `dlctl halt`
    saves = replace(send(scene), state=State.TRAINING, reason=reason)
    monkeypatch.setattr("dlctl.lifecycle.resumption.refresh", lambda *_: [saves])
    with pytest.raises(RecordError, match="is TRAINING: is being halted: saving a checkpoint\n"):
        go_on(scene)


def test_two_resume_at_once_and_one_job_is_made(scene):
    send(scene)
    fail_newest(scene)
    beside = Overtaken(lambda: go_on(scene), "submit.begin", "set -C")
    assert go_on(scene, beside).attempt == 2
    assert_completed(scene)


def test_a_home_that_is_behind_follows_to_the_newest_attempt(scene, tmp_path):
    """Another dlctl has resumed it, and it has ended since."""
    send(scene)
    scene.scheduler.set_state(1, "NODE_FAIL")
    behind = look(scene)
    assert go_on(scene).attempt == 2
    run_everything(scene)
    assert look(scene).state is State.COMPLETED
    scene.store = RecordStore(tmp_path / "other.db")
    scene.store.add(behind)
    record = look(scene)
    assert (record.attempt, record.state, record.job_id) == (2, State.COMPLETED, "2")
    assert len(scene.ran()) == 1


def test_a_job_directory_that_can_t_be_written_stops_neither_cancel_nor_halt(scene):
    """On a full disk both failed, and the job went on."""
    record = send(scene)
    control = Path(record.job_dir, contract.CONTROL)
    control.rmdir()
    control.write_text("a file, where nothing can be created")
    scene.scheduler.set_state(1, "RUNNING")
    halt(scene.session, look(scene), scene.store)
    assert (scene.scheduler.folder / "signalled-1").exists()
    assert cancel(scene.session, record, scene.store).state is State.CANCELLED
    assert scene.scheduler.jobs()[1][1] == "CANCELLED"


def test_an_answer_that_can_not_be_written_down_at_the_site_is_told_all_the_same(scene):
    """On a full disk a job that was queued was told as "can't prepare the job directory"."""
    record = send(scene)
    fail_newest(scene)
    in_the_way = Path(record.job_dir, contract.submit_answer(2) + ".tmp")
    in_the_way.mkdir(parents=True)
    again = go_on(scene)
    assert (again.attempt, again.job_id, again.state) == (2, "2", State.PENDING)
    assert not list(in_the_way.parent.glob(".out"))
    assert look(scene).job_id == "2"


def test_output_that_a_verdict_could_not_tell_is_looked_up_without_the_queue(scene):
    """Of many files the node may have had no time to look at all."""
    record = send(scene)
    run_everything(scene)
    (scene.root / "jobs" / record.training_id / "code/model.pt").write_text("weights")
    silent = SimpleNamespace(asks=lambda *_: False, renews=lambda: False)
    (seen,) = refresh(scene.session, [record], scene.store, silent)
    assert seen.state is State.COMPLETED
    assert seen.made.output == [contract.OutputPlace("model.pt", 1, 7)]


@pytest.mark.parametrize("transport", [None, BadTransport(3, "after")])
def test_a_refusal_is_failed_whoever_reads_it_and_can_be_sent_again(scene, transport):
    scene.scheduler.mode("reject")
    with pytest.raises(SubmitUnknown if transport else SubmitRejected):
        send(scene, transport)
    known = look(scene)
    assert (known.state, known.hint) == (State.FAILED, "ask for another")
    assert "no such partition" in known.reason
    scene.scheduler.mode("")
    assert go_on(scene).attempt == 2
    assert_completed(scene)


def test_cancelled_while_it_is_sent_is_never_submitted(scene):
    sends = Overtaken(lambda: cancel(scene.session, scene.store.all()[0], scene.store), "tar -x")
    assert send(scene, sends).state is State.CANCELLED
    assert scene.scheduler.jobs() == {}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_job_taken_for_lost_or_ended_never_runs_beside_its_successor(scene, is_lost):
    """Slurm runs a job again that a node failed, or forgets that it was cancelled."""
    if is_lost:
        send_lost(scene)
        scene.scheduler.forget(1)  # the controller hangs: it is not listed
    else:
        halt(scene.session, send(scene), scene.store)
    second = go_on(scene)
    late = run_script(scene.root / "jobs" / second.training_id / "job.sbatch", "1", 99)
    assert (late.returncode, "nothing to do" in late.stdout) == (0, True)
    run_everything(scene)
    assert scene.ran() == [f"{second.training_id} 2"]
