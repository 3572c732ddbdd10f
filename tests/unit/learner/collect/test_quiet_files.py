"""Many files that do not grow cost little; one that does is read at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlctl.contract.metrics import MetricsLine
from learner.collect import parsing
from learner.collect.asked import Found
from learner.collect.parsing import SELDOM_S, Parsing
from learner.collect.state import State
from learner.job.metrics import MetricsFile

LOOK_S = 2.0


class File:
    """A file that grows when a test says so."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self.new = False
        self.looked: list[float] = []

    def take(self, last: bool) -> list[MetricsLine] | None:  # noqa: ARG002
        self.looked.append(self._clock[0])
        if not self.new:
            return None
        self.new = False
        return [MetricsLine(1, 1, 1.0, {"loss": 0.5})]

    def state(self) -> dict[str, object]:
        return {}


@pytest.fixture
def files(tmp_path: Path, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(parsing.time, "monotonic", lambda: clock[0])
    made = [File(clock) for _ in range(20)]
    output = tmp_path / "1-0-log.jsonl"
    follow = Parsing(
        lambda: iter([(Found(tmp_path / str(i)), lambda *_, f=f: f) for i, f in enumerate(made)]),
        tmp_path, MetricsFile(output), State(tmp_path / "0.state", output, 1),
    )  # fmt: skip

    def run(seconds: float) -> None:
        until = clock[0] + seconds
        while clock[0] < until:
            follow.look(clock[0] + LOOK_S)
            clock[0] += LOOK_S

    return made, run, follow, clock


def test_quiet_files_are_looked_at_seldom_and_the_last_that_grew_each_time(files):
    made, run, _, clock = files
    made[7].new = True
    run(600)
    assert len(made[7].looked) == 601 or len(made[7].looked) == 301
    begun = clock[0]
    run(600)
    quiet = [sum(at >= begun for at in file.looked) for file in made if file is not made[7]]
    assert set(quiet) == {20}
    gaps = [b - a for a, b in zip(made[0].looked, made[0].looked[1:], strict=False)]
    assert max(gaps) == SELDOM_S and gaps[:2] == [LOOK_S, LOOK_S]


def test_a_file_that_grows_again_is_soon_looked_at_each_time(files):
    made, run, follow, _ = files
    run(600)
    made[3].new = made[4].new = True
    run(SELDOM_S)
    assert not made[3].new and not made[4].new
    made[3].new = True
    run(SELDOM_S / 2)
    assert not made[3].new
    made[5].new = True
    follow.finish()
    assert not made[5].new
