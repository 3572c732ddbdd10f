"""What Slurm's accounting says of the resources that jobs have held. Pure."""

from __future__ import annotations

import re

from dlctl.scheduler.base import Usage

FIELDS = "JobID,Submit,Start,End,TotalCPU,MaxRSS"
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+(?::\d+){0,2}(?:\.\d+)?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")


def parse_usage(stdout: str, unit: str) -> dict[str, Usage]:
    """Return the usage of each job, from the rows of the jobs and of their steps.

    Times are Unix seconds, as `SLURM_TIME_FORMAT=%s` asks for.
    """
    found: dict[str, Usage] = {}
    for line in stdout.split("\n"):
        cells = [cell.strip() for cell in line.split(unit)]
        if len(cells) != FIELDS.count(",") + 1 or not cells[0][:1].isdecimal():
            continue
        job_id, _, step = cells[0].partition(".")
        before = found.get(job_id, Usage())
        memory = max(before.memory_bytes or 0, _bytes(cells[5])) or None
        if step:
            found[job_id] = before._replace(memory_bytes=memory)
        else:
            submitted, started, ended = (_time(cell) for cell in cells[1:4])
            found[job_id] = Usage(submitted, started, ended, clock_s(cells[4]), memory)
    return found


def _time(text: str) -> float | None:
    return float(text) if text.isdecimal() and int(text) else None


def clock_s(text: str) -> float | None:
    """Return the seconds of `days-[hours[:minutes[:seconds]]]` or `[hours:]minutes:seconds`."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, clock = float(match[1] or 0), [float(part) for part in match[2].split(":")]
    hours, minutes, seconds = [*clock, 0, 0][:3] if match[1] else [0, 0, *clock][-3:]
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return round(float(match[1]) * 1024 ** "_KMGTP".index(match[2] or "_")) if match else 0
