"""A training keeps the version that a model's name meant at its submission."""

import json

import pytest
from login_side import BadTransport, Scene, run_script
from stored_models import write_folder

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import ConnectionLost, ManifestError, RecordError
from dlctl.lifecycle import refresh, resume, submit
from dlctl.manifest.overrides import Overrides
from dlctl.models import changes
from dlctl.models.create import Wish, from_folder
from dlctl.models.reading import read_models
from dlctl.models.use import build, build_again

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
