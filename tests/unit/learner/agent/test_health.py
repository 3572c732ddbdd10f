"""The checks of a node's health, each with the fault that it is there for."""

import os
import socket
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

from dlctl.contract import NodeFault, VerdictKind, attempt_dir
from dlctl.contract.launchers import Ranks
from learner.agent import health
from learner.agent.health import Findings, Here, examine, gpu, gpu_probe, node
from learner.agent.health.network import Meeting, neighbours


def here(tmp_path, node=0, nodes=1, gpus=0, memory_bytes=None, scheduler="slurm"):
    (tmp_path / attempt_dir(1) / "preflight").mkdir(parents=True, exist_ok=True)
    resources = SimpleNamespace(
        nodes=nodes, gpus_per_learner=gpus, memory_bytes_per_node=memory_bytes
    )
    plan = SimpleNamespace(
        training_id="t-1", resources=resources, batch=SimpleNamespace(scheduler=scheduler)
    )
    return Here(plan, tmp_path, 1, Ranks(node, nodes, 0, 1, node))


def test_a_healthy_node_has_no_fault_and_alone_waits_for_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "Meeting", lambda *_: pytest.fail("it is alone"))
    found = Findings()
    examine(here(tmp_path, memory_bytes=1 << 20), "127.0.0.1", found)()
    assert found.faults == [], found


def test_a_temporary_folder_that_can_not_be_written_is_the_nodes_fault(tmp_path, monkeypatch):
    def broken(*_):
        raise OSError(5, os.strerror(5))

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(os, "fsync", broken)
    found = Findings()
    node.check_temporary_folder(here(tmp_path), found)
    what = f"can't write to {tmp_path} (Input/output error)"
    assert found.faults == [NodeFault("site", what)]


def test_a_temporary_folder_that_only_other_nodes_have_is_a_remark(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    found = Findings()
    node.check_temporary_folder(here(tmp_path), found)
    assert (found.faults, len(found.remarks)) == ([], 1)


def test_a_full_disk_is_told_apart(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    found = Findings()
    node.check_job_directory(here(tmp_path), found)
    what = f"has no space left in {tmp_path}/attempts/1"
    assert found.faults == [NodeFault(VerdictKind.DISK_FULL, what, certain=False)]


def test_memory_that_others_use_is_a_fault(tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable: 1048576 kB\n")
    monkeypatch.setattr(node, "_MEMORY", tmp_path / "meminfo")
    found = Findings()
    node.check_memory(here(tmp_path, memory_bytes=4 << 30), found)
    what = "has 1024 MiB of memory available of the 4096 MiB asked for"
    assert found.faults == [NodeFault("site", what)]
    found = Findings()
    node.check_memory(here(tmp_path, memory_bytes=3 << 29), found)
    assert (found.faults, len(found.remarks)) == ([], 1)


SMI_LOST = """\
#!/bin/sh
echo 'Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.' >&2
exit 15
"""


@pytest.mark.parametrize(
    ("script", "faults", "remarks"),
    [
        (SMI_LOST, 1, 0),
        ("#!/bin/sh\necho '0, 0'; echo '1, [N/A]'\n", 0, 0),
        ("#!/bin/sh\necho '0, 3'\n", 0, 1),
        ("#!/bin/sh\nexit 9\n", 1, 0),
    ],
)
def test_nvidia_smi_says_which_gpu_is_dead(tmp_path, monkeypatch, script, faults, remarks):
    program = tmp_path / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = Findings()
    gpu.check_driver(here(tmp_path, gpus=1), found)
    assert (len(found.faults), len(found.remarks)) == (faults, remarks), found
    assert all(fault.kind == "gpu_error" for fault in found.faults)


def test_a_gpu_that_fails_in_cuda_is_a_fault_and_a_missing_answer_is_not():
    found = Findings()
    gpu.judge_probe({"error": "GPU 0: CUDA error: uncorrectable ECC error"}, 0, "", found)
    assert "uncorrectable ECC" in found.faults[0].what
    found = Findings()
    gpu.judge_probe({}, 1, "ImportError: libcudart.so\n", found)
    assert found.faults == [] and "libcudart" in found.remarks[0]


def test_the_neighbours_stand_in_a_circle():
    assert [neighbours(n, 4) for n in range(4)] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    assert (neighbours(0, 2), neighbours(0, 1)) == ([1], [])


def meet(tmp_path, present, nodes, address="127.0.0.1"):
    found = {node: Findings() for node in present}
    threads = [
        threading.Thread(target=Meeting(here(tmp_path, node, nodes), address), args=(found[node],))
        for node in present
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_nodes_reach_their_neighbours_and_leave_no_file(tmp_path, monkeypatch):
    for limit in ("MEETING_S", "_CONNECT_S"):
        monkeypatch.setattr(f"learner.agent.health.network.{limit}", 60.0)
    found = meet(tmp_path, [0, 1, 2], 3)
    assert [found[n].reached for n in range(3)] == [[1, 2], [0, 2], [0, 1]]
    assert not any(each.unreached for each in found.values())
    assert list((tmp_path / attempt_dir(1) / "preflight").iterdir()) == []


def test_a_node_that_never_comes_proves_nothing(tmp_path):
    found = meet(tmp_path, [0], 2)
    assert (found[0].reached, found[0].unreached) == ([], [])


@pytest.fixture
def first(tmp_path, monkeypatch, wait_until):
    """Connect to the first of two nodes; at the test's end the second one comes, too."""
    for limit in ("MEETING_S", "_CONNECT_S"):
        monkeypatch.setattr(f"learner.agent.health.network.{limit}", 60.0)
    path, found = tmp_path / attempt_dir(1) / "preflight/node-0.address", Findings()
    waits = threading.Thread(target=Meeting(here(tmp_path, 0, 2), "127.0.0.1"), args=(found,))
    waits.start()
    wait_until(path.exists)
    port = int(path.read_text().split()[1])
    with ExitStack() as ends:
        yield lambda: ends.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert meet(tmp_path, [1], 2)[1].reached == [0]
    waits.join(60)
    assert found.reached == [1]


def test_a_stranger_who_says_anything_does_not_end_the_meeting(first):
    stranger = first()
    stranger.sendall(b"GET / HTTP/1.0")
    while stranger.recv(100):
        pass


def test_strangers_who_say_nothing_keep_no_node_from_the_meeting(first):
    """More than may be there at a time: of them the oldest go."""
    strangers = [first() for _ in range(40)]
    assert strangers[0].makefile("b").read().endswith(b".1\n")


def test_an_address_that_does_not_answer_is_unreached(tmp_path, monkeypatch):
    monkeypatch.setattr("learner.agent.health.network._CONNECT_S", 0.2)
    path = tmp_path / attempt_dir(1) / "preflight/node-1.address"
    one = here(tmp_path, 0, 2)
    path.write_text("127.0.0.1 1\n")  # nobody listens there
    found = Findings()
    Meeting(one, "127.0.0.1")(found)
    assert (found.reached, found.unreached) == ([], [1])


@pytest.mark.parametrize(
    ("program", "fault", "remark"),
    [
        ("import time; time.sleep(60)", "", "could not check its GPUs: torch did not load within"),
        ("import time; print('loaded', flush=True); time.sleep(60)", "did not answer within", ""),
        ("print('loaded'); print('{\"error\": \"GPU 0: lost\"}')", "fails: GPU 0: lost", ""),
    ],
)
def test_a_slow_file_system_is_no_fault_of_a_gpu(tmp_path, monkeypatch, program, fault, remark):
    monkeypatch.setattr(gpu, "_LOAD_S", 1.0 if remark else 3.0)
    monkeypatch.setattr(gpu, "_PROBE_S", 1.0)
    monkeypatch.setattr(gpu, "_PROGRAM", ("-c", program))
    found = Findings()
    gpu.check_memory(here(tmp_path, gpus=1), found)
    assert (len(found.faults), len(found.remarks)) == (bool(fault), bool(remark))
    assert fault in "".join(known.what for known in found.faults)
    assert remark in "".join(found.remarks)


def test_each_learner_checks_its_own_gpus():
    assert list(gpu_probe.own_devices(visible=4, gpus=2, local_rank=1, local_size=2)) == [2, 3]
    assert list(gpu_probe.own_devices(visible=2, gpus=2, local_rank=1, local_size=2)) == [0, 1]
    assert list(gpu_probe.own_devices(visible=0, gpus=1, local_rank=0, local_size=1)) == []


class Cuda:
    """torch with a GPU in the host's memory, which may lose a bit."""

    def __init__(self, *, loses=False, free=1 << 20, error=None):
        self.cuda, self.int32, self._loses = self, torch.int32, loses
        self._free, self._error = free, error

    def device(self, *_):
        return torch.device("cpu")

    def mem_get_info(self, _):
        if self._error:
            raise self._error
        return self._free, 1 << 20

    def empty(self, count, dtype, device):
        chunk = torch.empty(count, dtype=dtype, device=device)
        if self._loses:
            fill = chunk.fill_
            chunk.fill_ = lambda pattern: (fill(pattern), chunk[5:6].bitwise_and_(0xFFFF))
        return chunk


@pytest.mark.parametrize(
    ("cuda", "checked", "error"),
    [
        (Cuda(), 943716, ""),
        (Cuda(loses=True), 0, "GPU 0 does not keep what is written to its memory"),
        (Cuda(free=1 << 10), 0, "GPU 0 has 0 of its 1 MiB free"),
    ],
)
def test_the_memory_of_a_gpu_is_written_and_read_back(cuda, checked, error):
    answer = {"error": "", "remarks": []}
    assert gpu_probe._check(cuda, 0, answer) == checked
    assert answer["error"] == error
