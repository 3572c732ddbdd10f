"""Stored models over every transport: the same scripts in any login shell."""

import os

import pytest
from odd_names import ODD_NAMES, write_odd_names
from stored_models import ModelSite, write_folder

from dlctl import contract
from dlctl.models import changes
from dlctl.models.pull import pull
from dlctl.models.reading import find_version, read_models, verify
from dlctl.models.use import bring_code, code_of
from dlctl.record import RecordStore


@pytest.fixture
def site(transport, tmp_path):
    return ModelSite(tmp_path / "ro ot's $x", transport)


@pytest.mark.first("local", "openssh")
def test_a_model_is_stored_changed_pulled_and_deleted(site, tmp_path):
    folder = write_odd_names(write_folder(tmp_path / "folder"))
    first = site.store(folder, aliases=["best"], tags=["a"], description="it's $(id)\n%s")
    assert verify(site.session, first) == []
    (folder / "words.txt").write_text("two\n")
    second = site.store(folder, first.model_id)
    model = site.model(first.model_id)
    assert (model.numbers, model.description) == ([1, 2], "it's $(id)\n%s")
    changes.change(site.session, model, changes.Changes(["best"], 2, ["b"], ["a"], [], "new"))
    model = site.model(first.model_id)
    assert (model.aliases, model.tags, model.description) == ({"best": 2}, ["b"], "new")
    pull(site.session, find_version(site.session, second.label), tmp_path / "pulled")
    version = site.version(second.label)
    bring_code(site.session, version, code_of(version))
    for place in (tmp_path / "pulled", site.root / "store" / code_of(version).digest):
        for name in ODD_NAMES:
            assert (place / name).read_bytes() == os.fsencode(name)
    changes.check_unused(site.session, [model], model, None, RecordStore(tmp_path / "record.db"))
    changes.delete(site.session, model, None)
    assert read_models(site.session) == []
    assert changes.collect_garbage(site.session, 0).blobs == len(ODD_NAMES) + 2
    assert list((site.root / contract.MODEL_BLOBS).iterdir()) == []
    assert site.leftovers() == []
