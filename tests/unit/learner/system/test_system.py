"""Folders that are put in place, a node's addresses, shared memory, and how much memory is left."""

import ipaddress
import secrets
import shutil

import pytest
from worker_group_job import WorkerGroupJob

from dlctl import contract
from dlctl.contract.ground.interfaces import own_addresses
from learner.agent.preflight import bound_address, find_problems
from learner.errors import UserFault
from learner.system import networks
from learner.system.files import put_back, put_in_place
from learner.system.memory import MemoryRequest, have_room, memory_left
from learner.system.networks import address_on
from learner.system.segments import (
    remove_earlier,
    remove_segment_folder,
    segment_folder,
    server_folder,
)
from psrv.shard.private_folder import make_private_folder


@pytest.fixture
def make(tmp_path):
    """Makes a folder of this name, which holds one file with this text."""

    def make(name, text):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
        return tmp_path / name

    return make


@pytest.fixture
def texts(tmp_path):
    """Reads the folders that are there."""
    return lambda: {path.name: (path / "file").read_text() for path in tmp_path.iterdir()}


def test_a_folder_gets_its_name(make, texts, tmp_path):
    assert put_in_place(make("new", "1"), tmp_path / "final", tmp_path / "aside") is False
    assert texts() == {"final": "1"}


def test_what_has_the_name_is_then_aside(make, texts, tmp_path):
    assert put_in_place(make("new", "2"), make("final", "1"), tmp_path / "aside") is True
    assert texts() == {"final": "2", "aside": "1"}


def test_nothing_is_moved_by_one_whose_folder_was_taken(make, texts, tmp_path):
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "new", make("final", "1"), tmp_path / "aside")
    assert texts() == {"final": "1"}


def test_what_was_moved_is_put_back_if_the_own_folder_was_taken_meanwhile(make, texts, tmp_path):
    def rename(source, target):
        source.rename(target)
        if target.name == "aside":
            shutil.rmtree(tmp_path / "new")

    with pytest.raises(FileNotFoundError):
        put_in_place(make("new", "2"), make("final", "1"), tmp_path / "aside", rename)
    assert texts() == {"final": "1"}


def test_nothing_is_put_back_over_a_newer_one(make, texts):
    assert put_back(make("aside", "1"), make("final", "2")) is False
    assert texts() == {"aside": "1", "final": "2"}


HAVE = [
    ("eno1", ipaddress.ip_address("10.0.0.5")),
    ("ib0", ipaddress.ip_address("10.1.7.5")),
    ("ib0", ipaddress.ip_address("fd00::5")),
]


@pytest.fixture(autouse=True)
def have(request, monkeypatch):
    if "real" not in request.node.name:
        monkeypatch.setattr(networks, "own_addresses", lambda: HAVE)


@pytest.mark.parametrize(("network", "address"), [
    ("ib0", "10.1.7.5"), ("10.1.0.0/16", "10.1.7.5"), ("fd00::/8", "fd00::5"),
    ("10.0.0.5", "10.0.0.5"), ("10.0.0.9/24", "10.0.0.5"),
])  # fmt: skip
def test_the_address_on_a_network_is_found(network, address):
    assert address_on(network, "x") == address


@pytest.mark.parametrize("network", ["ib1", "192.168.0.0/24", "ib"])
def test_a_node_without_an_address_on_it_lists_what_it_has(network):
    seen = f"no address on the network '{network}'; it has eno1 10.0.0.5, ib0 10.1.7.5, ib0 fd00::5"
    with pytest.raises(UserFault, match=seen) as caught:
        address_on(network, "cluster")
    assert "site file of cluster" in caught.value.hint


def test_real_interfaces_are_found(tmp_path):
    lines = (
        "fd000000000000000000000000000002 02 40 00 80     eth0",
        "20010db8000000000000000000000002 02 40 00 80     eth0",
        "fe8000000000000000fc00fffe000001 02 40 20 80     eth0",
        "00000000000000000000000000000001 01 80 10 80       lo",
    )
    (tmp_path / "if_inet6").write_text("\n".join(lines))
    found = own_addresses(tmp_path / "if_inet6")
    sixes = [str(address) for _, address in found if address.version == 6]
    assert sixes == ["fd00::2", "2001:db8::2"]
    assert all(name != "lo" for name, _ in found)


def test_servers_bind_to_the_address_that_the_preflight_checks(tmp_path):
    job = WorkerGroupJob(tmp_path, 4, nodes=2)

    def problems(network):
        asked = {**vars(job.plan.parameter_server), "network": network}
        job.write_plan(parameter_server=contract.ParameterServer(**asked))
        return [problem for problem in find_problems(job.plan, job.dir) if "network" in problem]

    assert problems("ib0") == []
    assert bound_address(job.plan) == "10.1.7.5"
    (problem,) = problems("ib1")
    assert "no address on the network 'ib1'" in problem and "\nCorrect `network`" in problem


@pytest.fixture
def training_id():
    found = f"test-{secrets.token_hex(8)}"
    yield found
    for folder in segment_folder(found, 1).parent.glob(segment_folder(found, "*").name):
        shutil.rmtree(folder)


def test_a_folder_of_another_user_does_not_stop_the_shards(training_id, tmp_path):
    """Anybody may make the folder with the attempt's name; only its servers know the other."""
    path = tmp_path / contract.server_secret(1)
    path.parent.mkdir(parents=True)
    path.write_text(secrets.token_hex(32))
    segment_folder(training_id, 1).mkdir(mode=0o777)
    segment_folder(training_id, 1).chmod(0o777)
    folder = server_folder(training_id, 1, tmp_path)
    make_private_folder(folder)
    assert folder == server_folder(training_id, 1, tmp_path)
    assert folder.name.startswith(f"{segment_folder(training_id, 1).name}-")
    assert path.read_text()[:8] not in folder.name
    path.write_text(secrets.token_hex(32))
    assert server_folder(training_id, 1, tmp_path) != folder
    remove_segment_folder(training_id, 1)
    assert not folder.exists()


def test_a_late_attempt_leaves_a_later_one_alone(training_id):
    for attempt in (2, 9, 10, 11):
        segment_folder(training_id, attempt).mkdir()
    (shards := segment_folder(training_id, "9-0a1b")).mkdir()
    remove_earlier(training_id, 10)
    assert [attempt for attempt in range(12) if segment_folder(training_id, attempt).exists()] == [
        10, 11,
    ]  # fmt: skip
    assert not shards.exists()


BOOT = "0b3c"


def write(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


def left(root):
    found = memory_left(root / "proc", root / "cgroup")
    assert all(name.startswith(BOOT) for name in found)
    return list(found.values())


def make_node(root, cgroup):
    write(
        root / "proc",
        {
            "sys/kernel/random/boot_id": BOOT,
            "meminfo": "MemTotal: 900 kB\nMemAvailable: 800 kB",
            "self/cgroup": cgroup,
        },
    )


def test_the_page_cache_counts_as_free_memory_under_a_limit(tmp_path):
    make_node(tmp_path, "0::/slurm/job_1/task_0")
    job = tmp_path / "cgroup" / "slurm" / "job_1"
    write(job, {"memory.max": 1000, "memory.current": 990, "task_0/memory.max": "max"})
    write(job, {"memory.stat": "anon 90\nfile 900\ninactive_file 500\nactive_file 300\nshmem 100"})
    assert left(tmp_path) == [800 * 1024, 810]


def test_a_limit_of_cgroups_version_1_counts(tmp_path):
    make_node(tmp_path, "5:cpu,cpuacct:/\n4:memory:/slurm/job_1\n1:name=systemd:/a:b\n0::/")
    memory = tmp_path / "cgroup" / "memory"
    write(memory, {"memory.limit_in_bytes": 9223372036854771712, "memory.usage_in_bytes": 5})
    names = {"memory.limit_in_bytes": 1000, "memory.usage_in_bytes": 600, "memory.stat": "x 1"}
    write(memory / "slurm" / "job_1", dict(names))
    assert left(tmp_path) == [800 * 1024, 400]


@pytest.mark.parametrize("seen", ["slurm/job_1", "job_1"])
def test_a_limit_is_found_in_a_container(tmp_path, seen):
    """A container's mount shows only its own part; /proc shows the full path."""
    make_node(tmp_path, "4:memory:/machine/slurm/job_1/task_0\n0::/")
    names = {"memory.limit_in_bytes": 1000, "memory.usage_in_bytes": 600, "memory.stat": "x 1"}
    write(tmp_path / "cgroup" / "memory" / seen, {**names, "task_0/tasks": ""})
    assert left(tmp_path) == [800 * 1024, 400]


def test_another_system_reports_no_limits(tmp_path):
    assert memory_left(tmp_path, tmp_path) == {}
    assert have_room([MemoryRequest(10**15)]) == [True]


def test_the_learners_of_a_node_share_what_is_left():
    four = [MemoryRequest(10, {"node": 49 + n}) for n in range(4)]
    assert have_room(four[:3]) == [True] * 3
    assert have_room(four) == [False] * 4
    assert (
        have_room([*four, MemoryRequest(10, {"other node": 50}), MemoryRequest(0, {})])
        == [False] * 4 + [True] * 2
    )
    own = [MemoryRequest(10, {"node": 100, f"cgroup {n}": 13}) for n in range(4)]
    assert have_room(own) == [True] * 4


def test_this_node_reports_a_limit():
    found = memory_left()
    assert all(left_bytes > 0 for left_bytes in found.values())
