"""Two laptops of one person on one site: neither disturbs the other, each can take over."""

from __future__ import annotations

import dataclasses
import time

import pytest
from trainings import COUNTER, files_tell, state_of, submit, verdict, wait_for_state, write_training
from waiting import wait_until


@pytest.fixture
def second(dlctl, tmp_path):
    """Another laptop: the same sites, a home and a record of its own."""
    env = dict(dlctl.env)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        folder = tmp_path / "second" / name
        folder.mkdir(parents=True)
        env[name] = str(folder)
    return dataclasses.replace(dlctl, env=env)


def ids(laptop):
    return {row["training_id"] for row in laptop("list", "--json", ok=True).json}


@pytest.mark.cluster
def test_both_submit_list_and_take_over(dlctl, second, cluster_site, tmp_path):
    site = cluster_site
    goal = "$(cat $JOB_STATE_DIR/goal || echo 100000)"
    counter = {"command": f"exec python count.py {goal}"}
    folder = write_training(tmp_path / "counts", counter, {"count.py": COUNTER}, name="counts")
    quick = write_training(tmp_path / "quick", {"command": "echo mine >$RESULT_DIR/one"})
    first = submit(dlctl, site, folder)
    theirs = submit(second, site, quick)
    assert (ids(dlctl), ids(second)) == ({first}, {theirs})

    wait_until(lambda: files_tell(site.job_dir(first), 1, "TRAINING"), 60, what="training")
    found = second("adopt", site.name, "--json", ok=True).json
    assert [row["training_id"] for row in found["added"]] == [first]
    assert ids(second) == {first, theirs} and ids(dlctl) == {first}
    second("halt", first, ok=True)
    wait_for_state(second, first, "HALTED")
    assert state_of(dlctl, first)["state"] == "HALTED"
    assert "begins at" in second("logs", first, ok=True).stdout

    (site.job_dir(first) / "state/goal").write_text("1")
    second("resume", first, ok=True)
    wait_for_state(second, first, "COMPLETED")
    known = state_of(dlctl, first)
    assert (known["state"], known["attempt"]) == ("COMPLETED", 2)
    assert "HALTED" in str(verdict(site.job_dir(first), 1))
    shown = second("show", first, ok=True).stdout
    assert "COMPLETED" in shown
    second("fetch", "results", first, "--to", tmp_path / "got", ok=True)
    done = dlctl("adopt", site.name, "--json", ok=True).json
    assert [row["training_id"] for row in done["added"]] == [theirs]
    dlctl("fetch", "results", theirs, "--to", tmp_path / "theirs", ok=True)
    assert next((tmp_path / "theirs").rglob("one")).read_text() == "mine\n"


@pytest.mark.cluster
def test_a_training_that_was_deleted_behind_our_back(dlctl, cluster_site, tmp_path):
    folder = write_training(tmp_path / "quick", {"command": "true"})
    gone, stays = (submit(dlctl, cluster_site, folder) for _ in range(2))
    for training_id in (gone, stays):
        wait_for_state(dlctl, training_id, "COMPLETED")
    cluster_site.cluster.user("rm", "-rf", str(cluster_site.job_dir(gone)))
    known = state_of(dlctl, gone)
    assert known["state"] == "COMPLETED" and "gone from the site" in known["reason"]
    assert dlctl("adopt", cluster_site.name, "--json", ok=True).json["known"] == [stays]
    sizes = dlctl("du", cluster_site.name, "--json", ok=True).json["trainings"]
    assert [row["training_id"] for row in sizes] == [stays]
    time.sleep(1.5)  # older than a second it becomes by waiting alone
    pruned = dlctl("prune", "--older-than", "1s", "--yes", "--json", ok=True).json[0]
    assert pruned["forgotten"] == [gone] and pruned["removed"]["trainings"] == [stays]
    assert ids(dlctl) == set()
    assert not cluster_site.job_dir(stays).exists()
