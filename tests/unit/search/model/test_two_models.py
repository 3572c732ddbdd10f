"""Two models of one search write to its log at the same time: only the newest one counts."""

from __future__ import annotations

import json

import pytest

from dlctl.contract.search import Budget, Parameter, Spec, Task
from dlctl.search import trials
from search.errors import SearchError
from search.hub.__main__ import Progress
from search.model.log import TrialLog
from search.model.state import Ended, Search
from search.strategies import make_strategy

SPEC = Spec("s", [Parameter("x", "float", 0.0, 1.0)], Task("python"), "random", {}, metric="loss",
            budget=Budget(9))  # fmt: skip


def begin(job_dir):
    return Search(SPEC, make_strategy(SPEC), TrialLog(job_dir / "search/trials.jsonl"))


def end_one(search):
    number, task_id = min(search.outstanding.items())
    return search.end(task_id, Ended("SUCCEEDED", {"loss": float(number)}))


def test_a_model_ends_once_another_one_has_begun(tmp_path):
    first = begin(tmp_path)
    first.ask(2)
    second = begin(tmp_path)
    assert second.outstanding == first.outstanding
    with pytest.raises(SearchError, match="another model"):
        end_one(first)
    assert end_one(second)
    with pytest.raises(SearchError, match="another model"):
        first.ask(1)
    assert len(begin(tmp_path).outstanding) == 1


def test_a_model_that_only_waits_ends_once_another_one_has_begun(tmp_path):
    """The other one takes all results: it waited for them for ever."""
    first = begin(tmp_path)
    first.ask(2)
    first.look()
    begin(tmp_path)
    with pytest.raises(SearchError, match="another model"):
        first.look()


def test_what_a_former_model_still_writes_counts_for_nobody(tmp_path):
    """It hung between its look at the log and its line, which comes behind the other's."""
    path = tmp_path / "search/trials.jsonl"
    first = begin(tmp_path)
    first.ask(2)
    asked = [line for line in path.read_bytes().splitlines(keepends=True) if b'"ask"' in line]
    second = begin(tmp_path)
    with path.open("ab") as file:
        file.writelines(asked)
    assert end_one(second), "the newest goes on"
    assert (path.read_bytes().count(b'"ask"'), len(second.trials)) == (2, 2)
    log = trials.TrialLog()
    log.feed(path.read_bytes())
    assert len(log.rows) == 2
    progress = Progress(tmp_path, SPEC)
    progress.look()
    assert (progress.asked, progress.done) == (2, 1)
    third = begin(tmp_path)
    assert len(third.trials) == 2 and third.outstanding == second.outstanding


def test_a_log_of_an_earlier_version_goes_on(tmp_path):
    path = tmp_path / "search/trials.jsonl"
    begin(tmp_path).ask(2)
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    old = [{k: v for k, v in e.items() if k != "model"} for e in events if e["event"] != "begin"]
    path.write_text("".join(json.dumps(event) + "\n" for event in old))
    assert len(begin(tmp_path).trials) == 2
