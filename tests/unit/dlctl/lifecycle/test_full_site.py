"""A full disk at the site stops a submission or its end; with room again, both go on."""

import contextlib
import shutil
from pathlib import Path

import pytest
from login_side import BadTransport, Scene, run_everything, send

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RemoteCommandError
from dlctl.lifecycle import cancel, end, resume


@pytest.fixture
def scene(tmp_path, small_disk):
    return Scene(tmp_path, root=small_disk("size=8m"))


@contextlib.contextmanager
def full(scene):
    rest = scene.root / "rest"
    with contextlib.suppress(OSError), rest.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    yield
    rest.unlink()


def interrupted(scene):
    """Return a training whose files are at the site, and whose submission was not heard."""
    with pytest.raises(DlctlError):
        send(scene, BadTransport(3, "before"))
    (record,) = scene.store.all()
    return record


def go_on(scene, record):
    return resume(scene.session, record, scene.store, lambda r: scene.request(r.training_id))


def test_a_claim_that_could_not_be_written_is_made_once_there_is_room(scene):
    """An empty claim stayed: no `resume` ever got past it."""
    record = interrupted(scene)
    with full(scene), pytest.raises(RemoteCommandError, match="can't be written"):
        cancel(scene.session, record, scene.store)
    assert go_on(scene, record).state is State.PENDING


def test_a_claim_that_a_job_could_not_write_is_taken_over(scene, monkeypatch):
    monkeypatch.setattr(end, "_CLAIM_LATE_S", 1)
    record = send(scene)
    Path(record.job_dir, contract.claim(1)).touch()
    scene.scheduler.set_state(1, "FAILED")
    again = go_on(scene, record)
    assert (again.attempt, again.job_id) == (2, "2")


def test_a_receipt_that_could_not_be_written_is_no_submission(scene):
    """An empty receipt stayed, and the training was told as one whose answer was lost."""
    record = interrupted(scene)
    (code,) = (scene.root / "store").iterdir()
    shutil.copytree(code, Path(record.job_dir, contract.CODE))
    Path(record.job_dir, contract.attempt_dir(1)).mkdir(parents=True)
    with full(scene), pytest.raises(RemoteCommandError, match="its files cannot be written"):
        go_on(scene, record)
    assert go_on(scene, record).attempt == 1
    run_everything(scene)
    assert len(scene.ran()) == 1
