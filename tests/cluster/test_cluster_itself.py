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
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank)
print("world", world.size, world.rank, socket.gethostname(), total, flush=True)
"""
DDP = """
import os, torch, torch.distributed as dist
os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
with torch.no_grad():
    model.module.weight.fill_(1.0)
model(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
print("gradient", model.module.weight.grad.tolist(), flush=True)
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # torch 2.13: gloo's threads may abort the interpreter's end ("terminate called ...")
"""


def srun(cluster: Cluster, program: str, options: str, before: str = "") -> list[list[str]]:
    """Run a Python program under srun through ssh; return its lines as words."""
    command = (
        f"{before} cat >program.py && {before} srun {options} {cluster.node_python} program.py"
    )
    done = cluster.ssh(command.strip(), stdin=program, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in sorted(done.stdout.splitlines()) if line]


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


@pytest.mark.long
def test_the_nodes_python_brings_what_the_runtime_needs(cluster: Cluster) -> None:
    code = "import h5py, mpi4py, numpy, torch, watchdog; print(torch.__file__)"
    where = cluster.user(str(cluster.node_python), "-c", code, node=3)
    assert where.startswith(str(cluster.folder / "venv"))


@pytest.mark.long
def test_pmix_makes_one_world_over_two_nodes(cluster: Cluster) -> None:
    lines = srun(cluster, WORLD, "--mpi=pmix -n4 -N2")
    assert [(words[1], words[2], words[4]) for words in lines] == [
        ("4", str(rank), "6") for rank in range(4)
    ]
    assert len({words[3] for words in lines}) == 2


def test_a_wrong_pmi_makes_worlds_of_size_one_and_exits_with_0(cluster: Cluster) -> None:
    """The trap that dlctl's preflight is for: if this ever changes, we want to know."""
    lines = [words for words in srun(cluster, WORLD, "--mpi=pmi2 -n4 -N2") if words[0] == "world"]
    assert [(words[1], words[2]) for words in lines] == [("1", "0")] * 4


@pytest.mark.long  # dlctl runs the like in test_main_road.py
def test_gloo_ddp_runs_under_srun(cluster: Cluster) -> None:
    lines = srun(
        cluster,
        DDP,
        "-w n1,n2 -n2 -N2",
        before="export MASTER_ADDR=n1 MASTER_PORT=29511;",
    )
    assert lines == [["gradient", "[[0.5,", "0.5]]"]] * 2


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


@pytest.mark.long
def test_a_lost_node_is_noticed_and_comes_back(cluster: Cluster, wait_until: Wait) -> None:
    cluster.node_kill(4)
    wait_until(lambda: cluster.node_states()["n4"].startswith("down"), 90, interval_s=0.3)
    cluster.node_start(4)
    wait_until(lambda: cluster.node_states()["n4"] == "idle", 90, interval_s=0.3)
    assert cluster.ssh("srun -w n4 hostname").stdout == "n4\n"


@pytest.mark.long
def test_dropped_connections_end_and_new_ones_open(cluster: Cluster, wait_until: Wait) -> None:
    argv = ["ssh", "-F", str(cluster.ssh_config), cluster.host, "echo ready; sleep 600"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"ready\n"
        cluster.ssh_drop()
        assert client.wait(60) == 255
    assert cluster.ssh("echo back").stdout == "back\n"


@pytest.mark.long
def test_a_hanging_sshd_says_nothing_until_it_goes_on(cluster: Cluster) -> None:
    cluster.ssh_hang()
    with pytest.raises(subprocess.TimeoutExpired):
        cluster.ssh("true", timeout_s=2)
    cluster.ssh_resume()
    assert cluster.ssh("echo back").stdout == "back\n"


@pytest.mark.long
def test_a_hanging_and_a_killed_controller(cluster: Cluster, wait_until: Wait) -> None:
    cluster.ctld_hang()
    assert cluster.ssh("squeue").returncode != 0
    cluster.ctld_resume()
    wait_until(lambda: cluster.ssh("squeue").returncode == 0, 60)
    cluster.ctld_kill()
    assert cluster.ssh("squeue").returncode != 0
    cluster.ctld_start()
    wait_until(lambda: cluster.ssh("squeue").returncode == 0, 60)


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
