"""Read the metrics of a training: one curve over all its attempts."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.metrics import MetricsLine, parse_line

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.transport import Transport


def read_metrics(transport: Transport, record: Record) -> list[MetricsLine]:
    """Return one curve over all attempts: a step that a later attempt replayed is dropped."""
    end = transport.run(
        f"cd {shlex.quote(record.job_dir)}/{contract.METRICS} 2>/dev/null || exit 0\n"
        # A file whose writer was killed may lack its last newline.
        'for f in *-0.jsonl; do [ -f "$f" ] && { echo "attempt ${f%-0.jsonl}"; cat "$f"; echo; }'
        "\ndone; :"
    )
    return merge_metrics(end.text)


def merge_metrics(text: str) -> list[MetricsLine]:
    """Merge attempts, each behind a line `attempt <n>`; see `read_metrics`."""
    attempts: dict[int, list[MetricsLine]] = {}
    points: list[MetricsLine] = []
    for line in text.split("\n"):
        if line.startswith("attempt "):
            number = line.removeprefix("attempt ")
            points = attempts.setdefault(int(number), []) if number.isdecimal() else []
        elif (point := parse_line(line)) is not None:
            points.append(point)
    merged: list[MetricsLine] = []
    for _, fresh in sorted(attempts.items()):
        if fresh:
            first = min(point.step for point in fresh)
            merged = [point for point in merged if point.step < first]
        merged += fresh
    return merged
