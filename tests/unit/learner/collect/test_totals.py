"""The peaks of a learner: none is forgotten, and the file is written seldom."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dlctl import contract
from dlctl.contract.measured.past import LearnerUse
from learner.collect.usage.family import Family
from learner.collect.usage.totals import Totals

MIB = 2**20


def read(path: Path) -> LearnerUse | None:
    return contract.readable_record(LearnerUse, path)


def test_peaks_are_kept_and_the_file_is_written_when_they_rise(tmp_path: Path) -> None:
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


def test_a_collector_that_follows_another_one_goes_on_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "use-0.json"
    first = Totals(path, lambda: 0)
    first.add({"memory_rss_bytes_max": 300.0})
    Totals(path, lambda: 0).add({"memory_rss_bytes_max": 100.0})
    second = Totals(path, lambda: 0)
    second.write()
    assert (found := read(path)) and found.memory_bytes == 300


def test_a_peak_between_two_samples_is_seen(tmp_path: Path) -> None:
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
