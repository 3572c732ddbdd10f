"""Results are in a file before they are sent, and there until their broker has them."""

import errno
import os
from pathlib import Path

import pytest

from dlctl.contract import search as files
from search.errors import SearchError
from search.protocol import messages as m
from search.worker import outbox as outbox_module
from search.worker.outbox import Outbox


def make(job_dir: Path) -> Outbox:
    (job_dir / files.FOLDER).mkdir(exist_ok=True)
    return Outbox(job_dir, "w1")


def ids(box: Outbox, broker: str) -> list[str]:
    return [result.task_id for result in box.first(broker, 100, 1 << 30)]


def test_a_killed_worker_finds_its_results_again(tmp_path):
    box = make(tmp_path)
    for task in "abc":
        box.put("b1", m.Result(task_id=task, value=b"1"))
    box.put("b2", m.Result(task_id="d"))
    box.taken("b1", ["a", "never seen"])
    again = make(tmp_path)  # the first was not closed
    assert ids(again, "b1") == ["b", "c"] and ids(again, "b2") == ["d"]
    assert again.first("b1", 1, 1 << 30)[0].value == b"1"


def test_a_torn_tail_is_left_out(tmp_path):
    box = make(tmp_path)
    box.put("b1", m.Result(task_id="a"))
    path = tmp_path / files.OUTBOXES / "w1.log"
    path.write_bytes(path.read_bytes() + b"\x00\x01torn")
    again = make(tmp_path)
    again.put("b1", m.Result(task_id="b"))
    assert ids(make(tmp_path), "b1") == ["a", "b"]


def test_an_empty_outbox_leaves_no_file(tmp_path):
    box = make(tmp_path)
    box.put("b1", m.Result(task_id="a"))
    box.taken("b1", ["a"])
    box.close()
    assert not list((tmp_path / files.OUTBOXES).iterdir())


def test_the_file_does_not_grow_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(outbox_module, "_REWRITE_BYTES", 10_000)
    box = make(tmp_path)
    for number in range(100):
        box.put("b1", m.Result(task_id=str(number), value=b"x" * 1000))
        box.taken("b1", [str(number)])
    assert (tmp_path / files.OUTBOXES / "w1.log").stat().st_size < 15_000


def test_at_least_one_result_is_sent_and_no_more_than_fit(tmp_path):
    box = make(tmp_path)
    for task in "abc":
        box.put("b1", m.Result(task_id=task, value=b"x" * 100))
    assert [r.task_id for r in box.first("b1", 10, 50)] == ["a"]
    assert [r.task_id for r in box.first("b1", 10, 250)] == ["a", "b"]
    assert [r.task_id for r in box.first("b1", 2, 5000)] == ["a", "b"]


def test_on_a_full_disk_results_are_sent_all_the_same(tmp_path, monkeypatch, capsys):
    box = make(tmp_path)
    box.put("b1", m.Result(task_id="a"))
    real = os.write

    def write(file: int, data: bytes) -> int:
        real(file, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "write", write)
        box.put("b1", m.Result(task_id="b"))
        box.put("b1", m.Result(task_id="c"))
    box.put("b1", m.Result(task_id="d"))
    assert ids(box, "b1") == ["a", "b", "c", "d"]
    assert capsys.readouterr().out.count("No space left") == 1
    assert ids(make(tmp_path), "b1") == ["a", "d"]


def test_an_outbox_that_can_not_be_made_anew_goes_on_in_its_file(tmp_path, monkeypatch):
    """The worker's link died of it, and the worker sent nothing any more."""
    monkeypatch.setattr(outbox_module, "_REWRITE_BYTES", 0)
    box = make(tmp_path)
    (tmp_path / files.OUTBOXES / "w1.new").mkdir()  # as a full disk: no new file can be opened
    box.put("b1", m.Result(task_id="a"))
    box.taken("b1", ["a"])
    box.put("b1", m.Result(task_id="b"))
    (tmp_path / files.OUTBOXES / "w1.new").rmdir()
    assert ids(make(tmp_path), "b1") == ["b"]


def test_a_folder_that_takes_no_outbox_is_named(tmp_path):
    (tmp_path / files.FOLDER).write_text("no folder")
    with pytest.raises(SearchError, match=r"can't be stored in .*outboxes/w1.log"):
        Outbox(tmp_path, "w1")
