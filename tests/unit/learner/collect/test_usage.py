"""What a learner uses of its node, from a fake tree of /proc and /sys; and from the real one."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from dlctl import contract
from dlctl.contract.measured import utilisation as names
from dlctl.contract.measured.past import LearnerUse
from dlctl.contract.metrics import parse_line
from learner.collect.usage.cgroup import MemoryGroup
from learner.collect.usage.family import Family
from learner.collect.usage.network import Network
from learner.collect.usage.sampler import SAMPLES_OF_A_LINE, Sampler, Window
from learner.collect.usage.totals import Totals

PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class FakeProc:
    """A tree of processes below process 1."""

    def __init__(self, root):
        self.root = root
        self.parents = {}
        self.add(1)

    def add(self, pid, parent=0, **numbers):
        (self.root / str(pid)).mkdir(parents=True)
        self.parents[pid] = parent
        self.set(pid, **numbers)

    def set(self, pid, cpu_s=0.0, faults=0, major=0, pages=0, rchar=0, read=0):
        fields = ["S", str(self.parents[pid]), *["0"] * 20]
        fields[7], fields[9] = str(faults), str(major)
        fields[11] = str(int(cpu_s * TICKS / 2))
        fields[14] = str(int(cpu_s * TICKS / 2))
        fields[21] = str(pages)
        (self.root / str(pid) / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)} 0 0\n")
        (self.root / str(pid) / "io").write_text(
            f"rchar: {rchar}\nwchar: 0\nread_bytes: {read}\nwrite_bytes: 0\n"
            "cancelled_write_bytes: 0\n"
        )

    def end(self, pid):
        shutil.rmtree(self.root / str(pid))


@pytest.fixture
def proc(tmp_path):
    return FakeProc(tmp_path / "proc")


def test_a_family_is_everything_below_the_watchdog_but_the_collector(proc):
    clock = Clock()
    proc.add(10, parent=1, pages=3)
    proc.add(11, parent=10, pages=4)
    proc.add(20, parent=1, pages=1000)
    family = Family(1, without=[20], proc=proc.root, clock=clock)
    first = family.sample()
    assert first == {names.MEMORY_RSS_BYTES: 7 * PAGE, names.PROCESSES: 2}
    proc.set(10, cpu_s=3, faults=20, major=10, pages=3, rchar=500, read=100)
    proc.set(11, cpu_s=1, pages=4)
    clock.now += 2
    second = family.sample()
    assert second[names.CPU_PERCENT] == 200
    assert second[names.PAGE_FAULTS_PER_S] == 15
    assert second[names.MAJOR_PAGE_FAULTS_PER_S] == 5
    assert (second[names.READ_BYTES_PER_S], second[names.DISK_READ_BYTES_PER_S]) == (250, 50)


def test_processes_that_come_and_go(proc):
    clock = Clock()
    proc.add(10, parent=1)
    family = Family(1, proc=proc.root, clock=clock)
    family.sample()
    proc.add(11, parent=10, cpu_s=1)
    clock.now += 2
    assert family.sample()[names.CPU_PERCENT] == 50
    proc.end(11)  # nobody took over its second
    clock.now += 2
    assert family.sample()[names.CPU_PERCENT] == 0
    proc.end(10)
    clock.now += 2
    assert family.sample() == {}


def test_the_real_proc():
    child = "import sys; x = bytearray(30_000_000); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        found = Family(os.getpid()).sample()
        assert found[names.MEMORY_RSS_BYTES] > 30_000_000
        assert found[names.PROCESSES] >= 1
        process.stdin.close()
    assert names.CPU_PERCENT not in found


def test_network_devices_and_infiniband(tmp_path):
    clock = Clock()
    (tmp_path / "net").mkdir()
    ports = tmp_path / "ib/mlx5_0/ports/1/counters"
    ports.mkdir(parents=True)

    def set_counters(number):
        (tmp_path / "net/dev").write_text(
            "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes\n"
            f"    lo: {number} 0 0 0 0 0 0 0 {number} 0 0 0 0 0 0 0\n"
            f"  eth0: {2 * number} 0 0 0 0 0 0 0 {3 * number} 0 0 0 0 0 0 0\n"
            f"  eth1:{2 * number} 0 0 0 0 0 0 0 {3 * number} 0 0 0 0 0 0 0\n"
        )
        (ports / "port_rcv_data").write_text(f"{number}\n")
        (ports / "port_xmit_data").write_text(f"{2 * number}\n")

    set_counters(0)
    network = Network(tmp_path, tmp_path / "ib", clock)
    assert network.sample() == {}
    set_counters(100)
    clock.now += 2
    assert network.sample() == {
        names.NETWORK_RECEIVE_BYTES_PER_S: 200,
        names.NETWORK_SEND_BYTES_PER_S: 300,
        names.LOOPBACK_BYTES_PER_S: 50,
        names.INFINIBAND_RECEIVE_BYTES_PER_S: 200,
        names.INFINIBAND_SEND_BYTES_PER_S: 400,
    }
    assert Network(tmp_path / "nothing", tmp_path / "nothing").sample() == {}


@pytest.mark.parametrize("version", [1, 2])
def test_the_control_group_with_the_smallest_limit(tmp_path, proc, version):
    tree = tmp_path / "cgroup"
    old = version == 1
    line = "5:cpu:/x\n4:memory,hugetlb:/slurm/job_1/step_0\n" if old else "0::/slurm/job_1/step_0\n"
    (proc.root / "1/cgroup").write_text(line)
    limit, used = ("limit_in_bytes", "usage_in_bytes") if old else ("max", "current")
    base = tree / "memory" if old else tree
    no_limit = "9223372036854771712" if old else "max"
    for place, maximum in (("slurm", 4000), ("slurm/job_1", 1000), ("slurm/job_1/step_0", None)):
        folder = base / place
        folder.mkdir(parents=True)
        (folder / f"memory.{limit}").write_text(f"{maximum or no_limit}\n")
        (folder / f"memory.{used}").write_text("600\n")
        stat = "total_inactive_file 100\n" if old else "anon 1\ninactive_file 100\n"
        (folder / "memory.stat").write_text(stat)
    assert MemoryGroup(1, proc.root, tree).sample() == {
        names.CGROUP_MEMORY_BYTES: 500, names.CGROUP_MEMORY_LIMIT_BYTES: 1000,
    }  # fmt: skip
    (base / f"slurm/job_1/memory.{limit}").write_text("max")
    (base / f"slurm/memory.{limit}").write_text("x")
    assert MemoryGroup(1, proc.root, tree).sample() == {}
    assert MemoryGroup(77, proc.root, tree).sample() == {}


def test_a_window_has_mean_and_maximum():
    window = Window()
    window.add({"a": 1.0, names.CGROUP_MEMORY_LIMIT_BYTES: 5.0})
    window.add({"a": 3.0, "gpu0_memory_total_bytes": 7.0, "b": 123456.7})
    assert window.take() == {
        "a": 2.0, "a_max": 3.0, names.CGROUP_MEMORY_LIMIT_BYTES: 5.0,
        "gpu0_memory_total_bytes": 7.0, "b": 123457.0, "b_max": 123457.0,
    }  # fmt: skip
    assert window.take() == {}


def test_rates_that_were_always_0_are_left_out():
    window = Window()
    window.add({"x_per_s": 0.0, "y_percent": 0.0})
    assert window.take() == {"y_percent": 0.0, "y_percent_max": 0.0}
    window.add({"x_per_s": 1.0})
    window.take()
    window.add({"x_per_s": 0.0})
    assert window.take() == {"x_per_s": 0.0, "x_per_s_max": 0.0}


class Probe:
    """Counts how often it was asked."""

    count = 0

    def sample(self):
        self.count += 1
        return {"n": float(self.count)}


@pytest.mark.parametrize(
    ("progress", "step", "epoch"),
    [
        ({"step": 7, "epoch": 2}, 7, 2),
        ({"step": -3, "epoch": None}, -1, None),
        ({"step": "x"}, -1, None),
        ([], -1, None),
        (None, -1, None),
    ],
)
def test_a_sampler_writes_a_line_now_and_then(tmp_path, progress, step, epoch):
    path, lines = tmp_path / "progress.json", []
    if progress is not None:
        path.write_text(json.dumps(progress))
    sampler = Sampler([Probe()], lines.append, path, clock=lambda: 1700000000.0)
    for _ in range(SAMPLES_OF_A_LINE + 1):
        sampler.sample()
    (line,) = lines
    assert (line.step, line.epoch, line.values) == (step, epoch, {"n": 3.0, "n_max": 5.0})
    sampler.flush()
    sampler.flush()
    assert [line.values for line in lines[1:]] == [{"n": 6.0, "n_max": 6.0}]
    assert parse_line(line.encode()) == line


MIB = 2**20


def read(path):
    return contract.readable_record(LearnerUse, path)


def test_peaks_are_kept_and_the_file_is_written_when_they_rise(tmp_path):
    now, path = [0.0], tmp_path / "use-0.json"
    totals = Totals(path, lambda: 0, lambda: now[0])
    line = {"cpu_percent": 148.0, "memory_rss_bytes_max": 100.0 * MIB, "gpu0_percent": 80.0,
            "cgroup_memory_bytes_max": 150.0 * MIB}  # fmt: skip
    totals.add(line)
    assert (found := read(path)) and found.memory_bytes == 100 * MIB and found.cpus == 1.5
    inode = path.stat().st_ino
    totals.add(line | {"memory_rss_bytes_max": 101.0 * MIB, "gpu0_percent": 40.0})
    assert path.stat().st_ino == inode, "hundreds of learners share a file system"
    totals.add(line | {"memory_rss_bytes_max": 200.0 * MIB})
    totals.add({"memory_rss_bytes_max": 50.0 * MIB})
    now[0] += 301
    totals.add({"cpu_percent": 301.0})
    found = read(path)
    assert found and found.memory_bytes == 200 * MIB and found.job_memory_bytes == 150 * MIB
    assert found.lines == 5 and found.cpu_tenths == {"15": 3, "31": 1} and found.cpus == 3.1
    assert 60 < found.gpu_percent["0"] < 80


def test_a_collector_that_follows_another_one_goes_on_from_its_file(tmp_path):
    path = tmp_path / "use-0.json"
    first = Totals(path, lambda: 0)
    first.add({"memory_rss_bytes_max": 300.0})
    Totals(path, lambda: 0).add({"memory_rss_bytes_max": 100.0})
    second = Totals(path, lambda: 0)
    second.write()
    assert (found := read(path)) and found.memory_bytes == 300


def test_a_peak_between_two_samples_is_seen(tmp_path):
    program = "x = bytearray(b'1' * (200 << 20)); del x; print(flush=True); input()"
    watchdog = ["sh", "-c", '"$0" -c "$1"; exit', sys.executable, program]
    with subprocess.Popen(watchdog, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        running.stdout.readline()
        family = Family(running.pid)
        values = {f"{name}_max": value for name, value in family.sample().items()}
        totals = Totals(tmp_path / "use-0.json", family.peak_bytes)
        totals.add(values)
        running.communicate(b"\n")
    assert values["memory_rss_bytes_max"] < 200 * MIB
    found = read(tmp_path / "use-0.json")
    assert found and found.memory_bytes > 200 * MIB
