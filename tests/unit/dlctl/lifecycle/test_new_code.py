"""`dlctl resume --code`: an attempt that trains with the user's folder as it is now."""

from pathlib import Path

import pytest
from login_side import (
    MANIFEST,
    BadTransport,
    Overtaken,
    fail_newest,
    go_on,
    job_dir,
    look,
    planned,
    send,
    send_lost,
)

from dlctl import contract
from dlctl.errors import ConnectionLost, DlctlError, RecordError, RemoteCommandError
from dlctl.lifecycle import changed_since_sent
from dlctl.outputs.insight import read_training_files


def test_a_resumption_names_the_changes_and_sends_them_if_asked(scene):
    (scene.work / "old.py").write_text("1")
    (scene.work / "same.py").write_text("1")
    record = send(scene)
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('mended')\n")
    (scene.work / "new.py").write_text("2")
    (scene.work / "old.py").unlink()
    changes = ["new.py (new)", "old.py (removed)", "train.py"]
    code = Path(record.job_dir, "code")
    (code / "written.txt").write_text("by the program")

    assert go_on(scene).attempt == 2
    assert changed_since_sent(scene.session, record) == changes
    assert (code / "train.py").read_text() == "print('hi')\n"
    assert planned(scene, 2).code_changes == []

    fail_newest(scene)
    said = []
    known = go_on(scene, new_code=True, on_line=said.append)
    assert (known.attempt, said) == (3, [])
    assert changed_since_sent(scene.session, known) == []
    assert (code / "train.py").read_text() == "print('mended')\n"
    assert not (code / "old.py").exists()
    assert (code / "written.txt").exists()
    attempts = read_training_files(scene.session, known).attempts
    assert [attempt.code_changes for attempt in attempts] == [[], [], changes]
    assert len({attempt.code_digest for attempt in attempts}) == 2
    fail_newest(scene)
    (scene.work / "manifest.yml").write_text(MANIFEST + "training: {epochs: 9}\n")
    again = go_on(scene)
    assert read_training_files(scene.session, again).attempts[-1].code_changes == []
    assert planned(scene, 4).code_digest == planned(scene, 3).code_digest
    fail_newest(scene)
    go_on(scene, new_code=True, on_line=said.append)
    assert "manifest.yml differs from the one that was submitted" in said[0]


def test_new_code_replaces_whatever_a_program_has_put_in_its_place(scene, tmp_path):
    """It once wrote through links, failed for good where a file had become a folder, and removed
    a model that was sent, trained further and saved in its place."""
    outside = tmp_path / "shared"
    outside.write_text("SHARED")
    for name in ("conf.yml", "becomes_a_folder", "changed.sh", "a\nb", "c\\d", "old.pt", "out"):
        (scene.work / name).write_text("1")
    (scene.work / "link").symlink_to("conf.yml")
    (scene.work / "folder").mkdir()
    (scene.work / "folder/x").write_text("1")
    record = send(scene)
    code = Path(record.job_dir, "code")
    fail_newest(scene)
    for name in ("conf.yml", "out"):
        (code / name).unlink()
    (code / "conf.yml").symlink_to(outside)
    (code / "out").mkdir()
    (code / "out/best").write_text("best")
    (code / "changed.sh").write_text("garbage")
    (code / "old.pt").write_text("better")
    for name in ("becomes_a_folder", "link", "a\nb", "c\\d", "folder/x", "old.pt"):
        (scene.work / name).unlink()
    (scene.work / "folder").rmdir()
    (scene.work / "folder").write_text("a file now")
    (scene.work / "becomes_a_folder").mkdir()
    (scene.work / "becomes_a_folder/in").write_text("2")
    (scene.work / "link").write_text("a file now")
    (scene.work / "conf.yml").write_text("2")
    assert go_on(scene, new_code=True).attempt == 2
    assert outside.read_text() == "SHARED"
    found = {str(p.relative_to(code)): p.read_text() for p in code.rglob("*") if p.is_file()}
    found.pop(contract.SENT_INDEX)
    assert found == {
        "conf.yml": "2", "link": "a file now", "folder": "a file now", "changed.sh": "1",
        "becomes_a_folder/in": "2", "train.py": "print('hi')\n", "out": "1",
        "changed.sh.attempt-1": "garbage", "old.pt.attempt-1": "better",
        "out.attempt-1/best": "best",
    }  # fmt: skip
    assert not (code / "conf.yml").is_symlink()
    assert not (code / "link").is_symlink()
    assert changed_since_sent(scene.session, record) == []
    assert not list(Path(record.job_dir, "attempts/2").glob(".sent*"))


def test_code_that_cannot_be_written_uses_up_no_attempt(scene):
    record = send(scene)
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('mended')\n")
    index = Path(record.job_dir, contract.CODE, contract.SENT_INDEX)
    index.unlink()
    index.mkdir()  # not even root can replace it by a file
    with pytest.raises(RemoteCommandError, match="its code cannot be written"):
        go_on(scene, new_code=True)
    index.rmdir()
    assert "before the scheduler was asked" in look(scene).reason
    assert go_on(scene, new_code=True).attempt == 2
    assert Path(record.job_dir, "code/train.py").read_text() == "print('mended')\n"


@pytest.mark.parametrize("harm", ["not one\n", "x y f ../../other\n", None])
def test_new_code_mends_a_damaged_index(scene, harm):
    """The node's advice for a damaged index, `resume --code`, once was an internal error."""
    record = send(scene)
    fail_newest(scene)
    index = job_dir(scene) / contract.CODE / contract.SENT_INDEX
    beside = job_dir(scene).parent / "other"
    beside.write_text("not the training's")
    index.unlink() if harm is None else index.write_text(harm)
    assert changed_since_sent(scene.session, record) == []
    assert go_on(scene, new_code=True).attempt == 2
    assert index.read_bytes() == scene.request().code.index
    assert beside.exists()


def test_a_resumption_whose_plan_was_purged_never_takes_other_code_unasked(scene):
    record = send(scene)
    fail_newest(scene)
    with pytest.raises(DlctlError):
        go_on(scene, BadTransport(8, "before"))
    assert look(scene).attempt == 2
    Path(record.job_dir, contract.PLAN).unlink()
    (scene.work / "train.py").write_text("print('mended')\n")
    with pytest.raises(RecordError, match="can't be found any more"):
        go_on(scene)
    assert (job_dir(scene) / "code/train.py").read_text() == "print('hi')\n"


@pytest.mark.parametrize("asked", [{"new_code": True}, {"learners": 2}, {}])
def test_a_job_that_started_after_all_is_never_taken_for_what_was_asked(scene, asked):
    """`resume --code` showed it as if it ran the new code."""
    send_lost(scene)
    hidden = (scene.scheduler.folder / "queue/1").rename(scene.root / "hidden")
    (scene.work / "train.py").write_text("print('mended')\n")

    def start():  # after the look, before the claim
        (job_dir(scene) / contract.claim(1)).write_text("1\n")
        hidden.rename(scene.scheduler.folder / "queue/1")
        scene.scheduler.set_state(1, "RUNNING")

    starts = Overtaken(start, contract.NOBODY)
    if not asked:
        assert go_on(scene, starts).job_id == "1"
        return
    with pytest.raises(RecordError, match="attempt 1 runs with its resources and its code"):
        go_on(scene, starts, **asked)
    assert len(scene.scheduler.jobs()) == 1


def test_new_code_that_was_cut_off_on_its_way_is_sent_by_the_next_resumption(scene):
    """Its hint, `dlctl resume`, went on with the old code."""
    record = send(scene)
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('mended')\n")

    def cut():
        raise ConnectionLost("the connection was lost")

    with pytest.raises(ConnectionLost):
        go_on(scene, Overtaken(cut, "tar -xmof", "attempts/2"), new_code=True, memory="2GiB")
    assert (job_dir(scene) / "code/train.py").read_text() == "print('hi')\n"
    said = []
    assert go_on(scene, on_line=said.append).attempt == 2
    assert "--code" in said[0]
    assert (job_dir(scene) / "code/train.py").read_text() == "print('mended')\n"
    assert planned(scene, 2).resources.memory_bytes_per_learner == 2 << 30
    assert changed_since_sent(scene.session, record) == []
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('not asked for')\n")
    assert go_on(scene).attempt == 3
    assert (job_dir(scene) / "code/train.py").read_text() == "print('mended')\n"
