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

Wait = Callable[..., Any]

WORLD = """
from mpi4py import MPI
print("world", MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, flush=True)
"""


def test_four_nodes_are_idle(cluster: Cluster, wait_until: Wait) -> None:
    wait_until(lambda: set(cluster.node_states().values()) == {"idle"}, 60)
    assert sorted(cluster.node_states()) == ["n1", "n2", "n3", "n4"]


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


def test_a_wrong_pmi_makes_worlds_of_size_one_and_exits_with_0(cluster: Cluster) -> None:
    """The trap that dlctl's preflight is for: if this ever changes, we want to know."""
    command = f"cat >program.py && srun --mpi=pmi2 -n4 -N2 {cluster.node_python} program.py"
    done = cluster.ssh(command, stdin=WORLD, timeout_s=120)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("world")]
    assert lines == ["world 1 0"] * 4


def test_slurm_refuses_what_a_partition_does_not_allow(cluster: Cluster) -> None:
    for options in ("-p closed", "-p short --time=10", "-p short -N2", "-p nowhere"):
        done = cluster.ssh(f"sbatch {options} --wrap hostname")
        assert (done.returncode, done.stdout) == (1, ""), options


def test_a_gpu_request_sets_the_visible_devices(cluster: Cluster) -> None:
    done = cluster.ssh("srun --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES")
    assert done.stdout.strip() == "0"


def test_the_accounting_knows_a_job(cluster: Cluster, wait_until: Wait) -> None:
    job_id = cluster.ssh("sbatch --parsable --wrap true").stdout.strip()
    ask = f"sacct -n -X -j {job_id} -o State"
    wait_until(lambda: cluster.ssh(ask).stdout.strip() == "COMPLETED", 60, interval_s=0.3)


def test_a_full_disk_is_the_same_one_everywhere(cluster: Cluster) -> None:
    full = str(cluster.small_disk / "full")
    with pytest.raises(ClusterError, match="No space left"):
        cluster.user("dd", "if=/dev/zero", f"of={full}", "bs=64k", node=1)
    assert int(cluster.user("stat", "-c", "%s", full)) > 0
    cluster.user("rm", full)


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
def test_two_clusters_at_once_and_one_dies_with_its_owner(
    cluster: Cluster, wait_until: Wait
) -> None:
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
