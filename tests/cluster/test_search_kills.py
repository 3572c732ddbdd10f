"""Each part of a search is killed on a real Slurm; its trials are those of the undisturbed run."""

from __future__ import annotations

import collections
import random
import sys

import pytest
from search_kills import STRATEGIES, Killed

PARTS = ("worker", "broker", "nameserver", "model", "hub")


def test_a_search_whose_every_part_was_killed_ends_as_the_undisturbed_one(
    dlctl, cluster_site, wait_until
):
    search = Killed(dlctl, cluster_site, wait_until, "deterministic")
    for part in PARTS:
        search.wait_for_more()
        search.kill(f"search.{part}")
    search.wait_for_more()
    search.kill_everything()
    search.check()


def test_a_node_that_was_cut_off_and_healed_changes_nothing(dlctl, cluster_site, wait_until):
    search = Killed(dlctl, cluster_site, wait_until, "random", trials=160)
    search.wait_for_more()
    with search.cut_off_a_worker():
        wait_until(search.begun_twice, what="its trial at another worker")
    search.check()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_forty_kills_of_a_search(dlctl, cluster_site, wait_until, strategy):
    random.seed(1)
    played: list[str] = []
    runs = 0
    while len(played) < 40:
        search = Killed(dlctl, cluster_site, wait_until, strategy)
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
