"""Each part of a search is killed on a real Slurm; its trials are those of the undisturbed run."""

from __future__ import annotations

import collections
import json
import random
import sys

import pytest
from search_kills import STRATEGIES, Killed

from dlctl import contract
from dlctl.contract import search as names

FIRST_NODE = 10
"""Node 1 has the address 10.77.0.11."""
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
def test_a_second_hub_changes_nothing(dlctl, cluster_site, cluster, wait_until):
    """The first one's node is cut off from the others, not from the disk, and healed later."""
    search = Killed(dlctl, cluster_site, wait_until, "deterministic", trials=300)
    search.wait_for_more()
    hub = json.loads((search.job_dir / names.ENDPOINTS / "b0.json").read_text())
    node = int(hub["address"].partition(":")[0].rpartition(".")[2]) - FIRST_NODE
    cluster.node_cut(node)
    wait_until((search.job_dir / contract.claim(2)).exists, 150, what="a second hub")
    search.wait_for_more(20)
    cluster.node_heal(node)
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


@pytest.mark.long
def test_workers_that_reach_their_time_limit_lose_nothing(dlctl, cluster_site, cluster, wait_until):
    """Slurm tells the workers in the middle of trials to leave, earlier than it had said."""
    search = Killed(dlctl, cluster_site, wait_until, "deterministic", trials=1000)
    search.wait_for_more()
    hub = (search.job_dir / contract.claim(1)).read_text().strip()

    def running() -> set[str]:
        return set(cluster.exec("squeue", "-h", "-t", "R", "-o", "%A").split()) - {hub}

    limited = running()
    for job_id in limited:
        cluster.exec("scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
    wait_until(lambda: not limited & running(), 150, what="Slurm to end the workers")
    assert not search.is_over(), "it ended before its workers"
    search.check()
