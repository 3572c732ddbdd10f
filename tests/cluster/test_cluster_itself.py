"""The cluster is what the other tests take it for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, ClusterError, parent_folder, wipe_leftovers
from waiting import wait_until

Wait = Callable[..., Any]


def test_the_user_comes_in_by_ssh_and_is_nobody_special(cluster: Cluster) -> None:
    done = cluster.ssh("id -un; hostname; pwd; cat /root/.bashrc")
    assert done.stdout.split() == [cluster.user_name, "head", str(cluster.home)]
    assert done.returncode != 0


def test_a_node_has_its_own_name_address_and_tmp(cluster: Cluster) -> None:
    cluster.user("touch", "/tmp/only-on-n1", node=1)
    assert cluster.user("hostname", node=1) == "n1\n"
    assert "10.77.0.12" in cluster.exec("ip", "-4", "-br", "addr", "show", "eth0", node=2)
    with pytest.raises(ClusterError):
        cluster.user("test", "-e", "/tmp/only-on-n1", node=2)


def test_the_clone_is_not_seen_in_there(cluster: Cluster) -> None:
    clone = Path(__file__).parent.parent.parent
    assert cluster.exec("ls", "-A", str(clone), node=1) == ""


OWNER = """
import sys, time
from cluster import Cluster
cluster = Cluster(nodes=1)
print(cluster.folder, flush=True)
cluster.start()
print(cluster.port, flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_two_clusters_at_once_and_one_dies_with_its_owner(cluster: Cluster) -> None:
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parent))
    argv = [sys.executable, "-c", OWNER]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        try:
            assert int(owner.stdout.readline()) != cluster.port
            assert (folder / "run/booted").exists()
            assert cluster.ssh("srun hostname").returncode == 0
        finally:
            owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not folder.exists(), 60)


@pytest.mark.usefixtures("cluster_programs")
def test_what_a_killed_session_left_is_deleted_by_the_next() -> None:
    leftover, mine = Cluster(nodes=1), Cluster(nodes=1)
    (leftover.folder / "owner").write_text("1 0\n")  # process 1 started at another time
    try:
        assert leftover.folder in wipe_leftovers()
        assert not leftover.folder.exists()
        assert mine.folder.exists()
        assert mine.folder.parent == parent_folder()
    finally:
        mine.wipe()
