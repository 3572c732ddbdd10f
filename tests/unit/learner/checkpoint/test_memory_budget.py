"""How much memory is left for snapshots, under which limits, for all learners of a node."""

import pytest

from learner.system.memory import MemoryRequest, have_room, memory_left

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
