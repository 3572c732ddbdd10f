"""In a pipe, a frame follows a change, and that something has become older is none."""

import os
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from watched_job import WatchedJob

from dlctl import contract
from dlctl.contract import State, Verdict
from dlctl.contract.metrics import EventKind, MetricsLine
from dlctl.errors import ConnectError
from dlctl.terminal import watch
from dlctl.terminal.watch import Watched, watch_in_pipe


class Enough(Exception):
    """Ends a watch that would go on for ever."""


@pytest.fixture
def job(tmp_path, monkeypatch):
    with closing(WatchedJob(tmp_path, monkeypatch)) as made:
        yield made


def test_a_frame_in_a_pipe_is_printed_only_when_something_but_ages_changed(job, monkeypatch):
    frames, pauses = [], []
    job.measure("", 1, loss=2.0)
    saved = MetricsLine(1, 1, job.now_s, {}, event="saved", kind=EventKind.CHECKPOINT.value)
    job.write("metrics/1-0.jsonl", saved.encode())

    def sleep(_):
        pauses.append(len(frames))
        job.now_s += 100
        if len(pauses) == 3:
            job.measure("", 2, loss=1.0)
        if len(pauses) == 5:
            raise Enough

    monkeypatch.setattr(watch, "time", SimpleNamespace(time=lambda: job.now_s))
    job.sleep = sleep
    with pytest.raises(Enough):
        watch_in_pipe(job.watched, frames.append, 80, follow=True)
    assert pauses == [1, 1, 1, 2, 2]
    assert "0 s ago" in frames[0]
    assert "5 min ago" in frames[1]  # what is printed has the ages of now


def test_an_end_is_told_once_with_all_that_came_before_it(job, monkeypatch):
    """Two frames said COMPLETED, the first with learners that were still training."""
    frames = []
    job.beat()

    def sleep(_):
        job.now_s += 2
        verdict = Verdict(1, "7", State.COMPLETED, "All went well.")
        job.write(contract.verdict_file(1), contract.to_json(verdict).encode(), "wb")
        job.measure("", int(job.now_s), loss=2.0)

    monkeypatch.setattr(watch, "time", SimpleNamespace(time=lambda: job.now_s))
    job.sleep = sleep
    watch_in_pipe(job.watched, frames.append, 80, follow=True)
    assert sum("COMPLETED" in each for each in frames) == 1


def test_one_frame_ends_the_watch(job):
    frames = []
    watch_in_pipe(job.watched, frames.append, 80, follow=False)
    assert len(frames) == 1
    assert "nothing has been measured yet\n·" in frames[0]  # the answers follow at once


@pytest.fixture
def kept(job, tmp_path, monkeypatch):
    """A job whose site does not answer any more, of which this machine keeps the metrics."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    job.measure("", 1, loss=2.0)
    job.live.look()
    job.training.metrics.save()
    day_ago = time.time() - 86400
    for file in (tmp_path / "cache/dlctl/metrics").iterdir():
        os.utime(file, (day_ago, day_ago))

    def unreachable(_):
        raise ConnectError("no answer in time")

    job.close()
    job.watched = Watched(job.store, unreachable, [job.record])
    return job


def test_kept_metrics_are_shown_with_their_age_while_a_site_does_not_answer(kept):
    frames = []
    watch_in_pipe(kept.watched, frames.append, 100, follow=False)
    assert "no answer in time; the metrics are as of 24 h ago" in frames[0]
    assert "loss" in frames[0] and "checkpoint" not in frames[0]  # whether there is one: unknown


def test_before_a_site_has_answered_what_is_kept_is_shown_as_such(kept):
    (each,) = kept.watched.shown()
    assert each.trouble == "asking testbed; the metrics are as of 24 h ago"
    assert each.names == ["loss"]
