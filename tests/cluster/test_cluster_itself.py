"""The cluster is what the other tests take it for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, ClusterError, parent_folder, wipe_leftovers

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
