"""The line format of job listings, shared by all schedulers. Knows no command.

Separators are those of ASCII (record 036, unit 037). They occur in no name, so names with spaces,
bars, tabs or newlines, and banners around the answer, can't break the parsing.
"""

from __future__ import annotations

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SchedulerUnavailable
from dlctl.scheduler.base import Job
from dlctl.scheduler.states import job_state

RECORD = "\036"
UNIT = "\037"
QUEUE_FIELDS = 6
"""Job id, name, state, reason, nodes, comment. The local queue adds the exit code, Slurm leaves it
empty and adds the time of the start and the partition."""


def parse_rows(text: str) -> list[Job]:
    """Return the jobs of a listing whose rows begin with RECORD; anything else is skipped."""
    jobs = []
    for row in text.split(RECORD)[1:]:
        cells = row.split(UNIT)
        if len(cells) < QUEUE_FIELDS:
            continue  # the answer was cut off in the middle of a row
        job_id, name, word, reason, nodes = cells[:5]
        comment, exit_code, starts, partition = (*cells[5:9], "", "", "")[:4]
        jobs.append(
            Job(
                job_id=job_id.strip(),
                name=name,
                state=job_state(word),
                word=word.strip(),
                reason=plain(reason),
                nodes=plain(nodes),
                exit_code=exit_code.strip(),
                comment=plain(comment.split("\n")[0]),
                starts_at=float(starts) if starts.strip().isdecimal() else 0.0,
                partition=plain(partition),
            )
        )
    return jobs


def plain(cell: str) -> str:
    """Return a cell, or "" if it has one of the scheduler's words for nothing."""
    text = cell.strip()
    return "" if text in ("None", "(null)", "N/A", "None assigned", "Unknown") else text


def unavailable(what: str, exit_code: int, stderr: str) -> SchedulerUnavailable:
    """Return the error of a command that got no answer from its controller."""
    said = " ".join(line.strip() for line in lines_of(stderr.strip())[-3:]) or "nothing"
    return SchedulerUnavailable(
        f"{what} ended with exit code {exit_code} and printed: {said}",
        hint="The jobs themselves continue; try again in a minute, or run `dlctl sites check`.",
    )
