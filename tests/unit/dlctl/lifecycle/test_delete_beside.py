"""A training that somebody else deletes, at each call of a command that changes it."""

import contextlib
import itertools

import pytest
from login_side import Scene, look, run_everything, send
from unprivileged import unprivileged

from dlctl.contract import State
from dlctl.errors import DlctlError, HasEnded, RecordError
from dlctl.lifecycle import cancel, delete, halt, refresh, resume
from dlctl.lifecycle.orders import give_order
from dlctl.script_templates import render_script
from dlctl.transport.local import LocalTransport


class Overtaken(LocalTransport):
    """Does something before one of its calls."""

    def __init__(self, call, action):
        super().__init__()
        self.left, self.action = call, action

    def start(self, script, **how):
        self.left -= 1
        if self.left == 0:
            self.action()
        return super().start(script, **how)


@pytest.fixture
def scene(tmp_path, small_runtime):
    return Scene(tmp_path)


def each_call(scene, act, prepare, between):
    """Yield, for each call that `act` makes, the training and what `act` came to."""
    for call in itertools.count(1):
        record = prepare(scene)
        transport = Overtaken(call, lambda record=record: between(scene, record))
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


def folders(scene):
    return [path.name for path in (scene.root / "jobs").iterdir()]


@pytest.mark.slow
def test_a_resumption_that_a_delete_overtakes_says_that_and_leaves_nothing(scene):
    said = set()
    for record, answer in each_call(scene, go_on, halted, delete_if_it_can):
        if isinstance(answer, DlctlError):
            said.add(answer.message.replace(record.training_id, "ID"))
            assert folders(scene) == [] and scene.store.all() == []
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
        assert folders(scene) == []
