"""`dlctl checkpoints`: what a shell can read here, and the tool that runs at the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_tools import LARGE, make_engine, store
from login_side import MANIFEST, make_record, plan_of

from dlctl import checkpoints, lifecycle
from dlctl.errors import ResultsError
from dlctl.lifecycle.session import Session
from dlctl.node_side import Answer
from dlctl.transport.local import LocalTransport
from learner.checkpoint import layout, tool
from learner.checkpoint.engine import Keep
from learner.faults import UserFault

SESSION = Session(None, LocalTransport(), None)


@pytest.fixture
def job_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "a job"
    for step in (10, 20, 30):
        store(directory / "checkpoints", step, keep=Keep(3, every_steps=20))
    (directory / "checkpoints" / layout.directory_name(30) / layout.MARKER_FILE).unlink()
    (directory / "checkpoints" / ".tmp-x").mkdir()
    return directory


def test_they_are_listed_and_shown_with_a_shell_alone(job_dir: Path) -> None:
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
    with pytest.raises(ResultsError, match="no complete checkpoint of step 30"):
        checkpoints.show_checkpoint(LocalTransport(), str(job_dir), 30)


def test_verify_names_what_is_damaged(job_dir: Path) -> None:
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


def test_diff_says_what_differs_and_by_how_much(tmp_path: Path) -> None:
    states = {1: {"a": torch.zeros(6), "b": torch.ones(2), "c": torch.ones(3)},
              2: {"a": torch.tensor([0, 0, -2.5, 0, 0, 1]), "b": torch.ones(2),
                  "c": torch.ones(3).half(), "d": torch.ones(1)}}  # fmt: skip
    for step, state in states.items():
        make_engine(tmp_path / "checkpoints").save(step, state)
    answer = tool.main(["diff", str(tmp_path), "1", str(tmp_path), "-"])
    found = {t["name"]: (t["difference"], t["largest"]) for t in answer["tensors"]}
    assert found == {
        "['a']": ("2 of 6 elements", 2.5),
        "['b']": ("none", 0.0),
        "['c']": ("another kind: float32 [3], float16 [3]", None),
        "['d']": ("only in the second", None),
    }
    json.dumps(answer)


def test_the_tool_is_run_at_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def run_module(session: Any, plan: Any, module: str, arguments: Any, **how: Any) -> Answer:
        calls.append((module, list(arguments), how["on_node"]))
        return Answer([], 0)

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
    with pytest.raises(ResultsError, match="one site only|is at"):
        checkpoints.diff(SESSION, record, make_record(site="elsewhere"), [], on_node=False)
