"""`dlctl resume --code`: an attempt that trains with the user's folder as it is now."""

from pathlib import Path

import pytest
from login_side import MANIFEST, BadTransport, fail_newest, job_dir, look, planned, send

from dlctl import contract
from dlctl.errors import ConnectionLost, DlctlError, RecordError, RemoteCommandError, SubmitUnknown
from dlctl.lifecycle import changed_since_sent, resume
from dlctl.manifest.overrides import Overrides
from dlctl.outputs.insight import told_by_site
from dlctl.record import RecordStore
from dlctl.request.build import prepare_again


def go_on(scene, transport=None, **asked):
    session = scene.connect(transport) if transport else scene.session
    return resume(session, scene.store.all()[0], scene.store,
                  lambda r: prepare_again(r, scene.site), **asked)  # fmt: skip


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
    attempts = told_by_site(scene.session, known).attempts
    assert [attempt.code_changes for attempt in attempts] == [[], [], changes]
    assert len({attempt.code_digest for attempt in attempts}) == 2
    fail_newest(scene)
    (scene.work / "manifest.yml").write_text(MANIFEST + "training: {epochs: 9}\n")
    go_on(scene, new_code=True, on_line=said.append)
    assert "manifest.yml differs from the one that was submitted" in said[0]


def test_new_code_replaces_whatever_a_program_has_put_in_its_place(scene, tmp_path):
    """It once wrote through links, and failed for good where a file had become a folder."""
    outside = tmp_path / "shared"
    outside.write_text("SHARED")
    for name in ("conf.yml", "becomes_a_folder", "changed.sh", "a\nb", "c\\d"):
        (scene.work / name).write_text("1")
    (scene.work / "link").symlink_to("conf.yml")
    (scene.work / "folder").mkdir()
    (scene.work / "folder/x").write_text("1")
    record = send(scene)
    code = Path(record.job_dir, "code")
    fail_newest(scene)
    (code / "conf.yml").unlink()
    (code / "conf.yml").symlink_to(outside)
    (code / "changed.sh").write_text("garbage")
    for name in ("becomes_a_folder", "link", "a\nb", "c\\d", "folder/x"):
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
        "becomes_a_folder/in": "2", "train.py": "print('hi')\n",
        "changed.sh.attempt-1": "garbage",
    }  # fmt: skip
    assert not (code / "conf.yml").is_symlink()
    assert not (code / "link").is_symlink()
    assert changed_since_sent(scene.session, record) == []


def test_new_code_leaves_what_a_program_has_written_over_the_old(scene):
    """A model that was sent, trained further and saved in its place was gone, without a word."""
    for name in ("model.pt", "old.pt", "out"):
        (scene.work / name).write_text("sent")
    record = send(scene)
    code = Path(record.job_dir, "code")
    fail_newest(scene)
    (code / "model.pt").write_text("better")
    (code / "old.pt").write_text("also better")
    (code / "out").unlink()
    (code / "out").mkdir()
    (code / "out/best").write_text("best")
    (scene.work / "old.pt").unlink()
    (scene.work / "train.py").write_text("print('mended')\n")
    assert go_on(scene, new_code=True).attempt == 2
    found = {str(p.relative_to(code)): p.read_text() for p in code.rglob("*") if p.is_file()}
    found.pop(contract.SENT_INDEX)
    assert found == {
        "train.py": "print('mended')\n", "model.pt": "sent", "out": "sent",
        "model.pt.attempt-1": "better", "old.pt.attempt-1": "also better",
        "out.attempt-1/best": "best",
    }  # fmt: skip
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


def test_only_the_attempt_that_brought_new_code_lists_changes(scene):
    record = send(scene)
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('mended')\n")
    go_on(scene, new_code=True)
    fail_newest(scene)
    known = go_on(scene)
    told = told_by_site(scene.session, known).attempts
    assert [each.code_changes for each in told] == [[], ["train.py"], []]
    assert planned(scene, 3).code_digest == planned(scene, 2).code_digest
    assert changed_since_sent(scene.session, record) == []


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


def test_new_code_that_comes_second_is_told_that_another_resumption_was_first(scene, tmp_path):
    send(scene)
    fail_newest(scene)
    elsewhere = RecordStore(tmp_path / "another home.db")
    elsewhere.add(scene.store.all()[0])
    (scene.work / "train.py").write_text("print('mended')\n")

    class Beside(BadTransport):
        done = False

        def start(self, script, **options):
            if "submit.begin" in script and "mkdir" in script and not self.done:
                self.done = True
                resume(scene.session, elsewhere.all()[0], elsewhere, lambda _: None)
            return super().start(script, **options)

    with pytest.raises(RecordError, match="was first: attempt 2 runs with its"):
        go_on(scene, Beside(), new_code=True)
    assert (job_dir(scene) / "code/train.py").read_text() == "print('hi')\n"


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


@pytest.mark.parametrize("asked", [{"new_code": True}, {"overrides": Overrides(learners=2)}, {}])
def test_a_job_that_started_after_all_is_never_taken_for_what_was_asked(scene, asked):
    """`resume --code` showed it as if it ran the new code."""
    scene.scheduler.mode("lost")
    with pytest.raises(SubmitUnknown):
        send(scene)
    hidden = (scene.scheduler.folder / "queue/1").rename(scene.root / "hidden")
    (scene.work / "train.py").write_text("print('mended')\n")

    class Starts(BadTransport):
        def start(self, script, **options):
            if contract.NOBODY in script and hidden.exists():  # after the look, before the claim
                (job_dir(scene) / contract.claim(1)).write_text("1\n")
                hidden.rename(scene.scheduler.folder / "queue/1")
                scene.scheduler.set_state(1, "RUNNING")
            return super().start(script, **options)

    if not asked:
        assert go_on(scene, Starts()).job_id == "1"
        return
    with pytest.raises(RecordError, match="attempt 1 runs with its resources and its code"):
        go_on(scene, Starts(), **asked)
    assert len(scene.scheduler.jobs()) == 1


def test_new_code_that_was_cut_off_on_its_way_is_sent_by_the_next_resumption(scene):
    """Its hint, `dlctl resume`, went on with the old code."""
    record = send(scene)
    fail_newest(scene)
    (scene.work / "train.py").write_text("print('mended')\n")

    class Cut(BadTransport):
        def start(self, script, **options):
            if "tar -xmof" in script and "attempts/2" in script:
                raise ConnectionLost("the connection was lost")
            return super().start(script, **options)

    with pytest.raises(ConnectionLost):
        go_on(scene, Cut(), new_code=True, overrides=Overrides(memory="2GiB"))
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
