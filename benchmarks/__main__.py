"""Run every benchmark and write the table in docs/benchmarks.md (`make bench`).

Prints each result as one line of JSON, as each benchmark alone does.
"""

from __future__ import annotations

import datetime
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from benchmarks import client, start_up
from benchmarks.report import Result

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
BEGIN, END = "<!-- written by `make bench` -->\n", "<!-- end -->\n"

# The most that ours may be of the floor, and the most that it may be on top of it.
RATIO_GOALS = {name: 1.3 for name in ("start_up_help", "start_up_list")}
RATIO_GOALS |= {f"{name}_terminal": goal for name, goal in RATIO_GOALS.items()}
DIFFERENCE_GOALS = {"submit_cold": 0.5}


def main() -> None:
    """Measure everything, print it and write the table."""
    results = []
    for measure in (start_up.measure, client.measure):
        for result in measure():
            print(result.to_json(), flush=True)
            results.append(result)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        sys.exit(f"{PAGE}: the lines {BEGIN.strip()} and {END.strip()} are not there")
    text = f"{_conditions()}\n\n{table(results)}"
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def table(results: Iterable[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| what | ours | floor | ours / floor | ours - floor | goal | met | peers | runs |",
        "|---|---:|---:|---:|---:|---|---|---|---:|",
    ]
    return "\n".join([*lines, *(_row(result) for result in results)]) + "\n"


def _row(result: Result) -> str:
    goal, met = _goal(result)
    peers = ", ".join(f"`{name}` {_number(v, result)}" for name, v in result.peers.items())
    cells = [
        f"`{result.what}`", _number(result.ours, result), _number(result.floor, result),
        f"{result.ours / result.floor:.2f}", _number(result.ours - result.floor, result),
        goal, met, peers or "-", str(result.runs),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _goal(result: Result) -> tuple[str, str]:
    if (ratio := RATIO_GOALS.get(result.what)) is not None:
        return f"at most {ratio:g} x", "yes" if result.ours <= ratio * result.floor else "no"
    if (more := DIFFERENCE_GOALS.get(result.what)) is not None:
        met = result.ours - result.floor <= more
        return f"at most {more:g} {result.unit} on top", "yes" if met else "no"
    return "-", "-"


def _number(value: float, result: Result) -> str:
    return f"{value:.3f} {result.unit}"


def _conditions() -> str:
    names = ("dlctl", "typer", "rich", "pydantic", "paramiko")
    packages = ", ".join(f"{name} {version(name)}" for name in names)
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return "\n".join([
        f"- Date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"- Machine: {_processor()}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}; load at the end (1, 5, 15 min): {load}",
        f"- Python {platform.python_version()}, {packages}",
        f"- {_said('ssh', '-V')}; {_said('slurmctld', '-V')}",
    ])  # fmt: skip


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _said(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return f"no {argv[0]}"
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
