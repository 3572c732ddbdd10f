"""Halting, cancelling and deleting many trainings costs as many calls as one."""

import shutil

import pytest
from login_side import BadTransport, run_script, send

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import HasEnded, RecordError
from dlctl.lifecycle import cancel_all, delete_all, halt_all, refresh


@pytest.mark.parametrize("end", [halt_all, cancel_all])
def test_several_that_wait_are_ended_in_as_many_calls_as_one(scene, end):
    calls = []
    for count in (1, 4):
        records = [send(scene) for _ in range(count)]
        transport = BadTransport()
        after = end(scene.connect(transport), records, scene.store)
        calls.append(transport.calls)
        wanted = State.HALTED if end is halt_all else State.CANCELLED
        assert [each.state for each in after] == [wanted] * count
    assert calls[0] == calls[1] <= 5
    assert {state for _, state in scene.scheduler.jobs().values()} == {"CANCELLED"}


def test_those_that_cannot_be_ended_leave_the_others_alone(scene):
    ended, deleted, waits = (send(scene) for _ in range(3))
    assert scene.start(run_script, 1).returncode == 0
    shutil.rmtree(deleted.job_dir)
    first, second, third = cancel_all(scene.session, [ended, deleted, waits], scene.store)
    assert isinstance(first, HasEnded)
    assert f"there is nothing to cancel: {ended.training_id} is COMPLETED" in str(first)
    assert second.training_id == deleted.training_id
    assert (third.training_id, third.state) == (waits.training_id, State.CANCELLED)


def test_several_are_deleted_in_as_many_calls_as_one(scene):
    calls = []
    for count in (1, 3):
        records = [send(scene) for _ in range(count)]
        cancel_all(scene.session, records, scene.store)
        transport = BadTransport()
        after = delete_all(scene.connect(transport), records, scene.store)
        calls.append(transport.calls)
        assert [each.training_id for each in after] == [each.training_id for each in records]
    assert calls[0] == calls[1] <= 3
    assert scene.store.all() == []
    assert not list((scene.root / "jobs").iterdir())


def test_one_that_runs_is_not_deleted_and_the_others_are(scene):
    waits, gone = send(scene), send(scene)
    cancel_all(scene.session, [gone], scene.store)
    refused, done = delete_all(scene.session, [waits, gone], scene.store)
    assert isinstance(refused, RecordError)
    assert "can't be deleted while it runs" in str(refused)
    assert done.training_id == gone.training_id
    assert [each.training_id for each in scene.store.all()] == [waits.training_id]


def test_a_request_stands_where_the_job_reads_it(scene):
    record = send(scene)
    scene.scheduler.set_state(1, "RUNNING")
    (after,) = halt_all(scene.session, [record], scene.store)
    request = scene.root / "jobs" / record.training_id / contract.HALT_REQUEST
    assert request.read_text() == f"{contract.HALT_REQUEST}\n"
    assert [path.name for path in request.parent.iterdir()] == [request.name]
    assert not after.state.final
    assert refresh(scene.session, [record], scene.store)[0].state is after.state
