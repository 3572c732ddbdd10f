"""Real commands at the same moment as one that removes the training that they are about."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from trainings import wait_for_state, write_training
from waiting import wait_until

ROUNDS = 5
PROGRAM = """\
if mkdir "$JOB_STATE_DIR/first"; then
    for n in 1 2 3; do head -c 3000000 /dev/zero >"$RESULT_DIR/$n.bin" || exit 2; done
    exit 1
fi
until [ -e "$JOB_STATE_DIR/go" ]; do sleep 0.1; done
"""
"""Leaves results and fails; when it is resumed, it waits for a file and succeeds."""
WHOLE = {f"{number}.bin": 3_000_000 for number in (1, 2, 3)}
GONE = ("was deleted meanwhile", "no training", "is gone from the site")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def results_of(site, training_id):
    found = site.job_dir(training_id).glob("results/?.bin")
    return {path.name: path.stat().st_size for path in found}


@pytest.fixture
def failed(dlctl, site):
    """Trainings that have failed after they wrote results."""
    folder = write_training(dlctl.cwd, {"command": PROGRAM}, name="race", retries=0)
    sent = dlctl("submit", "manifest.yml", "--site", site.name, "--repeat", str(ROUNDS), "--json",
                 cwd=folder, ok=True).json  # fmt: skip
    ids = [each["training_id"] for each in sent]
    for training_id in ids:
        wait_for_state(dlctl, training_id, "FAILED")
        assert results_of(site, training_id) == WHOLE
    return ids


def at_once(dlctl, *commands):
    """Run commands that begin within a second of each other; return how each ended."""

    def act(words):
        time.sleep(random.random())  # noqa: S311
        return dlctl(*words)

    with ThreadPoolExecutor(len(commands)) as pool:
        ends = list(pool.map(act, commands))
    for end in ends:
        assert "internal error" not in end.stderr and "Traceback" not in end.stderr, end
    return ends


def says_gone(end):
    return end.exit_code and any(words in end.stderr for words in GONE)


def test_a_training_that_is_resumed_and_deleted_at_once_is_whole_or_gone(dlctl, site, failed):
    """`delete` removed the folder of a job that `resume` had just submitted."""
    for training_id in failed:
        resumed, deleted = at_once(dlctl, ("resume", training_id), ("delete", training_id, "--yes"))
        job_dir = site.job_dir(training_id)
        if deleted.exit_code == 0:
            assert says_gone(resumed), (resumed, deleted)
            assert not job_dir.exists()
            continue
        assert resumed.exit_code == 0, (resumed, deleted)
        assert "while it runs" in deleted.stderr, deleted
        (job_dir / "state/go").touch()
        wait_for_state(dlctl, training_id, "COMPLETED")
        assert results_of(site, training_id) == WHOLE


def test_a_training_that_is_halted_and_deleted_at_once_is_halted_or_gone(dlctl, site, failed):
    for training_id in failed:
        dlctl("resume", training_id, ok=True)
        wait_for_state(dlctl, training_id, "PROCESSING", "TRAINING")
        halted, deleted = at_once(dlctl, ("halt", training_id), ("delete", training_id, "--yes"))
        assert halted.exit_code == 0 or says_gone(halted), halted
        if deleted.exit_code == 0:
            assert not site.job_dir(training_id).exists()
            continue
        assert "while it runs" in deleted.stderr, deleted
        wait_for_state(dlctl, training_id, "HALTED", "FAILED")
        assert results_of(site, training_id) == WHOLE


def test_a_fetch_beside_a_prune_brings_all_or_says_why(dlctl, site, failed, tmp_path):
    prune = ("prune", "--older-than", "1s")  # by the site's clock, in whole seconds

    def all_are_old():
        listed = dlctl(*prune, "--dry-run").stdout
        return all(each in listed for each in failed)

    fetches = [("fetch", "all", each, "--to", str(tmp_path / each)) for each in failed]
    wait_until(all_are_old, 60, what="trainings that prune would remove")
    *fetched, pruned = at_once(dlctl, *fetches, (*prune, "--yes"))
    assert pruned.exit_code == 0, pruned
    for training_id, end in zip(failed, fetched, strict=True):
        files = {path.name: path.stat().st_size for path in (tmp_path / training_id).rglob("?.bin")}
        assert says_gone(end) or (end.exit_code == 0 and files == WHOLE), (end, files)
        assert not site.job_dir(training_id).exists()
