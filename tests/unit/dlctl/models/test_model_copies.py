"""Versions go to another site, name the data of their training, and are renewed against a purge."""

import json
import os
import time

import pytest
from login_side import BadTransport
from stored_models import ModelSite, write_folder

from dlctl import contract
from dlctl.contract import DATA_FILE
from dlctl.errors import ConnectionLost, TransferError
from dlctl.models import changes
from dlctl.models.compare import compare
from dlctl.models.publish import copy
from dlctl.models.pull import layout
from dlctl.models.reading import find_version, read_models, verify
from dlctl.models.use import code_of


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
