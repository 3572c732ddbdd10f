"""A site's purge of old files, damage, and other users: what was sent is checked and sent again."""

import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from login_side import MANIFEST, Scene, fail_newest, go_on, look, planned, run_everything, send
from odd_names import ODD_NAMES, write_odd_names

from dlctl import contract
from dlctl.contract import State
from dlctl.doctor.at_site import check_folders
from dlctl.doctor.chain import Chain
from dlctl.errors import RecordError, RemoteCommandError
from dlctl.files.site_folders import damaged
from dlctl.lifecycle import changed_since_sent, delete
from dlctl.outputs.fetch import fetch
from dlctl.outputs.insight import read_training_files

DAY_S = 86400


def purge(folder, older_than_s):
    """Do what a site does: `find -type f -mtime +N -delete`."""
    for path in folder.rglob("*"):
        if path.is_file() and time.time() - path.stat().st_mtime > older_than_s:
            path.unlink()


def checked(scene):
    """Return what the doctor sees of the site's folders: name → state and evidence."""
    check_folders(chain := Chain(), scene.site, scene.session.transport)
    return {link.name: (link.state, link.evidence) for link in chain.links}


def age(folder, days):
    then = time.time() - days * DAY_S
    for path in folder.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)


# Purged -------------------------------------------------------------------------------------------


def test_files_of_a_job_that_waits_in_the_queue_are_not_old_once_dlctl_has_asked(scene):
    """Archives had a fixed time: they were purged while it waited, and it failed at its turn."""
    record = send(scene)
    before = {path for path in scene.root.rglob("*") if path.is_file()}
    purge(scene.root, DAY_S)
    assert {path for path in scene.root.rglob("*") if path.is_file()} == before
    result = Path(record.job_dir, contract.results_dir(1), "model.pt")
    result.parent.mkdir(parents=True)
    result.touch()
    folders = [scene.root / name for name in ("jobs", "runtime", "store")]
    sent = [path for folder in folders for path in folder.rglob("*")]
    files = [path for path in sent if path.is_file() and path != result]
    age(scene.root, 40)
    scene.store.update(replace(record, created_at="2026-01-02T03:04:05+00:00"))
    assert look(scene).state is State.PENDING
    purge(scene.root, 30 * DAY_S)
    assert all(path.exists() for path in files)
    assert not result.exists()
    assert checked(scene)["sent files"][0] == "ok"


def test_results_of_a_training_whose_plan_was_purged_are_fetched(scene, tmp_path):
    record = send(scene)
    run_everything(scene)
    job_dir = Path(record.job_dir)
    (job_dir / contract.RESULTS).mkdir(exist_ok=True)
    (job_dir / contract.RESULTS / "model.pt").write_text("weights")
    for name in (contract.PLAN, contract.MANIFEST, contract.SCRIPT):
        (job_dir / name).unlink()
    known = look(scene)
    assert known.state is State.COMPLETED
    fetched = fetch(scene.session.transport, known, tmp_path / "here")
    assert "model.pt" in fetched.files
    with pytest.raises(RecordError, match=r"plan\.json.* of .* can't be found any more") as lost:
        read_training_files(scene.session, known)
    assert "delete" not in lost.value.hint
    assert "dlctl fetch results" in lost.value.hint


def test_a_training_whose_files_were_purged_is_resumed_with_the_folder(scene):
    (scene.work / "a b").mkdir()
    (scene.work / "a b/data.txt").write_text("x")
    record = send(scene)
    fail_newest(scene)
    for name in (contract.PLAN, contract.MANIFEST, contract.SCRIPT, "code/train.py"):
        (Path(record.job_dir) / name).unlink()
    with pytest.raises(RecordError, match="can't be found any more"):
        go_on(scene)
    assert go_on(scene, new_code=True, learners=2).attempt == 2
    assert planned(scene, 2).code_digest
    assert planned(scene, 2).resources.learners == 2
    assert Path(record.job_dir, "code/train.py").read_text() == "print('hi')\n"
    fail_newest(scene)
    code = Path(record.job_dir, "code")
    (code / "train.py").unlink()
    (code / "a b/data.txt").unlink()
    (code / "written by the program").write_text("stays")
    go_on(scene)  # which has the same code
    assert (code / "train.py").read_text() == "print('hi')\n"
    assert (code / "a b/data.txt").read_text() == "x"
    assert (code / "written by the program").exists()


@pytest.mark.parametrize("new_code", [False, True])
def test_a_training_whose_job_directory_is_gone_is_not_resumed_but_forgotten(scene, new_code):
    """The hints named two commands in turn, neither of which could bring anything."""
    record = send(scene)
    fail_newest(scene)
    shutil.rmtree(record.job_dir)
    known = look(scene)
    forget = f"`dlctl delete {record.training_id}` forgets"
    assert forget in known.hint
    for _ in range(2):
        with pytest.raises(RecordError, match="its job directory is gone from the site") as error:
            go_on(scene, new_code=new_code)
        assert (forget in error.value.hint, error.value.hint.count("dlctl")) == (True, 1)
    assert not Path(record.job_dir).exists()
    delete(scene.session, scene.store.all()[0], scene.store)
    assert scene.store.all() == []


# Damaged ------------------------------------------------------------------------------------------


@pytest.mark.first("runtime-purge", "runtime-index", "store-*")
@pytest.mark.parametrize("harm", ["purge", "change", "same size", "more", "index"])
@pytest.mark.parametrize("kind", ["runtime", "store"])
def test_what_was_damaged_is_sent_again(scene, kind, harm):
    plan = scene.request().plan
    send(scene)
    name = plan.code_digest if kind == "store" else plan.runtime_dir.rpartition("/")[2]
    folder = scene.root / kind / name
    file = folder / ("train.py" if kind == "store" else "learner/supervisor/__main__.py")
    content = file.read_bytes()
    if harm == "purge":
        file.unlink()
    elif harm == "change":
        file.write_bytes(content + b"\n")
    elif harm == "same size":
        file.write_bytes(content[:-1] + b"#")
        os.utime(file, (time.time() + 5, time.time() + 5))
    elif harm == "more":
        (folder / "sitecustomize.py").write_text("import antigravity")
    else:
        (folder / contract.SENT_INDEX).write_text("")
    assert damaged(scene.session.transport, str(scene.root), [f"{kind}/{name}"])
    assert checked(scene)["sent files"][1] == f"no longer what was sent: {kind}/{name}"
    send(scene)
    assert file.read_bytes() == content
    assert not (folder / "sitecustomize.py").exists()
    assert checked(scene)["sent files"][0] == "ok"
    assert len(scene.scheduler.jobs()) == 2


def test_odd_names_are_no_damage(scene):
    write_odd_names(scene.work)
    (scene.work / "link").symlink_to("train.py")
    (scene.work / ".nfs0000000000a1b2c300000001").write_text("an open file, removed, on NFS")
    record = send(scene)
    target = f"store/{scene.request().plan.code_digest}"
    assert not damaged(scene.session.transport, str(scene.root), [target])
    index = Path(record.job_dir, "code", contract.SENT_INDEX).read_bytes()
    sent = {file.path for file in contract.parse_index(index)}
    assert {*ODD_NAMES, "link", "train.py"} == sent
    assert changed_since_sent(scene.session, record) == []


# Other users --------------------------------------------------------------------------------------


BELOW = ["runtime", "store", "jobs", "secrets"]


@pytest.mark.parametrize(("how", "place"), [
    *(("others write", place) for place in ["", *BELOW, "environments", "env", "queue"]),
    *(("foreign", place) for place in ["", *BELOW]),
    *(("link", place) for place in BELOW),  # the root may be a link of the user's own
])  # fmt: skip
def test_a_folder_that_is_not_the_users_own_is_refused(scene, tmp_path, place, how):
    if how == "foreign" and os.geteuid():
        pytest.skip("only root can give a folder away")
    folder = scene.root / place
    if how == "link":
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o1777)
    if how == "foreign":
        folder.chmod(0o755)
        os.chown(folder, 65534, 65534)
    with pytest.raises(RemoteCommandError, match="nothing was sent") as refused:
        send(scene)
    assert str(folder) in refused.value.message
    assert checked(scene)["sent files"][1] == refused.value.message
    assert scene.scheduler.jobs() == {}
    assert scene.store.all() == []


@pytest.mark.parametrize("named_by", ["its name", "a link", "a missing folder"])
def test_a_root_that_any_user_can_rename_is_refused(scene, tmp_path, named_by):
    """They put a folder of their own in its place while a job ran."""
    shared = tmp_path / "shared"
    (shared / "me").mkdir(parents=True)
    shared.chmod(0o777)
    root = shared / "me/dlctl"
    if named_by == "a link":
        (tmp_path / "link").symlink_to(shared / "me")
        root = tmp_path / "link/dlctl"
    if named_by != "a missing folder":
        (shared / "me/dlctl").mkdir()
    move_root(scene, root)
    with pytest.raises(RemoteCommandError, match="nothing was sent") as refused:
        send(scene)
    assert f"{shared} can be written by other users" in refused.value.message
    assert checked(scene)["sent files"][0] == "broken"
    shared.chmod(0o1777)  # as /tmp and /scratch are
    send(scene)


def test_a_folder_above_the_root_that_another_user_opened_to_all_is_refused(scene, tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    shared = tmp_path / "shared"
    (shared / "me").mkdir(parents=True)
    move_root(scene, shared / "me/dlctl")
    os.chown(shared, 12345, 12345)
    for mode in (0o755, 0o1777):  # of a project's leader, or a scratch of a service account
        shared.chmod(mode)
        send(scene)
        assert checked(scene)["above the root"][1] == f"{shared} belongs to another user"
    shared.chmod(0o777)
    with pytest.raises(RemoteCommandError, match="lets other users replace") as refused:
        send(scene)
    assert "in your home" in refused.value.hint


def test_a_folder_that_its_group_can_write_to_is_told_of_but_not_refused(
    scene, tmp_path, monkeypatch
):
    (tmp_path / "project/me").mkdir(parents=True)
    (tmp_path / "project").chmod(0o770)
    move_root(scene, tmp_path / "project/me/dlctl")
    monkeypatch.setenv("PATH", f"{group_with_members(tmp_path)}:{os.environ['PATH']}")
    send(scene)
    assert checked(scene)["above the root"] == (
        "warn", f"{tmp_path}/project can be written by its group",
    )  # fmt: skip
    scene.root.chmod(0o770)
    with pytest.raises(RemoteCommandError, match="can be written by other users"):
        send(scene)
    # A container's volume may be a home that all can write to; who can replace it needs no root.
    (tmp_path / "volume/home").mkdir(parents=True)
    for folder in (tmp_path / "volume", tmp_path / "volume/home"):
        folder.chmod(0o777)
    monkeypatch.setenv("HOME", str(tmp_path / "volume/home"))
    move_root(scene, tmp_path / "volume/home/dlctl")
    send(scene)
    assert "above the root" not in checked(scene)


def group_with_members(tmp_path):
    """Return a folder with a `getent` that knows another member of each group."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/getent").write_text('#!/bin/sh\necho "$2:x:1:mate"\n')
    (tmp_path / "bin/getent").chmod(0o755)
    return tmp_path / "bin"


def move_root(scene, root):
    scene.root = root
    scene.settle()


@pytest.mark.parametrize(("more", "file_mode", "folder_mode"),
                         [("", 0o600, 0o700), ("share: group", 0o640, 0o750)])  # fmt: skip
def test_only_the_user_reads_what_is_sent_unless_the_site_shares_it(
    scene, more, file_mode, folder_mode
):
    scene.settle(more)
    scene.root.chmod(folder_mode)
    (scene.work / "run.sh").write_text("#!/bin/sh\n")
    (scene.work / "run.sh").chmod(0o755)
    record = send(scene)
    run_everything(scene)
    ours = [p for name in ("jobs", "runtime", "store") for p in (scene.root / name).rglob("*")]
    modes = {p.stat().st_mode & 0o777 for p in ours if p.is_dir()}
    assert modes == {folder_mode}
    code = Path(record.job_dir, "code")
    assert (code / "run.sh").stat().st_mode & 0o777 == folder_mode
    assert (code / "train.py").stat().st_mode & 0o777 == file_mode
    assert not [p for p in ours if p.stat().st_mode & 0o007]


@pytest.mark.parametrize("more", ["", "share: group"])
def test_the_user_alone_reads_credentials_and_they_go_with_their_training(tmp_path, more):
    token = "opensesame-1"
    manifest = f"{MANIFEST}env: {{API_TOKEN: {token}}}\n"
    scene = Scene(tmp_path, manifest, more=more)
    record = send(scene)
    file = scene.root / "secrets" / record.training_id / "API_TOKEN"
    holders = [p for p in scene.root.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    assert holders == [file]
    assert file.stat().st_mode & 0o777 == 0o600
    run_everything(scene)
    delete(scene.session, record, scene.store)
    assert not file.parent.exists()
