"""Versions are trained, go to another site, and are renewed against a purge."""

import json
import os
import time

import pytest
from login_side import BadTransport, Scene, run_script
from stored_models import ModelSite, write_folder

from dlctl import contract
from dlctl.contract import DATA_FILE, State
from dlctl.errors import ConnectionLost, ManifestError, RecordError, TransferError
from dlctl.lifecycle import refresh, resume, submit
from dlctl.manifest.overrides import Overrides
from dlctl.models import changes
from dlctl.models.compare import compare
from dlctl.models.create import Wish, from_folder
from dlctl.models.publish import copy
from dlctl.models.pull import layout
from dlctl.models.reading import find_version, read_models, verify
from dlctl.models.use import build, build_again, code_of

MANIFEST = """\
name: fine
framework: {name: own, command: 'true', arguments: {weights: 'model:base@best'}}
"""


@pytest.fixture
def scene(tmp_path, small_runtime):
    return Scene(tmp_path, MANIFEST)


@pytest.fixture
def base(scene, tmp_path):
    """A model with two versions; `best` is the first."""
    folder = write_folder(tmp_path / "base", model_pt=b"one")
    made = from_folder(scene.session, folder, Wish("base", aliases=["best"]))
    write_folder(folder, model_pt=b"two")
    from_folder(scene.session, folder, Wish(model=known(scene)))
    return made


def known(scene):
    return read_models(scene.session)[0]


def request(scene, model=None, session=None):
    return build(session or scene.session, scene.work / "manifest.yml", Overrides(), model)


def job_file(scene, record, name):
    return scene.root / "jobs" / record.training_id / name


def test_weights_lie_read_only_in_the_job_directory(scene, base):
    asked = request(scene)
    assert asked.plan.weights.model == base.label
    assert f"model:{base.label}/model.pt" in asked.manifest
    record = submit(scene.session, asked, scene.store)
    weights = job_file(scene, record, "weights/model.pt")
    assert asked.plan.framework.arguments == {"weights": str(weights)}
    assert (weights.read_bytes(), weights.stat().st_mode & 0o222) == (b"one", 0)
    blob = scene.root / contract.MODEL_BLOBS / asked.plan.weights.sha256
    assert weights.samefile(blob), "no byte is stored twice"
    assert known(scene).uses == [f"1.{record.training_id}"]


def test_an_interrupted_submission_keeps_the_version_that_it_had(scene, base):
    with pytest.raises(ConnectionLost):
        session = scene.connect(BadTransport(5))
        submit(session, request(scene, session=session), scene.store)
    [record] = scene.store.all()
    changes.change(scene.session, known(scene), changes.Changes(["best"], 2))
    record = resume(scene.session, record, scene.store, lambda r: build_again(scene.session, r))
    plan = json.loads(job_file(scene, record, contract.PLAN).read_text())
    assert plan["weights"]["model"] == base.label
    assert job_file(scene, record, "weights/model.pt").read_bytes() == b"one"


def test_a_stored_version_is_trained_and_nothing_is_sent(scene, base, tmp_path):
    asked = request(scene, f"{base.model_id}@2")
    assert (asked.plan.model, asked.plan.name) == (f"{base.model_id}@2", "words")
    record = submit(scene.session, asked, scene.store)
    assert (record.model, record.manifest_path) == (f"{base.model_id}@2", "")
    code = job_file(scene, record, contract.CODE)
    assert (code / "model.pt").read_bytes() == b"two"
    end = scene.start(run_script, 1)
    assert (end.returncode, scene.ran()) == (0, [f"{record.training_id} 1"]), end.stderr
    again = build_again(scene.session, record)
    assert (again.plan.model, again.code.digest) == (asked.plan.model, asked.code.digest)


def test_a_model_that_is_deleted_meanwhile_is_named_and_nothing_is_queued(scene, base):
    asked = request(scene)
    changes.delete(scene.session, known(scene), None)
    with pytest.raises(RecordError, match=f"the model {base.label} was deleted") as caught:
        submit(scene.session, asked, scene.store)
    assert f"dlctl delete {asked.plan.training_id}" in caught.value.hint
    assert scene.scheduler.jobs() == {}
    [kept] = scene.store.all()
    assert (kept.state, kept.reason) == (
        State.FAILED, f"nothing was queued: the model {base.label} was deleted"
    )  # fmt: skip
    [looked] = refresh(scene.session, [kept], scene.store)
    assert (looked.state, looked.reason) == (State.FAILED, kept.reason), "it stays so"


def test_a_model_without_manifest_can_only_give_its_weights(scene, tmp_path):
    folder = tmp_path / "net"
    folder.mkdir()
    with pytest.raises(ManifestError, match="no file to store"):
        from_folder(scene.session, folder, Wish("base"))
    (folder / "net.pt").write_bytes(b"x")
    made = from_folder(scene.session, folder, Wish("base", aliases=["best"]))
    assert made.manifest == ""
    with pytest.raises(RecordError, match="has no manifest") as caught:
        request(scene, made.model_id)
    assert f"model:{made.label}" in caught.value.hint
    assert request(scene).plan.weights.path == "net.pt"


# At another site, and against a purge -------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ModelSite(tmp_path / "here")


@pytest.fixture
def there(tmp_path):
    return ModelSite(tmp_path / "there")


def copied(here, label, there, **more):
    found = find_version(here.session, label)
    return copy(here.session, found, there.session, read_models(there.session), **more)


def test_a_copy_has_an_id_of_its_site_and_says_what_it_is_a_copy_of(here, there, folder, tmp_path):
    first = here.store(folder, tags=["a"], description="of words")
    (folder / "words.txt").write_text("two\n")
    second = here.store(folder, first.model_id)
    one = copied(here, first.label, there)
    two = copied(here, second.label, there, aliases=["best"])
    assert one.model_id == two.model_id != first.model_id
    assert (one.copy_of, two.copy_of, two.version) == (first.label, second.label, 2)
    assert (two.files, two.created_at) == (here.version(second.label).files, second.created_at)
    assert not verify(there.session, there.version(two.label))
    model = there.model(two.model_id)
    assert (model.tags, model.description, model.aliases) == (["a"], "of words", {"best": 2})
    assert compare(there.version(one.label), there.version(two.label))["files"]
    assert list((tmp_path / "state/dlctl").glob("copy.*")) == []


def test_a_copy_of_a_copy_is_the_original_and_only_what_lacks_is_sent(here, there, folder):
    first = here.store(folder)
    made = copied(here, first.label, there)
    assert copied(here, first.label, there).label == made.label, "it is there already"
    assert copied(there, made.label, here).copy_of == first.label
    (folder / "words.txt").write_text("two\n")
    second = here.store(folder, first.model_id)
    transport = BadTransport()
    copied(here, second.label, there.through(transport))
    assert transport.calls == 5, "list, ask twice what is missing, send it, publish"
    assert len(there.blobs()) == 4 - 1, "hello, the weights, two"


@pytest.mark.parametrize("call", [2, 3, 4, 5])
def test_a_copy_that_is_interrupted_leaves_nothing_and_is_made_again(here, there, folder, call):
    first = here.store(folder)
    with pytest.raises(ConnectionLost):
        copied(here, first.label, there.through(BadTransport(call)))
    assert read_models(there.session) == []
    assert not verify(there.session, there.version(copied(here, first.label, there).label))


def test_a_damaged_content_is_not_copied(here, there, folder):
    first = here.store(folder)
    digest = next(f.sha256 for f in first.files if f.path == "model.pt")
    here.blobs()[digest].chmod(0o600)
    here.blobs()[digest].write_bytes(b"WEIGHTS" * 1000)
    with pytest.raises(TransferError, match="damaged"):
        copied(here, first.label, there)
    assert read_models(there.session) == []


def test_results_and_the_listing_of_the_data_lie_in_a_folder_that_the_code_does_not_have():
    code = contract.ModelFile("trained/model.pt", 1, "2" * 64)
    result = contract.ModelFile("model.pt", 1, "1" * 64, part="result")
    both = contract.ModelVersion("m", 1, "m", files=[code, result])
    assert [path for _, path in layout(both)] == ["trained/model.pt", "trained-2/model.pt"]
    path = f"{contract.DATA_LISTINGS}/store-0.json"
    listing = contract.ModelFile(path, 1, "1" * 64, part=DATA_FILE)
    version = contract.ModelVersion("m", 1, "m", files=[
        contract.ModelFile("a.py", 1, "2" * 64), listing,
    ])  # fmt: skip
    assert [f.path for f in contract.parse_index(code_of(version).index)] == ["a.py"]
    assert [where for _, where in layout(version)] == ["a.py", f"trained/{path}"]
    other = contract.ModelVersion("m", 2, "m", files=[
        contract.ModelFile("a.py", 1, "2" * 64), contract.ModelFile(path, 1, "3" * 64, part="data"),
    ])  # fmt: skip
    assert [(f["path"], f["part"]) for f in compare(version, other)["files"]] == [(path, "data")]


def test_what_versions_name_is_renewed_once_a_day_and_nothing_else(here, folder):
    kept, gone = here.store(folder), here.store(write_folder(folder, words_txt="gone\n"))
    changes.delete(here.session, here.model(gone.model_id), None)
    old = time.time() - 20 * 86400
    models = here.root / "models"
    for path in models.rglob("*"):
        os.utime(path, (old, old))
    read_models(here.session)
    young = {p.name for p in models.rglob("*") if p.is_file() and p.stat().st_mtime > old + 9}
    assert young == {".renewed", "1.json", *(file.sha256 for file in kept.files)}
    for path in models.rglob("*.json"):
        os.utime(path, (old, old))
    read_models(here.session)
    [record] = models.rglob("*.json")
    assert record.stat().st_mtime < old + 9, "not again on the same day"
    assert changes.collect_garbage(here.session, 86400).blobs == 1
    assert json.loads(record.read_text())["model_id"] == kept.model_id
