"""How many workers a search wants, and how the hub gets them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from login_side import make_record
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract.search import Pool, Pools, Spec, Task, Workers
from dlctl.scheduler.slurm import Slurm
from dlctl.search.workers import top_up
from dlctl.transport.local import LocalTransport
from search.hub.recruit import Recruiter, Work, needed, shares


@pytest.mark.parametrize(
    ("outstanding", "left", "trial_s", "alive", "workers"),
    [
        (0, 10, 60.0, 0, 0),
        (80, 100, None, 0, 20),
        (81, None, None, 3, 21),
        (80, 1000, 60.0, 3, 20),
        (80, 100, 0.1, 3, 3),  # done in a second
        (2, 2, 0.1, 3, 1),
        (80, 100, 0.1, 0, 20),  # somebody must do it
    ],
)
def test_workers_come_as_long_as_they_come_before_the_work_is_done(
    outstanding, left, trial_s, alive, workers
):
    assert needed(Work(outstanding, left, trial_s), 4, alive) == workers


def test_the_first_pool_is_filled_first():
    pools = [Pool("w", 2, 8), Pool("x", 0, 40, "preemptible")]
    assert shares(pools, 0) == {"w": 0, "x": 0}
    assert shares(pools, 10) == {"w": 8, "x": 2}
    assert shares(pools, 100) == {"w": 8, "x": 40}


@pytest.fixture
def pool(tmp_path):
    pool = Pool("w", 1, 3)
    script(tmp_path / "search/workers/pools.json", contract.to_json(Pools([pool])))
    return pool


def recruiter(tmp_path, scheduler_plan, outstanding):
    contract.write_whole(tmp_path / contract.PLAN, contract.to_json(scheduler_plan))
    spec = Spec("s", [], Task("python"), "random", workers=Workers(1, 3, slots=2))
    return Recruiter(tmp_path, spec, lambda: Work(outstanding, None, None))


def plan_that_lets(*starters):
    lifecycle = contract.Lifecycle(retries=0, starters=list(starters))
    return replace(make_plan(), lifecycle=lifecycle)


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_hub_submits_what_is_missing_once(tmp_path, pool):
    script(tmp_path / "search/workers/alive.sh", f"cat {tmp_path}/alive")
    script(
        tmp_path / pool.submit_file,
        f"mkdir {tmp_path}/search/workers/$1; echo $1 $2 >>{tmp_path}/asked; printf '0\\n2\\n7\\n'",
    )
    (tmp_path / "alive").write_text("w1 6 RUNNING\n")
    hub = recruiter(tmp_path, plan_that_lets("job"), 100)
    hub._look()
    assert (tmp_path / "asked").read_text() == "w1 2\n"
    (tmp_path / "alive").write_text("w1 6 RUNNING\nw1 7_0 PENDING\nw1 7_1 PENDING\n")
    hub._look()
    assert (tmp_path / "asked").read_text() == "w1 2\n"
    assert hub.report["wanted"] == {"w": 3} and hub.report["alive"]["w"] == 3
    (tmp_path / "alive").write_text("")
    hub._look()
    assert (tmp_path / "asked").read_text() == "w1 2\nw2 3\n"


def test_a_refusal_is_told_and_not_repeated_at_once(tmp_path, pool):
    script(tmp_path / "search/workers/alive.sh", ":")
    script(
        tmp_path / pool.submit_file,
        f"echo $1 >>{tmp_path}/asked; printf '1\\n0\\nsbatch: error: QOSMaxSubmitJob\\n'",
    )
    hub = recruiter(tmp_path, plan_that_lets("job"), 100)
    hub._look()
    hub._look()
    assert (tmp_path / "asked").read_text() == "w1\n"
    assert "QOSMaxSubmitJob" in hub.report["error"]


def test_where_nodes_may_not_submit_the_client_is_asked(tmp_path, pool):
    hub = recruiter(tmp_path, plan_that_lets("client"), 100)
    hub._look()
    assert hub.report == {"wanted": {"w": 3}, "alive": None, "by": "client"}


@pytest.mark.parametrize("who", ["hub", "client"])
def test_workers_that_somebody_else_submits_during_the_count_are_not_submitted_again(
    tmp_path, pool, who
):
    workers = tmp_path / "search/workers"
    script(workers / "alive.sh", f"mkdir {workers}/w1; exit 0")  # and they were not there yet
    script(
        tmp_path / pool.submit_file,
        f"mkdir {workers}/$1 || exit 73; echo $1 >>{tmp_path}/asked; printf '0\\n2\\n7\\n'",
    )
    if who == "hub":
        recruiter(tmp_path, plan_that_lets("job"), 100)._look()
    else:
        record = replace(make_record(), job_dir=str(tmp_path))
        session = SimpleNamespace(transport=LocalTransport(), scheduler=Slurm())
        assert top_up(session, record, {"w": 3}) == 0
    assert not (tmp_path / "asked").exists()


def test_workers_that_end_before_any_trial_are_not_replaced_at_once(tmp_path, pool):
    script(tmp_path / "search/workers/alive.sh", f"cat {tmp_path}/alive")
    script(
        tmp_path / pool.submit_file,
        f"mkdir {tmp_path}/search/workers/$1; echo $1 >>{tmp_path}/asked; printf '0\\n2\\n7\\n'",
    )
    (tmp_path / "alive").write_text("")
    ended = [0]
    hub = recruiter(tmp_path, plan_that_lets("job"), 100)
    hub._work = lambda: Work(100, None, None, ended[0])
    for _ in range(6):
        hub._look()
    assert (tmp_path / "asked").read_text() == "w1\nw2\n"
    assert "end before a trial does" in hub.report["error"]
    hub._not_before = 0.0  # as after a minute
    hub._look()
    ended[0] = 1
    for _ in range(3):
        hub._look()
    assert (tmp_path / "asked").read_text() == "w1\nw2\nw3\nw4\nw5\n", "w3 did a trial"
