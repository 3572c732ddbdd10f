"""A folder takes the place of another one; a late process leaves what is newer where it is."""

import shutil
from pathlib import Path

import pytest

from learner.system.folders import put_back, put_in_place


@pytest.fixture
def make(tmp_path):
    """Makes a folder of this name, which holds one file with this text."""

    def make(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
        return tmp_path / name

    return make


@pytest.fixture
def texts(tmp_path):
    """Reads the folders that are there."""
    return lambda: {path.name: (path / "file").read_text() for path in tmp_path.iterdir()}


def test_a_folder_gets_its_name(make, texts, tmp_path):
    assert put_in_place(make("new", "1"), tmp_path / "final", tmp_path / "aside") is False
    assert texts() == {"final": "1"}


def test_what_has_the_name_is_then_aside(make, texts, tmp_path):
    assert put_in_place(make("new", "2"), make("final", "1"), tmp_path / "aside") is True
    assert texts() == {"final": "2", "aside": "1"}


def test_nothing_is_moved_by_one_whose_folder_was_taken(make, texts, tmp_path):
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "new", make("final", "1"), tmp_path / "aside")
    assert texts() == {"final": "1"}


def test_what_was_moved_is_put_back_if_the_own_folder_was_taken_meanwhile(make, texts, tmp_path):
    def rename(source: Path, target: Path):
        source.rename(target)
        if target.name == "aside":
            shutil.rmtree(tmp_path / "new")

    with pytest.raises(FileNotFoundError):
        put_in_place(make("new", "2"), make("final", "1"), tmp_path / "aside", rename)
    assert texts() == {"final": "1"}


def test_nothing_is_put_back_over_a_newer_one(make, texts):
    assert put_back(make("aside", "1"), make("final", "2")) is False
    assert texts() == {"aside": "1", "final": "2"}
