"""The tables of docs/benchmarks.md: one per group, with the date and machine of its run."""

from __future__ import annotations

import datetime
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.goals import GOALS, is_rate
from benchmarks.report import Result

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
_END = "<!-- end -->\n"


def write(group: str, text: str, page: Path = PAGE) -> None:
    """Replace the group's part of the page; exit if the page has none."""
    before, _, after = _around(group, page)
    page.write_text(f"{before}\n{text}\n{_END}{after}", encoding="utf-8")


def known(group: str, page: Path = PAGE) -> dict[str, set[str]]:
    """Return the results in the group's table, each with its peers."""
    rows = re.findall(r"(?m)^\| `([^`]+)` (.*)$", _around(group, page)[1])
    return {what: set(re.findall(r"`([^`]+)`", rest.split(" | ")[3])) for what, rest in rows}


def _around(group: str, page: Path) -> tuple[str, str, str]:
    """Return what stands before the group's part of the page, the part, and what stands after."""
    begin = f"<!-- written by `python -m benchmarks {group}` -->\n"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    part, end, after = rest.partition(_END)
    if not found or not end:
        sys.exit(f"{page}: the lines {begin.strip()} and {_END.strip()} are not there")
    return before + begin, part, after


def table(results: Iterable[Result]) -> str:
    """Return the results as a Markdown table."""
    lines = [
        "| what | ours | floor | ours / floor | peers | goals, and what was reached | met | runs |",
        "|---|---:|---:|---:|---|---|---|---:|",
    ]
    return "\n".join([*lines, *(_row(result) for result in results)]) + "\n"


def _row(result: Result) -> str:
    peers = (f"`{name}` {number(value, result.unit)}" for name, value in result.peers.items())
    judged = [goal.judge(result) for goal in GOALS.get(result.what, ())]
    ratio = f"{result.ours / result.floor:.2f}" if result.floor else "-"
    cells = [
        f"`{result.what}`", number(result.ours, result.unit), number(result.floor, result.unit),
        ratio, "<br>".join(peers) or "-", "<br>".join(text for text, _ in judged) or "-",
        "<br>".join(_MET[met] for _, met in judged) or "-", str(result.runs),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


_MET = {True: "yes", False: "no", None: "-"}


def number(value: float, unit: str) -> str:
    """Return a value for people to read: times below 1 s in milliseconds, rates rounded."""
    if unit == "s" and value < 1:
        return f"{1000 * value:.{0 if value >= 0.1 else 1}f} ms"
    if is_rate(unit):
        return f"{value:,.0f} {unit}"
    return f"{value:.3f} {unit}" if unit == "s" else f"{value:g} {unit}"


def conditions(packages: Sequence[str], programs: Sequence[Sequence[str]], mpi: bool) -> str:
    """Return the date, machine and versions of a run, as a Markdown list.

    `programs` are commands that print their version; `mpi` adds the MPI library.
    """
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    outputs = [_output_of(*argv) for argv in programs] + ([_mpi_library()] if mpi else [])
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return "\n".join([
        f"- Date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"- Machine: {_processor()}, {os.cpu_count()} CPUs, {memory_gib:.0f} GiB, "
        f"{platform.system()} {platform.release()}; load at the end (1, 5, 15 min): {load}",
        f"- Python {platform.python_version()}, {versions}",
        *([f"- {'; '.join(outputs)}"] if outputs else []),
    ])  # fmt: skip


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _output_of(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return f"no {argv[0]}"
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.stdout.strip()


def _mpi_library() -> str:
    """Return the MPI library's name and version, asked for in a separate process."""
    # Without MPI_Init: Open MPI leaves a file in /dev/shm if mpiexec did not start the process.
    program = (
        "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print(MPI.Get_library_version())"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)  # fmt: skip
    version = done.stdout.strip().partition("\n")[0].partition(",")[0]
    return version or "no MPI library"
