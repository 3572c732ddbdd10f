"""A site whose disk is full, at each moment of a training."""

from __future__ import annotations

import os
import re
import shlex
import time

import pytest
from trainings import begin, change_site, halt, submit, wait_for_state, write_training
from waiting import wait_until

from dlctl import contract


@pytest.fixture
def small(cluster_site, xdg):
    """The cluster, with its root folder on a disk of a few megabytes."""
    root = cluster_site.cluster.small_disk / "root"
    yield change_site(cluster_site, xdg.config, root=str(root))
    cluster_site.cluster.exec("rm", "-rf", str(root))


def is_ready(dlctl, training_id):
    """Return whether the program has printed it; the supervisor prints its command before."""
    return re.search(r"\| ready$", dlctl("logs", training_id).stdout, re.MULTILINE)


def test_a_full_disk_at_submission(dlctl, small):
    folder = write_training(dlctl.cwd, {"command": "echo hello"})
    (folder / "data.bin").write_bytes(os.urandom(8 << 20))
    done = dlctl("submit", "manifest.yml", "--site", small.name, cwd=folder)
    assert done.exit_code == 6, done.stderr
    assert "No space left on device" in done.stderr
    assert "space" in done.stderr
    assert "Traceback" not in done.stderr
    known = dlctl("list", "--json", ok=True).json
    assert [record["state"] for record in known] == ["QUEUED"]
    (folder / "data.bin").unlink()
    small.cluster.exec("rm", "-rf", str(small.root))
    dlctl("resume", known[0]["training_id"], "--follow", ok=True)


def test_a_full_disk_does_not_stop_a_halt(dlctl, small):
    """It failed with 6, and the job went on."""
    command = "trap 'exit 0' USR2; echo ready; while :; do sleep 0.1; done"
    folder = write_training(dlctl.cwd, {"command": command}, name="f", time="1h")
    training_id = submit(dlctl, small, folder)
    wait_until(lambda: is_ready(dlctl, training_id), 90, interval_s=0.5)
    filler = shlex.quote(str(small.root / "filler"))
    small.cluster.exec("sh", "-c", f"cat /dev/zero >{filler} 2>/dev/null; :")
    halt(dlctl, training_id)


def test_a_verdict_names_the_disk_with_40_kilobytes_left(dlctl, small):
    """The program says nothing, and its files are too big for what is left."""
    command = """\
echo ready; until [ -e "$LOG_DIR/go" ]; do sleep 0.1; done
fallocate -l 1M "$RESULT_DIR/big" 2>/dev/null || exit 1
"""
    folder = write_training(dlctl.cwd, {"command": command}, name="f")
    training_id = submit(dlctl, small, folder)
    wait_until(lambda: is_ready(dlctl, training_id), 90, interval_s=0.5)
    fill = f"""
left=$(df -Pk {shlex.quote(str(small.root))} | awk 'NR == 2 {{ print $4 }}')
head -c $((left - 40))k /dev/zero >{shlex.quote(str(small.root / "filler"))}
: >{shlex.quote(str(small.job_dir(training_id) / "logs/go"))}"""
    small.cluster.exec("sh", "-c", fill)
    known = wait_for_state(dlctl, training_id, "FAILED")
    assert "No space left on device" in known["reason"]
    assert f"dlctl du {small.name}" in known["hint"]


def test_a_disk_that_is_full_for_a_while_is_waited_for(dlctl, small):
    """The next attempt can't even write its plan at first; nobody looks."""
    cluster, root = small.cluster, small.root
    command = """\
[ ! -e "$LOG_DIR/went" ] || { echo "there is room"; exit 0; }
echo 1 >"$CHECKPOINT_DIR/model"; touch "$LOG_DIR/went"; dd if=/dev/zero of="$RESULT_DIR/big" bs=4k
"""
    folder = write_training(
        dlctl.cwd, {"command": command}, name="f", retries=1, retry={"backoff": "2s"}
    )
    training_id, job_dir = begin(dlctl, small, folder)

    def read(name):  # this disk is the cluster's alone
        return cluster.exec("sh", "-c", f"cat {job_dir}/{name} 2>/dev/null; :")

    found = wait_until(lambda: read(contract.verdict_file(1)), 60)
    cluster.user("sh", "-c", f"dd if=/dev/zero of={root}/rest bs=1k; :")
    first = contract.from_json(contract.Verdict, found.encode())
    assert (first.kind, first.action.kind) == ("disk_full", "retry"), first
    time.sleep(max(0.0, first.action.not_before + 2 - time.time()))  # it tries in vain
    assert not read(contract.claim(2))
    # The large file first: with the other one's room, the next attempt would take it along.
    cluster.user("sh", "-c", f"rm {job_dir}/attempts/*/results/big {root}/rest")
    wait_until(lambda: read(contract.verdict_file(2)), 60)
    assert wait_for_state(dlctl, training_id, "COMPLETED")["attempt"] == 2
    log = dlctl("logs", training_id, ok=True).stdout
    assert log.count("| there is room") == 1


def test_a_disk_that_is_full_when_the_learners_start(dlctl, small, xdg):
    """It was the launcher that ended "after 0 of 1 learners had started … check the site"."""
    fill = small.cluster.folder / "fill-and-run"
    fill.write_text(f"""#!/bin/sh
case " $* " in *" learner.agent "*) cat /dev/zero >{small.root}/filler 2>/dev/null ;; esac
exec srun "$@"
""")
    fill.chmod(0o755)
    site = change_site(small, xdg.config, launcher={"executable": str(fill)})
    folder = write_training(dlctl.cwd, {"command": "echo hello"}, learners=2)
    training_id = submit(dlctl, site, folder)
    known = wait_for_state(dlctl, training_id, "FAILED")
    assert "No space left on device" in known["reason"], known
    assert f"dlctl du {site.name}" in known["hint"]
