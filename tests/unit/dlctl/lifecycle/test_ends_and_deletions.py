"""Ends and deletions: of many in as many calls as of one, and while somebody else deletes."""

import contextlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from login_side import (
    BadTransport,
    cancel,
    halt,
    look,
    make_record,
    run_everything,
    run_script,
    send,
)
from unprivileged import unprivileged

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, HasEnded, RecordError, TransferError
from dlctl.lifecycle import cancel_all, delete, delete_all, halt_all, refresh, resume
from dlctl.lifecycle.end import unless_deleted
from dlctl.lifecycle.orders import give_order, parse_settings
from dlctl.lifecycle.watch import closed_statuses, learner_statuses, read_plan
from dlctl.outputs.insight import read_training_files
from dlctl.script_templates import render_script
from dlctl.transport.local import LocalTransport


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


def test_settings_are_numbers():
    assert parse_settings(["learning_rate=0.01", "batch_size=64", "momentum=0"]) == {
        "lr": 0.01, "batch_size": 64.0, "momentum": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(("word", "kind"), [
    ("momentum=-1", "a number from 0 on"), ("lr=x", "a number from 0 on"),
    ("batch_size=2.5", "a whole number above 0"), ("clip_gradient_norm=0", "a number above 0"),
])  # fmt: skip
def test_a_hint_names_which_settings_are_allowed(word, kind):
    """0 is, for a learning rate, a momentum and a decay; the hint asked for more than 0."""
    with pytest.raises(RecordError, match="is not allowed") as refused:
        parse_settings([word])
    assert refused.value.hint.endswith(kind)


# A training that somebody else deletes, at each call of a command that changes it -----------------


class OvertakenAt(LocalTransport):
    """Does something before one of its calls."""

    def __init__(self, call, action):
        super().__init__()
        self.left, self.action = call, action

    def start(self, script, **how):
        self.left -= 1
        if self.left == 0:
            self.action()
        return super().start(script, **how)


def each_call(scene, act, prepare, between):
    """Yield, for each call that `act` makes, the training and what `act` came to."""
    for call in itertools.count(1):
        record = prepare(scene)
        transport = OvertakenAt(call, lambda record=record: between(scene, record))
        try:
            answer = act(scene, scene.connect(transport), record)
        except DlctlError as error:
            answer = error
        if transport.left > 0:
            assert call > 2
            return
        yield record, answer


def go_on(scene, session, record):
    return resume(session, record, scene.store, lambda r: scene.request(r.training_id))


def halted(scene):
    record = send(scene)
    cancel(scene.session, record, scene.store)
    return refresh(scene.session, [record], scene.store)[0]


def end_and_delete(scene, record):
    """As another laptop does, after the training has ended."""
    with contextlib.suppress(HasEnded):
        cancel(scene.session, record, scene.store)
    delete(scene.session, record, scene.store)


def test_a_folder_of_mode_0_leaves_no_half_of_a_training(tmp_path):
    """The removal was refused, and most of the files were gone."""
    for name in ("results/a", "results/closed/inner/b", "code/c"):
        (tmp_path / "jobs/t-1" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "jobs/t-1" / name).write_text("1")
    functions = render_script("login/remove_training.sh.j2", token="1")
    with unprivileged(tmp_path) as root:
        for name in ("inner", ""):
            (root / "jobs/t-1/results/closed" / name).chmod(0)
        end = LocalTransport().run(f"{functions}\ncd {root}\nremove_training t-1 2")
        assert (end.text, end.error_text) == ("gone t-1\n", "")
        assert [*(root / "jobs").iterdir()] == []


def test_what_was_never_sent_is_not_called_deleted(scene):
    record = make_record(
        job_dir=str(scene.root / "jobs/t-1"),
        state=State.QUEUED,
        reason="the submission was interrupted: a file changed",
    )
    with (
        pytest.raises(RecordError, match="t-1 was never sent: the submission") as told,
        unless_deleted(scene.session.transport, record),
    ):
        raise TransferError("there is no such folder")
    assert "`dlctl resume t-1` sends it" in told.value.hint


@pytest.mark.slow
def test_a_resumption_that_a_delete_overtakes_says_that_and_leaves_nothing(scene):
    said = set()
    for record, answer in each_call(scene, go_on, halted, delete_if_it_can):
        if isinstance(answer, DlctlError):
            said.add(answer.message.replace(record.training_id, "ID"))
            assert not [*(scene.root / "jobs").iterdir()] and scene.store.all() == []
        else:
            assert answer.attempt == 2
            run_everything(scene)
            assert look(scene).state is State.COMPLETED
            delete(scene.session, scene.store.find(record.training_id), scene.store)
    jobs = scene.root / "jobs/ID"
    assert said == {f"ID was deleted meanwhile: this machine has no {jobs} any more"}


def delete_if_it_can(scene, record):
    try:
        delete(scene.session, record, scene.store)
    except RecordError as error:
        assert "it can't be deleted while it runs" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("act", [
    lambda scene, session, record: halt(session, record, scene.store),
    lambda scene, session, record: cancel(session, record, scene.store),
    lambda scene, session, record: give_order(session, record, scene.store, {"lr": 0.1}),
])  # fmt: skip
def test_no_order_makes_the_folder_of_a_deleted_training_anew(scene, act):
    for _ in each_call(scene, act, send, end_and_delete):
        assert not [*(scene.root / "jobs").iterdir()]


@pytest.mark.parametrize(("blamed", "states"), [
    (contract.Evidence("learner", 1), [State.CANCELLED, State.FAILED]),
    (contract.Evidence(scheduler_state="NODE_FAIL"), [State.CANCELLED, State.CANCELLED]),
])  # fmt: skip
def test_of_several_learners_the_one_to_blame_has_failed(scene, blamed, states):
    record = replace(send(scene), state=State.FAILED)
    ran = [contract.Status("learner", rank, 1, State.TRAINING) for rank in (0, 1)]
    verdict = contract.Verdict(1, "7", State.FAILED, "why", evidence=blamed)
    assert [each.state for each in closed_statuses(record, ran, verdict)] == states
    alone = contract.Verdict(1, "7", State.FAILED, "why", evidence=contract.Evidence())
    assert closed_statuses(record, ran[:1], alone)[0].state is State.FAILED


@pytest.mark.parametrize("word", ["NODE_FAIL", "CANCELLED by 1000", "PENDING"])
def test_no_learner_of_a_training_that_has_ended_trains_on(scene, word):
    """Whoever reads it: the supervisor was killed, and nobody is left to correct the status."""
    record = send(scene)
    status = contract.Status("learner", 0, 1, State.TRAINING, host="n1")
    path = Path(record.job_dir, contract.status_file(1, "learner", 0))
    path.parent.mkdir(parents=True)
    contract.write_whole(path, contract.to_json(status))
    scene.scheduler.set_state(len(scene.scheduler.jobs()), word)
    known = look(scene)
    plan = read_plan(scene.session, known)
    seen = [*read_training_files(scene.session, known).learners,
            *learner_statuses(scene.session, known, plan)]  # fmt: skip
    expected = {"NODE_FAIL": State.FAILED, "PENDING": State.TRAINING}.get(word, State.CANCELLED)
    assert [each.state for each in seen] == [expected] * 2
