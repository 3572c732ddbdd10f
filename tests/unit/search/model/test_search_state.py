"""The model's search: rebuilt from its log at any moment, and the same in deterministic mode."""

from __future__ import annotations

import json
import random
import resource
from dataclasses import replace

import pytest

from dlctl.contract import search as files
from dlctl.contract.search import Budget, Parameter, Spec, Task
from dlctl.search import trials
from search.errors import SearchError
from search.hub.__main__ import Progress
from search.model.drive import ended_of
from search.model.log import DamagedLogError, TrialLog
from search.model.state import Ended, HopelessError, ReplayError, Search
from search.protocol import messages as m
from search.strategies import make_strategy

SPACE = [Parameter("x", "float", 0.0, 1.0), Parameter("n", "int", 1, 9)]


def spec(strategy="genetic", trials=40, **more):
    options = {"population": 5} if strategy == "genetic" else {}
    return Spec("s", SPACE, Task("python"), strategy, options, metric="loss",
                budget=Budget(trials), **more)  # fmt: skip


def open_search(path, what):
    return Search(what, make_strategy(what), TrialLog(path / files.TRIALS), clock=lambda: 5.0)


def ended(point):
    return Ended("SUCCEEDED", {"loss": (point["x"] - 0.5) ** 2 + point["n"]})


def run(search, window, numbers, path=None, kill=None):
    """Run to the end; results come in any order; rebuild the search now and then."""
    calls = 0
    while not search.is_done():
        while n := search.wanted(window):
            search.ask(n)
        if not search.outstanding:
            continue
        number = numbers.choice(sorted(search.outstanding))
        search.end(search.outstanding[number], ended(search.trials[number].point))
        calls += 1
        if kill is not None and calls % kill == 0:
            search = open_search(path, search.spec)
    return search


@pytest.mark.parametrize("kill", [None, 1, 7])
def test_a_deterministic_search_has_the_same_trials_in_any_order_of_results(tmp_path, kill):
    what = spec(deterministic=True, window=4)
    (tmp_path / "in-order").mkdir()
    first = run(open_search(tmp_path / "in-order", what), 4, random.Random(0))
    for seed in range(1, 4):
        (folder := tmp_path / str(seed)).mkdir()
        other = run(open_search(folder, what), 4, random.Random(seed), folder, kill)
        assert [t.point for t in other.trials] == [t.point for t in first.trials]
        assert other.best == first.best


@pytest.mark.parametrize("strategy", ["random", "genetic", "grid"])
def test_a_search_that_is_rebuilt_goes_on_as_if_nothing_had_happened(tmp_path, strategy):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole = run(open_search(tmp_path / "a", spec(strategy)), 3, random.Random(1))
    often = run(
        open_search(tmp_path / "b", spec(strategy)), 3, random.Random(1), tmp_path / "b", kill=1
    )
    assert [t.point for t in often.trials] == [t.point for t in whole.trials]
    assert (often.result_count, often.best) == (whole.result_count, whole.best)


def test_a_result_counts_once(tmp_path):
    search = open_search(tmp_path, spec())
    (trial,) = search.ask(1)
    task_id = search.outstanding[0]
    assert search.end(task_id, ended(trial.point)) and not search.end(task_id, ended(trial.point))
    assert not search.end("f" * 32, ended(trial.point)), "no trial of this search"
    again = open_search(tmp_path, spec())
    assert not again.end(task_id, ended(trial.point)) and again.result_count == 1


def test_a_line_that_was_never_finished_is_cut(tmp_path):
    search = open_search(tmp_path, spec())
    search.ask(2)
    path = tmp_path / files.TRIALS
    with path.open("a") as file:
        file.write('{"event":"tell","num')
    again = open_search(tmp_path, spec())
    assert len(again.trials) == 2 and set(again.outstanding) == {0, 1}
    again.end(again.outstanding[1], ended(again.trials[1].point))
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [event["event"] for event in events] == ["begin", "ask", "begin", "tell"]


def test_a_damaged_line_is_named(tmp_path):
    open_search(tmp_path, spec()).ask(2)
    path = tmp_path / files.TRIALS
    path.write_bytes(path.read_bytes() + b"\0\0\n")
    with pytest.raises(DamagedLogError, match=r"line 3 of .*trials.jsonl can't be read"):
        open_search(tmp_path, spec())


def test_a_full_disk_is_said_and_leaves_no_half_line(tmp_path):
    search = open_search(tmp_path, spec())
    search.ask(2)
    path = tmp_path / files.TRIALS
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(SearchError, match=r"trials.jsonl can't be written: File too large"):
            search.ask(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before


def test_another_seed_is_no_continuation(tmp_path):
    open_search(tmp_path, spec()).ask(1)
    with pytest.raises(ReplayError, match="answers otherwise than it did at trial 0"):
        open_search(tmp_path, spec(seed=1))


@pytest.mark.parametrize(("result", "metric"), [
    (Ended("SUCCEEDED", {"loss": 2}), 2.0),
    (Ended("SUCCEEDED", 3.5), 3.5),
    (Ended("SUCCEEDED", {"loss": float("nan")}), None),
    (Ended("SUCCEEDED", {"loss": 10**400}), None),
    (Ended("SUCCEEDED", {"lost": 1}), None),
    (Ended("SUCCEEDED", "text"), None),
    (Ended("FAILED", {"loss": 2}, error="raised"), None),
    (Ended("CANCELLED", None, {"loss": 4.0}), 4.0),
])  # fmt: skip
def test_only_a_finite_number_is_a_metric(tmp_path, result, metric):
    search = open_search(tmp_path, spec())
    search.ask(1)
    search.end(search.outstanding[0], result)
    told = json.loads((tmp_path / files.TRIALS).read_text().splitlines()[-1])
    assert told["metric"] == metric and search.failed == (metric is None)
    is_lacking = result.outcome == "SUCCEEDED" and metric is None
    assert ("the result has no finite number 'loss'" in told["error"]) == is_lacking
    assert "NaN" not in (tmp_path / files.TRIALS).read_text()


def test_the_greatest_is_best_if_it_is_to_be_maximized(tmp_path):
    search = open_search(tmp_path, spec("random", maximize=True))
    search.ask(3)
    for number, loss in enumerate((1.0, 7.0, 3.0)):
        search.end(search.outstanding[number], Ended("SUCCEEDED", {"loss": loss}))
    assert search.best == (7.0, 1)


def test_a_budget_of_node_hours_ends_a_search_also_after_a_restart(tmp_path):
    what = replace(spec("random"), budget=Budget(node_hours=2.0))
    search = open_search(tmp_path, what)
    first, second = search.ask(2)
    search.used_node_s = 7199.0
    search.end(search.outstanding[first.number], ended(first.point))
    assert search.wanted(4) == 3
    search.used_node_s = 7200.0
    search.end(search.outstanding[second.number], ended(second.point))
    assert search.is_done()
    assert open_search(tmp_path, what).is_done()


def test_a_value_nested_too_deep_to_be_read_is_an_error():
    result = m.Result(outcome=m.SUCCEEDED, value=b"[" * 100_000 + b"]" * 100_000)
    ended = ended_of(m.Accepted(result=result))
    assert ended.value is None and "can't be read as JSON" in ended.error


FAILED = Ended("FAILED", error="ModuleNotFoundError: No module named 'trails'")


def fail(search, window, most, numbers):
    """Let trials fail, in any order, until the search gives up."""
    for _ in range(most):
        while n := search.wanted(window):
            search.ask(n)
        search.end(search.outstanding[numbers.choice(sorted(search.outstanding))], FAILED)
        search.give_up_in_vain()


@pytest.mark.parametrize("more", [{}, {"deterministic": True, "window": 4}])
def test_a_search_in_which_all_trials_fail_gives_up_and_a_resumed_one_tries_as_many(tmp_path, more):
    what = replace(spec(**more), budget=Budget(40, failures=6))
    says = (
        "^[0-9]+ trials have failed, and none has ended well; the newest, trial .*No module named"
    )
    for seed in range(3):
        (folder := tmp_path / str(seed)).mkdir()
        search = open_search(folder, what)
        with pytest.raises(HopelessError, match=says):
            fail(search, 4, 40, random.Random(seed))
        assert search.wanted(4) == 0 and not search.is_done()
        again = open_search(folder, what)
        assert again.wanted(4) > 0, "it goes on"
        before = len(again.trials)
        with pytest.raises(HopelessError):
            fail(again, 4, 40, random.Random(seed))
        assert not set(again.outstanding) & set(range(before, before + 6))


def test_trials_that_fail_at_once_do_not_end_a_search_whose_first_ones_still_run(tmp_path):
    search = open_search(tmp_path, replace(spec(), budget=Budget(40, failures=6)))
    search.ask(20)
    for number in range(1, 20, 2):
        search.end(search.outstanding[number], FAILED)
        search.give_up_in_vain()
    assert search.wanted(20) == 10
    for number in (0, 2, 4):
        search.end(search.outstanding[number], FAILED)
    with pytest.raises(HopelessError, match="^13 trials have failed"):
        search.give_up_in_vain()


def test_one_good_trial_is_hope_and_a_search_may_be_told_never_to_give_up(tmp_path):
    for name, failures, good in (("good", 3, 1), ("never", 0, 0)):
        (tmp_path / name).mkdir()
        search = open_search(tmp_path / name, replace(spec(), budget=Budget(9, failures=failures)))
        for trial in search.ask(9):
            is_good = trial.number < good
            search.end(search.outstanding[trial.number], ended(trial.point) if is_good else FAILED)
            search.give_up_in_vain()
        assert search.is_done() and search.failed == 9 - good


def test_a_search_that_is_done_without_a_good_trial_has_failed_also_when_it_is_resumed(tmp_path):
    what = replace(spec(), budget=Budget(1, failures=10))
    search = open_search(tmp_path, what)
    search.ask(1)
    search.end(search.outstanding[0], FAILED)
    for _ in range(2):
        with pytest.raises(HopelessError, match="^1 trial has failed"):
            search.give_up_in_vain()
        search = open_search(tmp_path, what)


def test_of_a_long_error_both_ends_are_told(tmp_path):
    search = open_search(tmp_path, replace(spec(), budget=Budget(1, failures=1)))
    search.ask(1)
    error = f"RuntimeError: the training failed: {'/long/path' * 99}: No module named 'trails'"
    search.end(search.outstanding[0], Ended("FAILED", error=error))
    with pytest.raises(HopelessError, match="RuntimeError: the.* … .*No module named") as told:
        search.give_up_in_vain()
    assert len(told.value.message) < 400


# Two models of one search write to its log at the same time -----------------------------------


def end_one(search):
    number, task_id = min(search.outstanding.items())
    return search.end(task_id, Ended("SUCCEEDED", {"loss": float(number)}))


def test_a_model_ends_once_another_one_has_begun(tmp_path):
    first = open_search(tmp_path, spec("random", 9))
    first.ask(2)
    second = open_search(tmp_path, spec("random", 9))
    assert second.outstanding == first.outstanding
    with pytest.raises(SearchError, match="another model"):
        end_one(first)
    assert end_one(second)
    with pytest.raises(SearchError, match="another model"):
        first.ask(1)
    assert len(open_search(tmp_path, spec("random", 9)).outstanding) == 1


def test_a_model_that_only_waits_ends_once_another_one_has_begun(tmp_path):
    """The other one takes all results: it waited for them for ever."""
    first = open_search(tmp_path, spec("random", 9))
    first.ask(2)
    first.look()
    open_search(tmp_path, spec("random", 9))
    with pytest.raises(SearchError, match="another model"):
        first.look()


def test_what_a_former_model_still_writes_counts_for_nobody(tmp_path):
    """It hung between its look at the log and its line, which comes behind the other's."""
    path = tmp_path / files.TRIALS
    first = open_search(tmp_path, spec("random", 9))
    first.ask(2)
    asked = [line for line in path.read_bytes().splitlines(keepends=True) if b'"ask"' in line]
    second = open_search(tmp_path, spec("random", 9))
    with path.open("ab") as file:
        file.writelines(asked)
    assert end_one(second), "the newest goes on"
    assert (path.read_bytes().count(b'"ask"'), len(second.trials)) == (2, 2)
    log = trials.TrialLog()
    log.feed(path.read_bytes())
    assert len(log.rows) == 2
    progress = Progress(tmp_path, spec("random", 9))
    progress.look()
    assert (progress.proposed, progress.done) == (2, 1)
    third = open_search(tmp_path, spec("random", 9))
    assert len(third.trials) == 2 and third.outstanding == second.outstanding


def test_a_log_of_an_earlier_version_goes_on(tmp_path):
    path = tmp_path / files.TRIALS
    open_search(tmp_path, spec("random", 9)).ask(2)
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    old = [{k: v for k, v in e.items() if k != "model"} for e in events if e["event"] != "begin"]
    path.write_text("".join(json.dumps(event) + "\n" for event in old))
    assert len(open_search(tmp_path, spec("random", 9)).trials) == 2
