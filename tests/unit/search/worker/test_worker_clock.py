"""A worker's end is told by a clock that nobody sets."""

import time
from pathlib import Path

import pytest
from event_loops import run_loop

from dlctl.contract import search as files
from search.worker.slot_pool import Resources
from search.worker.worker import Options, Worker


@pytest.mark.parametrize("jump_s", [-86_400, 86_400])
def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    (tmp_path / files.FOLDER).mkdir()
    real = time.time

    async def run() -> None:
        have = Resources(cpus=1, gpus=0, memory_bytes=1 << 30, labels=())
        worker = Worker(tmp_path, Options("w1", 1, have, ends_at=time.time() + 5000, grace_s=10))
        monkeypatch.setattr(time, "time", lambda: real() + jump_s)
        left = worker._pool.request(1).seconds_left
        assert 4000 < left <= 4980
        worker.leaving.set()
        await worker.run()

    run_loop(run())
