"""Measure what each test costs: a pytest plugin that conftest.py loads.

A test costs the processor time of all processes that it starts or makes work: its own process, the
forks of helpers, the daemons of the cluster. A control group for each process of pytest counts them
(cgroup v1 or v2); where none can be made, only children that were waited for count. Fixtures that
outlive a test are billed to themselves. `summary` lists the dearest; build/test-cost.json has all.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiers

REPOSITORY = Path(__file__).resolve().parents[2]
REPORT = REPOSITORY / "build/test-cost.json"
CHEAP_S = 1.0
"""Processor seconds that a test of the first tier may take without being listed."""
DEAREST_S = 5.0
"""Processor seconds that a test of the first tier should never take, unless its marker says so."""
TOLERANCE = 2.0
"""Factor above its limit at which a test fails: the same test takes half as long again on a slower
or a busier machine, so the limit itself is only told."""
SCRIPTS = 60
"""Processes that a test may start without being listed."""
SHOWN = 20
GROUP_PREFIX = "dlctl-tests-"
"""How the control groups of processes that measure are called; their number follows."""


# Measuring, in each process that runs tests -------------------------------------------------------


class Meter:
    """Counts the processor seconds and the processes started of this process and its children."""

    def __init__(self) -> None:
        self.started = 0
        self._group, self._usage = _make_group()
        sys.addaudithook(self._count)

    def _count(self, event: str, _: Any) -> None:
        if event == "subprocess.Popen":
            self.started += 1

    @property
    def is_whole(self) -> bool:
        """Whether processes that nobody waits for count, too."""
        return self._usage is not None

    def used_s(self) -> float:
        """Return the processor seconds since this process began."""
        if self._usage is None:
            return sum(os.times()[:4])
        return self._usage()

    def close(self) -> None:
        """Leave the group, and remove it once it is empty."""
        if self._group is not None:
            (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
            remove_group(self._group)


def remove_group(group: Path) -> None:
    """Remove a control group; one in which a process still ends stays."""
    with suppress(OSError):
        group.rmdir()


def groups_left() -> list[Path]:
    """Return the control groups of processes that measured and are gone."""
    return [
        group
        for pattern in ("/sys/fs/cgroup/cpuacct/**/", "/sys/fs/cgroup/")
        for group in Path("/").glob(pattern.lstrip("/") + f"{GROUP_PREFIX}*")
        if not Path("/proc", group.name.removeprefix(GROUP_PREFIX)).exists()
    ]


def _make_group() -> tuple[Path | None, Any]:
    """Move this process into a new control group that counts processor time."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, own = line.split(":", 2)
        if "cpuacct" in kinds.split(","):
            parent, file = Path("/sys/fs/cgroup/cpuacct" + own), "cpuacct.usage"
        elif kinds == "" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            parent, file = Path("/sys/fs/cgroup" + own), "cpu.stat"
        else:
            continue
        group = parent / f"{GROUP_PREFIX}{os.getpid()}"
        try:
            group.mkdir()
            (group / "cgroup.procs").write_text(str(os.getpid()))
        except OSError:
            continue
        return group, _reader(group / file)
    return None, None


def _reader(counter: Path) -> Callable[[], float]:
    """Return a function that reads the processor seconds of a group."""
    if counter.name == "cpuacct.usage":
        return lambda: int(counter.read_text()) / 1e9
    return lambda: int(counter.read_text().split()[1]) / 1e6  # usage_usec comes first


@dataclass
class Bill:
    """What one test has cost so far, its lasting fixtures aside."""

    began_s: float
    started: int
    aside_s: float = 0.0
    aside_started: int = 0


class Costs:
    """Measures the tests of this process; each report of a teardown carries the figures."""

    def __init__(self) -> None:
        self.meter = Meter()
        self._bill = Bill(0.0, 0)
        self._lasting: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[Any]:
        self._bill = Bill(self.meter.used_s(), self.meter.started)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        before, started = self.meter.used_s(), self.meter.started
        nested = self._bill.aside_s, self._bill.aside_started
        try:
            return (yield)
        finally:
            inner_s = self._bill.aside_s - nested[0]
            cost_s = self.meter.used_s() - before
            self._lasting[fixturedef.argname] = cost_s - inner_s
            self._bill.aside_s = nested[0] + cost_s
            self._bill.aside_started = nested[1] + self.meter.started - started

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[Any]:
        report = yield
        if call.when == "teardown":
            bill = self._bill
            report.dlctl_cost = {
                "cpu_s": round(self.meter.used_s() - bill.began_s - bill.aside_s, 4),
                "scripts": self.meter.started - bill.started - bill.aside_started,
                "limit_s": _limit_s(item),
                "is_whole": self.meter.is_whole,
                "fixtures": self._lasting,
            }
            self._lasting = {}
        return report


def _limit_s(item: pytest.Item) -> float | None:
    """Return the processor seconds that a test may take; None outside the first tier."""
    if any(item.get_closest_marker(name) for name in ("slow", "long", "frameworks")):
        return None
    marker = item.get_closest_marker("costs")
    return float(marker.args[0]) if marker else DEAREST_S


# Telling, in the process that collects the reports ------------------------------------------------


@dataclass(eq=False)  # pytest keeps plugins in sets
class CostReport:
    """The costs of all tests, as the reports bring them."""

    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    fixtures: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        wall_s = report.duration + self.tests.get(report.nodeid, {}).get("wall_s", 0.0)
        self.tests.setdefault(report.nodeid, {})["wall_s"] = round(wall_s, 3)
        if cost := getattr(report, "dlctl_cost", None):
            for name, cost_s in cost.pop("fixtures").items():
                self.fixtures[name].append(round(cost_s, 3))
            self.tests[report.nodeid] |= cost

    def rungs(self) -> dict[str, tuple[int, float]]:
        """Return the number of tests and the processor seconds of each rung."""
        found: dict[str, tuple[int, float]] = {}
        for name, cost in self.tests.items():
            count, cpu_s = found.get(rung(name), (0, 0.0))
            found[rung(name)] = count + 1, cpu_s + cost.get("cpu_s", 0.0)
        return dict(sorted(found.items(), key=lambda each: -each[1][1]))

    def dear(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the tests of the first tier that take more than a test should, dearest first."""
        return sorted(
            (
                (name, cost)
                for name, cost in self.tests.items()
                if cost.get("limit_s") is not None
                and (cost["cpu_s"] > CHEAP_S or cost["scripts"] > SCRIPTS)
            ),
            key=lambda each: -each[1]["cpu_s"],
        )

    def too_dear(self) -> list[str]:
        """Return a line for each test that is far above its limit.

        Other runs than that of the first tier try more examples, and coverage costs time itself.
        """
        if os.environ.get(tiers.TIER_VARIABLE) != "first" or "COVERAGE_RUN" in os.environ:
            return []
        return [
            f"{name}: {cost['cpu_s']:.1f} s of processor time, over {TOLERANCE:g} × "
            f"its {cost['limit_s']:g} s: make it cheaper or mark it (slow, or costs(SECONDS))"
            for name, cost in self.dear()
            if cost["cpu_s"] > TOLERANCE * cost["limit_s"]
        ]

    def write(self) -> None:
        """Write build/test-cost.json."""
        REPORT.parent.mkdir(exist_ok=True)
        text = json.dumps({"tests": self.tests, "fixtures": self.fixtures}, indent=1)
        REPORT.write_text(text + "\n")


def rung(nodeid: str) -> str:
    """Return the rung of a test: `unit/dlctl`, `cluster`, …"""
    parts = nodeid.split("::")[0].split("/")[1:-1]
    return "/".join(parts[: 2 if parts[:1] == ["unit"] else 1])


def summary(report: CostReport) -> Iterator[str]:
    """Tell the sum of each rung, and the dearest tests."""
    fixtures_s = sum(sum(each) for each in report.fixtures.values())
    rungs = report.rungs()
    total_s = sum(cpu_s for _, cpu_s in rungs.values()) + fixtures_s
    yield f"processor time by rung, in seconds ({total_s:.0f} in all)"
    for name, (count, cpu_s) in rungs.items():
        yield f"  {name:<14} {count:>5} tests {cpu_s:>8.1f}"
    yield f"  {'fixtures':<14} {'':>11} {fixtures_s:>8.1f}"
    if any(cost.get("is_whole") is False for cost in report.tests.values()):
        yield "  no control group could be made: only children that were waited for count"
    dear = report.dear()
    if dear:
        yield f"{len(dear)} tests take over {CHEAP_S:g} s or start over {SCRIPTS} processes:"
    for name, cost in dear[:SHOWN]:
        yield f"  {cost['cpu_s']:>6.1f} s {cost['scripts']:>4} processes  {name}"


class Teller:
    """Prints the summary, writes the report, and fails the run for a test that is too dear."""

    def __init__(self, report: CostReport) -> None:
        self._report = report

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        yield
        for group in groups_left():  # a worker that was ended could not remove its own
            remove_group(group)
        if tiers.TIER_VARIABLE not in os.environ or not self._report.tests:
            return
        self._report.write()
        if self._report.too_dear():
            tiers.note_fault()
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if tiers.TIER_VARIABLE not in os.environ or not self._report.tests:
            return
        terminalreporter.section("cost")
        for line in summary(self._report):
            terminalreporter.line(line)
        for line in self._report.too_dear():
            terminalreporter.line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    if is_worker or config.getoption("dist", "no") == "no":
        costs = Costs()
        config.pluginmanager.register(costs, "dlctl-costs")
        config.add_cleanup(costs.meter.close)
    if not is_worker:
        report = CostReport()
        config.pluginmanager.register(report, "dlctl-told")
        config.pluginmanager.register(Teller(report), "dlctl-teller")
