"""Submissions that are disturbed at the site: by another one of theirs, or by a full disk."""

import contextlib
import os
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from login_side import BadTransport, Scene, cancel, go_on, run_everything, send

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, RemoteCommandError, SubmitUnknown
from dlctl.lifecycle import end, resume, submit
from dlctl.lifecycle.many import ask_all, submit_all

SLOW_CP = """\
#!/bin/sh
# The first copy of the code waits before it begins, the second one after its first file.
case "$*" in *code.part*) ;; *) exec /bin/cp "$@" ;; esac
if mkdir {here}/first 2>/dev/null; then
    echo >{here}/first-waits; read -r _ <{here}/first-goes-on
elif mkdir {here}/second 2>/dev/null; then
    mkdir -p "$3"; cp "$2/a.txt" "$3"
    echo >{here}/second-waits; read -r _ <{here}/second-goes-on
    exec /bin/cp -R "$2/." "$3"
fi
exec /bin/cp "$@"
"""


@pytest.fixture
def scene(tmp_path, monkeypatch, small_runtime):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("first-waits", "first-goes-on", "second-waits", "second-goes-on"):
        os.mkfifo(programs / name)
    (programs / "cp").write_text(SLOW_CP.format(here=programs))
    (programs / "cp").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    scene = Scene(tmp_path)
    (scene.work / "a.txt").write_text("a")
    scene.programs = programs
    return scene


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_submission_that_still_copies_the_code_is_not_disturbed_by_the_next(scene):
    """The connection was lost, the script went on, and `dlctl resume` emptied its folder."""
    request = scene.request()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(submit, scene.session, request, scene.store)
        (scene.programs / "first-waits").read_text()
        record = scene.store.all()[0]
        again = pool.submit(resume, scene.connect(BadTransport()), record, scene.store,
                            lambda r: scene.request(r.training_id))  # fmt: skip
        (scene.programs / "second-waits").read_text()
        (scene.programs / "first-goes-on").write_text("\n")
        wait([first])
        code = Path(record.job_dir, contract.CODE)
        of_first = names(code)
        (scene.programs / "second-goes-on").write_text("\n")
    assert first.result().state is State.PENDING
    assert again.result().job_id == "1"
    sent = sorted(["a.txt", "train.py", contract.SENT_INDEX])
    assert (of_first, names(code)) == (sent, sent)
    assert not list(code.parent.glob("code.part*"))
    run_everything(scene)
    assert len(scene.ran()) == 1


def test_the_scheduler_is_asked_by_the_submission_that_was_first(tmp_path):
    scene = Scene(tmp_path)
    with pytest.raises(SubmitUnknown):
        submit(scene.connect(BadTransport(3, "before")), scene.request(), scene.store)
    (record,) = scene.store.all()
    plan = scene.request(record.training_id).plan
    begin = Path(record.job_dir, contract.submit_begin(1))  # of one that waits for its answer
    begin.parent.mkdir(parents=True, exist_ok=True)
    begin.write_text(f"{contract.token(record.training_id, 1)}\n")
    (told,) = ask_all(scene.session, [plan], [record], scene.store)
    assert told.state is State.QUEUED
    assert scene.scheduler.jobs() == {}


def test_an_answer_that_was_lost_is_looked_up_by_the_same_command(tmp_path):
    """`until dlctl submit m.yml; do sleep 60; done` never ended, although the job ran."""
    scene = Scene(tmp_path)
    wanted = [lambda training_id, _: scene.request(training_id)]
    (scene.scheduler.folder / "mode").write_text("lost")
    scene.scheduler.silent = True
    for _ in range(2):  # while nobody can tell, the same command looks again
        sent = submit_all(scene.session, scene.store, "command", wanted)
        with pytest.raises(SubmitUnknown, match="the answer was lost"):
            sent.settled()
    scene.scheduler.silent = False
    sent = submit_all(scene.session, scene.store, "command", wanted)
    assert (sent.settled().state, sent.one().job_id) == (State.PENDING, "1")
    assert list(scene.scheduler.jobs()) == [1]
    (scene.scheduler.folder / "mode").write_text("lost")
    sent = submit_all(scene.session, scene.store, "another", wanted)
    assert (sent.settled().state, sent.one().job_id) == (State.PENDING, "2"), "at once"


def test_what_resume_has_submitted_is_not_taken_up_by_the_same_command(tmp_path):
    """The command said, a day later, that it took up a training that had long completed."""
    scene = Scene(tmp_path)
    wanted = [lambda training_id, _: scene.request(training_id)]
    bad = scene.connect(BadTransport(3, "before"))
    with pytest.raises(SubmitUnknown):
        submit_all(bad, scene.store, "command", wanted).settled()
    assert go_on(scene).job_id == "1"
    sent = submit_all(scene.session, scene.store, "command", wanted)
    assert (sent.settled().job_id, len(scene.store.all())) == ("2", 2)


# A full disk stops a submission or its end; with room again, both go on ---------------------------


@pytest.fixture
def small(tmp_path, small_disk):
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


def test_a_claim_that_could_not_be_written_is_made_once_there_is_room(small):
    """An empty claim stayed: no `resume` ever got past it."""
    record = interrupted(small)
    with full(small), pytest.raises(RemoteCommandError, match="can't be written"):
        cancel(small.session, record, small.store)
    assert go_on(small).state is State.PENDING


def test_a_claim_that_a_job_could_not_write_is_taken_over(small, monkeypatch):
    monkeypatch.setattr(end, "_CLAIM_LATE_S", 1)
    record = send(small)
    Path(record.job_dir, contract.claim(1)).touch()
    small.scheduler.set_state(1, "FAILED")
    again = go_on(small)
    assert (again.attempt, again.job_id) == (2, "2")


def test_a_receipt_that_could_not_be_written_is_no_submission(small):
    """An empty receipt stayed, and the training was told as one whose answer was lost."""
    record = interrupted(small)
    (code,) = (small.root / "store").iterdir()
    shutil.copytree(code, Path(record.job_dir, contract.CODE))
    Path(record.job_dir, contract.attempt_dir(1)).mkdir(parents=True)
    with full(small), pytest.raises(RemoteCommandError, match="its files cannot be written"):
        go_on(small)
    assert go_on(small).attempt == 1
    run_everything(small)
    assert len(small.ran()) == 1
