"""Each run of a task has a folder of its own, with what the run before it left."""

from pathlib import Path

import pytest

from search.protocol import messages as m
from search.worker.folders import NEWEST, claim, copy, relative, tidy

ID = "0" * 32


def task(checkpoint: str = "", task_id: str = ID) -> m.Task:
    return m.Task(id=task_id, checkpoint=checkpoint)


def run(job_dir: Path, given: m.Task) -> Path:
    folder, source = claim(job_dir, given)
    if source is not None:
        copy(source, folder)
    return folder


def test_a_run_beside_another_has_a_copy(tmp_path):
    first = run(tmp_path, task())
    (first / "deep").mkdir()
    (first / "deep" / "step").write_text("7")
    second = run(tmp_path, task())
    (first / "deep" / "step").write_text("8")  # it was cut off, and goes on
    assert (second / "deep" / "step").read_text() == "7"
    assert (first.parent / NEWEST).resolve() == second


def test_what_was_handed_back_goes_on_in_place(tmp_path):
    first = run(tmp_path, task())
    assert relative(tmp_path, first) == ""
    (first / "step").write_text("7")
    assert run(tmp_path, task(relative(tmp_path, first))) == first


def test_a_trial_goes_on_from_another_ones_newest_run(tmp_path):
    parent = task(task_id="1" * 32)
    (run(tmp_path, parent) / "step").write_text("1")
    newest = run(tmp_path, parent)
    (newest / "step").write_text("2")
    child = run(tmp_path, task(f"search/tasks/{parent.id}/{NEWEST}"))
    assert (child / "step").read_text() == "2"
    (child / "step").write_text("3")
    again = run(tmp_path, task(f"search/tasks/{parent.id}/{NEWEST}"))
    assert (again / "step").read_text() == "3"  # its own
    assert (newest / "step").read_text() == "2"


def test_a_worker_in_another_language_had_made_a_plain_folder(tmp_path):
    plain = tmp_path / "search" / "tasks" / ID / NEWEST
    plain.mkdir(parents=True)
    (plain / "step").write_text("7")
    own = run(tmp_path, task())
    assert own != plain and (own / "step").read_text() == "7"


def test_half_a_copy_is_never_gone_on_from(tmp_path, monkeypatch):
    first = run(tmp_path, task())
    for number in range(3):
        (first / str(number)).write_text("whole")
    real, left = __import__("shutil").copy2, iter([True])

    def dies(source: str, target: str) -> object:
        if not next(left, False):
            raise KeyboardInterrupt
        return real(source, target)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("shutil.copy2", dies)
        run(tmp_path, task())
    third = run(tmp_path, task())
    assert sorted(path.name for path in third.iterdir()) == ["0", "1", "2"]


def test_what_is_empty_is_removed(tmp_path):
    folder = run(tmp_path, task())
    (folder.parent / "log").touch()
    tidy(folder.parent, folder)
    assert not folder.parent.exists()
