"""The benchmarks' own arithmetic; what they measure is no test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmarks.report import Command, compare


def test_medians_of_interleaved_runs_without_the_warm_up():
    order: list[str] = []

    def timed(name: str, values: list[float]):
        left = iter(values)

        def run() -> float:
            order.append(name)
            return next(left)

        return run

    result = compare(
        "key",
        timed("ours", [99.0, 3.0, 1.0, 2.0]),
        timed("floor", [99.0, 6.0, 4.0, 5.0]),
        {"scp": timed("scp", [99.0, 9.0, 7.0, 8.0])},
        runs=3,
        warm_up=1,
    )
    assert json.loads(result.to_json()) == {
        "what": "key", "unit": "s", "ours": 2.0, "floor": 5.0, "peers": {"scp": 8.0}, "runs": 3,
    }  # fmt: skip
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert all(sorted(names) == ["floor", "ours", "scp"] for names in rounds)
    assert {names[0] for names in rounds} == {"floor", "ours", "scp"}


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_command_that_fails_is_no_measurement(tmp_path, on_terminal):
    program = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    command = Command(
        [sys.executable, "-c", program], os.environ, tmp_path, on_terminal=on_terminal
    )
    with pytest.raises(RuntimeError, match=f"(?s)exit code 3: {on_terminal}"):
        command.time_s()
