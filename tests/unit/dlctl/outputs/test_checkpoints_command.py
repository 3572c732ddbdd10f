"""`dlctl checkpoints`: what a shell can read here, and the tool that runs at the site."""

from __future__ import annotations

import json
import math
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_tools import LARGE, make_engine, store
from login_side import MANIFEST, make_record, plan_of

from dlctl import lifecycle
from dlctl.errors import ResultsError
from dlctl.lifecycle.session import Session
from dlctl.outputs import checkpoints
from dlctl.outputs.insight import saved_of
from dlctl.series.answers import Known, answers
from dlctl.series.run import Run
from dlctl.transport.local import LocalTransport
from learner.checkpoint import tool
from learner.checkpoint.engine import Keep
from learner.checkpoint_files import layout
from learner.errors import UserFault
from learner.export import __main__ as job
from learner.lifecycle.history import newest_checkpoint

SESSION = Session(None, LocalTransport(), None)


@pytest.fixture
def job_dir(tmp_path):
    directory = tmp_path / "a job"
    for step in (10, 20, 30):
        store(directory / "checkpoints", step, keep=Keep(3, every_steps=20))
    (directory / "checkpoints" / layout.directory_name(30) / layout.MARKER_FILE).unlink()
    (directory / "checkpoints" / ".tmp-x").mkdir()
    return directory


def test_a_file_that_vanishes_while_files_are_listed_is_left_out(tmp_path, monkeypatch):
    """A program renames what it has written, at any moment."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("count-0", "count-0.new"):
        (folder / name).write_text("7")
    programs = tmp_path / "programs"
    programs.mkdir()
    stat = programs / "stat"
    gone, real = folder / "count-0.new", shutil.which("stat")
    stat.write_text(f'#!/bin/sh\nrm -f {gone}\nexec {real} "$@"\n')
    stat.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    assert [c.name for c in checkpoints.list_checkpoints(SESSION.transport, str(tmp_path))] == [
        "count-0"
    ]


def test_no_name_of_a_checkpoint_hides_it_or_another_one(tmp_path):
    """Names with line breaks were left out, and one with a separator moved the others."""
    odd = ["a\nb-1.pt", "step-\x1e", "\udcff-3.pt"]
    for number, names in (("1", odd), ("2", ["x-4.pt"])):
        (tmp_path / number / "checkpoints").mkdir(parents=True)
        for name in names:
            (tmp_path / number / "checkpoints" / name).write_text("12")
    jobs = [str(tmp_path / number) for number in "12"]
    first, second = checkpoints.list_checkpoints_of_many(SESSION.transport, jobs).values()
    assert {(c.name, c.step) for c in first} == {("a\nb-1.pt", 1), ("\udcff-3.pt", 3)}
    assert [(c.name, c.step) for c in second] == [("x-4.pt", 4)]
    (tmp_path / "1/checkpoints" / layout.directory_name(7)).mkdir()
    found = checkpoints.list_checkpoints_of_many(SESSION.transport, jobs)
    assert [[c.step for c in each] for each in found.values()] == [[7], [4]]


def test_a_programs_own_names_have_its_own_steps_or_none(tmp_path):
    """dlctl's folders have steps of twelve digits; only these have a marker of dlctl's."""
    for step in (9, 10):
        (tmp_path / f"checkpoints/step-{step}").mkdir(parents=True)
        (tmp_path / f"checkpoints/step-{step}/model.bin").write_text("x" * step)
    found = checkpoints.list_checkpoints(SESSION.transport, str(tmp_path))
    assert [(c.name, c.step, c.complete) for c in found] == [
        ("step-10", 10, True), ("step-9", 9, True),
    ]  # fmt: skip
    assert newest_checkpoint(tmp_path, "step-*")[0] == 10
    (tmp_path / "checkpoints/best.pt").write_text("12")
    (tmp_path / "plan.json").write_text('{"checkpoint": {"files": "*.pt"}}')
    (found,) = checkpoints.list_checkpoints(SESSION.transport, str(tmp_path))
    assert (found.step, found.complete) == (None, True)
    told = answers(Run("t"), Known(0.0, checkpoints=saved_of([found]), ended=True))
    assert [a.text for a in told if a.key == "checkpoint"] == ["Yes, 2 B."]


def test_they_are_listed_and_shown_with_a_shell_alone(job_dir):
    found = checkpoints.list_checkpoints(LocalTransport(), str(job_dir))
    assert [(c.step, c.complete, c.kept_for_ever) for c in found] == [
        (30, False, False), (20, True, True), (10, True, False),
    ]  # fmt: skip
    assert found[1].size_bytes is not None
    assert found[1].size_bytes > 4 * LARGE
    shown = checkpoints.show_checkpoint(LocalTransport(), str(job_dir), None)
    assert (shown["step"], shown["settings"]["seed"]) == (20, 5)
    big = next(t for t in shown["tensors"] if t["name"] == "['big']")
    assert (big["dtype"], big["shape"]) == ("int64", [LARGE])
    assert big["places"] == ["share-0.h5:1:0"]
    assert checkpoints.list_checkpoints(LocalTransport(), str(job_dir / "none")) == []
    make_engine(job_dir / "checkpoints").save(40, {"step": 40}, {"seed": 5, "learners": 3})
    newest = checkpoints.list_checkpoints(LocalTransport(), str(job_dir))[0]
    assert (newest.step, newest.learners) == (40, 3), "although the first learner alone saves"
    with pytest.raises(ResultsError, match="no complete checkpoint of step 30"):
        checkpoints.show_checkpoint(LocalTransport(), str(job_dir), 30)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("state.json", "{}"), ("state.json", "[1]"), ("state.json", '{"leaves": [{"name": "x"}]}'),
        ("state.json", None), ("share-0.json", "{}"), ("share-0.json", '{"pieces": [1]}'),
    ],
)  # fmt: skip
def test_a_checkpoint_that_is_not_understood_is_named(job_dir, name, content):
    path = job_dir / "checkpoints" / layout.directory_name(20) / name
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ResultsError, match=r"step-000000000020 can't be understood"):
        checkpoints.show_checkpoint(LocalTransport(), str(job_dir), 20)


@pytest.mark.parametrize(
    "content", ["[1]", "{}", '{"files": {"a": 1}}', '{"files": {}, "epoch": []}']
)
def test_a_marker_that_is_not_understood_makes_no_complete_checkpoint(job_dir, content):
    marker = job_dir / "checkpoints" / layout.directory_name(20) / layout.MARKER_FILE
    marker.write_text(content)
    found = checkpoints.list_checkpoints(LocalTransport(), str(job_dir))
    assert [(c.step, c.complete) for c in found] == [(30, False), (20, False), (10, True)]
    with pytest.raises(ResultsError, match="no complete checkpoint of step 20"):
        checkpoints.show_checkpoint(LocalTransport(), str(job_dir), 20)


def test_many_learners_cost_few_round_trips(job_dir, monkeypatch):
    folder = job_dir / "checkpoints" / layout.directory_name(20)
    marker = json.loads((folder / layout.MARKER_FILE).read_text())
    share = json.loads((folder / layout.record_file(0)).read_text())
    for rank in range(1, 256):
        (folder / layout.record_file(rank)).write_text(json.dumps({**share, "rank": rank}))
        marker["files"][layout.record_file(rank)] = {"size_bytes": 1, "crc32": 1}
    marker["learners"] = 10**9
    (folder / layout.MARKER_FILE).write_text(json.dumps(marker))
    calls: list[str] = []
    run = LocalTransport.run
    monkeypatch.setattr(
        LocalTransport, "run", lambda *args, **how: calls.append(args[1]) or run(*args, **how)
    )
    shown = checkpoints.show_checkpoint(LocalTransport(), str(job_dir), 20)
    big = next(t for t in shown["tensors"] if t["name"] == "['big']")
    assert len(big["places"]) == 256
    assert len(calls) == 3
    assert max(map(len, calls)) < 128 * 1024


def test_verify_names_the_damaged_files(job_dir):
    share = job_dir / "checkpoints" / layout.directory_name(10) / layout.share_file(0)
    content = bytearray(share.read_bytes())
    content[9] ^= 1  # in the structure of the file, which loading does not need
    share.write_bytes(content)
    answer = tool.main(["verify", str(job_dir)])
    assert [(one["step"], one["problem"] is None) for one in answer] == [
        (30, False), (20, True), (10, False),
    ]  # fmt: skip
    assert "the structure of share-0.h5" in answer[2]["problem"]
    with pytest.raises(UserFault, match="no checkpoint of step 7"):
        tool.main(["verify", str(job_dir), "7"])


def test_what_training_removes_meanwhile_is_not_damaged(job_dir, monkeypatch):
    def problem(directory: Path) -> str | None:
        if directory.name == layout.directory_name(10):
            shutil.rmtree(directory)
        return look(directory)

    look = tool.problem
    monkeypatch.setattr(tool, "problem", problem)
    assert [one["step"] for one in tool.verify(job_dir / "checkpoints", [])] == [30, 20]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("state.json", lambda state: state["leaves"].pop()),
        ("state.json", lambda state: state["leaves"][1].pop("name")),
        ("state.json", lambda state: state["leaves"][1].update(shape=[10**6])),
        ("state.json", lambda state: state["leaves"][1].update(dtype="none")),
        ("state.json", lambda state: state.pop("leaves")),
        ("share-0.json", lambda share: share["pieces"][0].update(offset_bytes="x")),
        ("share-0.json", lambda share: [piece.update(crc32=[]) for piece in share["pieces"]]),
    ],
)
def test_records_that_do_not_fit_are_damage_of_one_checkpoint(job_dir, name, change):
    folder = job_dir / "checkpoints" / layout.directory_name(20)
    record = json.loads((folder / name).read_text())
    change(record)
    content = json.dumps(record).encode()
    (folder / name).write_bytes(content)
    marker = json.loads((folder / layout.MARKER_FILE).read_text())
    marker["files"][name] = {"size_bytes": len(content), "crc32": zlib.crc32(content)}
    (folder / layout.MARKER_FILE).write_text(json.dumps(marker))
    answer = tool.main(["verify", str(job_dir), "20", "10"])
    assert [(one["step"], one["problem"] is None) for one in answer] == [(20, False), (10, True)]
    with pytest.raises(UserFault, match=r"can't be understood|has only its first|checksum"):
        tool.main(["diff", str(job_dir), "10", str(job_dir), "20"])
    with pytest.raises(UserFault, match=r"the checkpoint step-0*20 can't be read"):
        job._load_weights(torch.nn.Linear(1, 1), job_dir, "20")


@pytest.mark.parametrize("block_bytes", [8, 4 * 1024**2])
def test_diff_says_what_differs_and_by_how_much(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(tool, "BLOCK_BYTES", block_bytes)
    nan, inf = math.nan, math.inf
    pairs = {
        "a": (torch.zeros(6), torch.tensor([0, 0, -2.5, 0, 0, 1])),
        "b": (torch.ones(2), torch.ones(2)), "c": (torch.ones(3), torch.ones(3).half()),
        "d": (None, torch.ones(1)),
        "e": (torch.tensor([nan, inf, 1, 0]), torch.tensor([nan, inf, nan, -0.0])),
        "f": (torch.tensor([3j, 1, 1]), torch.tensor([0, 1, 1 + 4j])),
    }  # fmt: skip
    for step in (1, 2):
        state = {name: pair[step - 1] for name, pair in pairs.items() if pair[step - 1] is not None}
        make_engine(tmp_path / "checkpoints").save(step, state)
    answer = tool.main(["diff", str(tmp_path), "1", str(tmp_path), "-"])
    found = {t["name"]: (t["difference"], t["largest"]) for t in answer["tensors"]}
    assert found == {
        "['a']": ("2 of 6 elements", 2.5),
        "['b']": ("none", 0.0),
        "['c']": ("another kind: float32 [3], float16 [3]", None),
        "['e']": ("2 of 4 elements", 0.0),
        "['f']": ("2 of 3 elements", 4.0),
        "['d']": ("only in the second", None),
    }
    json.dumps(answer)


def test_the_tool_is_run_at_the_site(monkeypatch):
    calls: list[Any] = []

    def run_module(session: Any, plan: Any, module: str, arguments: Any, **how: Any) -> Any:
        calls.append((module, list(arguments), how["on_node"]))
        return []

    monkeypatch.setattr(checkpoints, "run_module", run_module)
    monkeypatch.setattr(lifecycle, "read_plan", lambda session, record: plan_of(MANIFEST))
    record = make_record()
    checkpoints.verify(SESSION, record, [4], on_node=False)
    checkpoints.diff(SESSION, record, record, [4, 5], on_node=True)
    checkpoints.diff(SESSION, record, record, [], on_node=False)
    here = record.job_dir
    assert [call[1] for call in calls] == [
        ["verify", here, "4"], ["diff", here, "4", here, "5"], ["diff", here, "-", here, "-"],
    ]  # fmt: skip
    assert {call[0] for call in calls} == {"learner.checkpoint.tool"}
    with pytest.raises(ResultsError, match="only checkpoints on the same site|is on"):
        checkpoints.diff(SESSION, record, make_record(site="elsewhere"), [], on_node=False)


def test_what_a_program_saved_under_any_name_is_listed_and_not_called_whole(tmp_path):
    """A model was there, `resume` went on from it, and it was said that there is no checkpoint."""
    folder = tmp_path / "checkpoints"
    (folder / "best").mkdir(parents=True)
    for name in ("last.pt", "best/model.pt", "best/log.txt", ".tmp", "half.tmp"):
        (folder / name).write_text("12")
    os.utime(folder / "last.pt", (5, 5))
    found = checkpoints.list_checkpoints(SESSION.transport, str(tmp_path))
    assert [(c.name, c.size_bytes, c.complete) for c in found] == [
        ("best", 4, None), ("last.pt", 2, None),
    ]  # fmt: skip
    (folder / "model-7.pt").write_text("12")
    (known,) = checkpoints.list_checkpoints(SESSION.transport, str(tmp_path))
    assert (known.name, known.step, known.complete) == ("model-7.pt", 7, True)
