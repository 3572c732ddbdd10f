"""The index of the results has each file, and names those left out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dlctl import contract
from dlctl.contract import ResultsIndex
from dlctl.contract.ground.whole_files import sha256_of
from learner.export import export
from learner.storage.index import tell_index, write_index


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / contract.RESULTS
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/model").write_text("ab")
    return folder


def index_of(results: Path) -> ResultsIndex:
    written = write_index(results.parent)
    read = contract.read_record(ResultsIndex, results.parent / contract.RESULTS_INDEX)
    assert read == written
    return read


def test_a_link_that_stays_inside_counts_as_its_target(results):
    (results / "best").symlink_to("sub/model")
    index = index_of(results)
    assert [(file.path, file.size_bytes) for file in index.files] == [
        ("best", 2), ("sub/model", 2),
    ]  # fmt: skip
    assert {file.sha256 for file in index.files} == {sha256_of(results / "sub/model")}
    assert index.left_out == []
    assert tell_index(index) == ["2 files, 4 B"]
    (results / "best").unlink()
    assert tell_index(index_of(results)) == ["1 file, 2 B"]
    name = os.fsdecode(b"caf\xe9")  # no UTF-8
    (results / name).write_text("x")
    assert [file.path for file in index_of(results).files] == [name, "sub/model"]


def test_a_half_written_file_of_a_killed_process_is_not_a_result(results, monkeypatch):
    class Killed(BaseException):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(Path, "replace", kill)
    monkeypatch.setattr(Path, "unlink", kill)
    with pytest.raises(Killed):
        contract.write_whole(results / "model.pt", b"half")
    with pytest.raises(Killed):
        export(torch.nn.Linear(2, 2), torch.ones(4, 2), results / "model.ts", "torchscript")
    monkeypatch.undo()
    (results / ".mine").write_text("a hidden file of the user's")
    assert len(list(results.iterdir())) == 4
    index = index_of(results)
    assert [file.path for file in index.files] == [".mine", "sub/model"]
    assert index.left_out == []


def test_a_path_that_is_not_a_file_is_named(results):
    (results.parent / "secret").write_text("s")
    (results / "outside").symlink_to("../secret")
    (results / "nothing").symlink_to("gone")
    (results / "loop").symlink_to("loop")
    (results / "folder").symlink_to("sub")
    os.mkfifo(results / os.fsdecode(b"pipe\xe9"))
    index = index_of(results)
    assert [file.path for file in index.files] == ["sub/model"]
    assert index.left_out == ["folder", "loop", "nothing", "outside", os.fsdecode(b"pipe\xe9")]
    said = tell_index(index)[1]
    assert said.startswith("left out: 5: 'folder', 'loop', 'nothing', 'outside', ")
    said.encode()
    for number in range(12):
        os.mkfifo(results / f"{number:02}")
    said = tell_index(index_of(results))[1]
    assert said.startswith("left out: 17: '00', ") and said.endswith("'09', …"), "not all"
