"""Each part of a search is killed on a real Slurm; its trials are those of the undisturbed run."""

from __future__ import annotations

import collections
import random
import sys

import pytest
from search_kills import STRATEGIES, Killed, descendants, processes, stopped
from waiting import wait_until

from dlctl import contract

PARTS = ("worker", "broker", "nameserver", "model", "hub")


def test_a_search_whose_every_part_was_killed_ends_as_the_undisturbed_one(dlctl, cluster_site):
    search = Killed(dlctl, cluster_site, "deterministic")
    for part in PARTS:
        search.wait_for_more()
        search.kill(f"search.{part}")
    search.wait_for_more()
    search.kill_everything()
    search.check()


def test_a_worker_that_hung_changes_nothing_and_its_late_result_is_counted(dlctl, cluster_site):
    search = Killed(dlctl, cluster_site, "random", trials=160)
    search.wait_for_more()
    with search.stop_a_worker():
        wait_until(search.begun_twice, what="its trial at another worker")
    search.check()
    assert_late_ones_are_counted(search)


def assert_late_ones_are_counted(search: Killed) -> None:
    """Each run beyond a trial's first was dropped and counted; an answer that was lost counts, too.

    Where no worker died, each run has brought a result.
    """
    late = len(search.begun()) - search.trials
    counted = search.counted()
    dropped = sum(each["dropped"] for each in counted.values())
    print(f"{late} late runs, counted: {counted}", file=sys.stderr)
    assert late >= 1
    assert late <= dropped <= late + 1
    assert (counted["b0"]["accepted"], counted["b0"]["failed"]) == (search.trials, 0)


@pytest.mark.long
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_everything_is_killed_for_good_and_resumed(dlctl, cluster_site, strategy):
    search = Killed(dlctl, cluster_site, strategy)
    for _ in range(3):
        search.wait_for_more(random.randint(10, 25))
        search.kill_everything_for_good()
    search.check()


@pytest.mark.long
def test_two_hubs_at_once_change_nothing(dlctl, cluster_site, cluster):
    """The first one hangs on a node that is cut off, from the others, not from the disk.

    It comes back while the second one works.
    """
    search = Killed(dlctl, cluster_site, "deterministic", trials=400)
    search.wait_for_more()
    node = search.place("b0")
    (first,) = processes("search.hub", search.job_dir)
    hub = {each for module in ("learner.supervisor", "learner.agent", "search.hub")
           for pid in processes(module, search.job_dir) for each in descendants(pid)}  # fmt: skip
    with stopped(sorted(hub)):
        cluster.node_cut(node)
        wait_until((search.job_dir / contract.claim(2)).exists, 150, what="a second hub")
        search.wait_for_more(20)
        hubs = processes("search.hub", search.job_dir)
        assert first in hubs and len(hubs) == 2, "both are there"
    wait_until(lambda: first not in processes("search.hub", search.job_dir), what="the first's end")
    search.wait_for_more(20)
    assert not search.is_over(), "it was over before the first hub had ended"
    cluster.node_heal(node)
    search.check()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_forty_kills_of_a_search(dlctl, cluster_site, strategy):
    random.seed(1)
    played: list[str] = []
    runs = 0
    while len(played) < 40:
        search = Killed(dlctl, cluster_site, strategy)
        runs += 1
        while not search.is_over():
            search.wait_for_more(random.randint(1, 12))
            if search.is_over():
                break
            part = random.choice(PARTS)
            if part == "hub":
                search.kill_hub()
            else:
                search.kill(f"search.{part}")
        search.check()
        played += search.kills
    print(f"{strategy}: {runs} searches, {dict(collections.Counter(played))}", file=sys.stderr)
