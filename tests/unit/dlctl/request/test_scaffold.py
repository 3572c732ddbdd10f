from __future__ import annotations

import json
import runpy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlctl.errors import ManifestError
from dlctl.manifest.checks import not_in_this_version
from dlctl.manifest.load import load_manifest, parse_manifest
from dlctl.request.scaffold import _texts, scaffold


def test_what_is_written_validates(tmp_path):
    folder = tmp_path / "my training"
    written = scaffold(folder)
    assert {p.relative_to(folder).as_posix() for p in written} == {
        "manifest.yml",
        "train.py",
        ".gitignore",
        ".dlctl/manifest.schema.json",
    }
    manifest = load_manifest(folder / "manifest.yml")
    assert manifest.name == "my training"
    assert not_in_this_version(manifest) == []
    first = (folder / "manifest.yml").read_text().splitlines()[0]
    schema = folder / first.partition("$schema=")[2]
    assert json.loads(schema.read_text())["title"] == "dlctl manifest"


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(ManifestError, match="already contains train.py"):
        scaffold(tmp_path, "x")
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["", "a\nb", "été $(x) 'q' \"d\"", "no", "1.0", "@NAME@", "#", "🚀"]
)
def test_odd_names(tmp_path, name):
    scaffold(tmp_path / "x", name)
    expected = " ".join(name.split()) or "training"
    assert load_manifest(tmp_path / "x" / "manifest.yml").name == expected


@given(st.text(max_size=150))
def test_any_name_makes_a_manifest(name):
    text = _texts(name)["manifest.yml"].encode("utf-8")
    assert parse_manifest(text, "m.yml").name


@pytest.fixture
def torch():
    """torch with one thread: on a busy machine several wait for one another, each on its core."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


def test_the_program_learns(tmp_path, torch):
    scaffold(tmp_path / "x", "x")
    torch.manual_seed(1)
    built = runpy.run_path(str(tmp_path / "x" / "train.py"))["build"]({"lr": 0.01})
    points, labels = built["train"].tensors
    for _ in range(150):
        built["optimizer"].zero_grad()
        loss = built["loss"](built["model"](points), labels)
        loss.backward()
        built["optimizer"].step()
    points, labels = built["validation"].tensors
    assert float(built["metrics"]["accuracy"](built["model"](points), labels)) > 0.9
