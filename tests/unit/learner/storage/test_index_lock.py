"""The supervisor and an export change the results' index one after the other."""

from __future__ import annotations

import errno

import pytest

from dlctl import contract
from learner.storage import index
from learner.storage.index import alone, write_index


@pytest.fixture
def job_dir(tmp_path):
    (tmp_path / contract.RESULTS).mkdir()
    (tmp_path / contract.RESULTS / "model.pt").write_text("weights")
    return tmp_path


def test_the_index_waits_for_an_export_and_has_its_file(job_dir):
    results, ticks = job_dir / contract.RESULTS, []
    export = alone(results)
    export.__enter__()

    def tick():
        ticks.append(1)
        if len(ticks) == 1:
            assert not (job_dir / contract.RESULTS_INDEX).exists()
            (results / "model.onnx").write_text("exported")
            export.__exit__(None, None, None)

    written = write_index(job_dir, tick)
    assert ticks
    assert [file.path for file in written.files] == ["model.onnx", "model.pt"]
    assert contract.read_record(contract.ResultsIndex, job_dir / contract.RESULTS_INDEX) == written


def test_an_export_that_hangs_delays_the_index_but_does_not_prevent_it(job_dir, monkeypatch):
    monkeypatch.setattr(index, "_PATIENCE_S", 0.1)
    with alone(job_dir / contract.RESULTS):
        assert [file.path for file in write_index(job_dir).files] == ["model.pt"]


def test_a_file_system_without_locks_has_an_index_too(job_dir, monkeypatch):
    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(index.fcntl, "flock", refuse)
    assert [file.path for file in write_index(job_dir).files] == ["model.pt"]
