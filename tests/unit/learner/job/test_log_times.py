"""Notes of when a log grew: cheap, bounded, and harmless if they can't be written."""

import pytest

from dlctl.contract import State, parse_notes
from learner.job import status
from learner.job.status import Heartbeat, LogTimes


@pytest.fixture
def clock(monkeypatch):
    """The time that both clocks tell."""
    now = [1000.0]
    monkeypatch.setattr(status.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(status.time, "time", lambda: now[0])
    return now


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "learner-0.log"
    path.touch()
    return path


def grow(log, content):
    with log.open("a") as file:
        file.write(content)


def notes(log):
    return list(parse_notes(log.with_suffix(".times").read_bytes().splitlines()))


def test_a_size_is_noted_once_and_at_most_every_second(log, clock):
    times = LogTimes(log)
    for _ in range(30):  # 3 s
        grow(log, "x")
        times.look()
        clock[0] += 0.1
    assert not log.with_suffix(".times").exists(), "a look writes nothing"
    times.write()
    times.write()
    assert notes(log) == [(1000.0, 1), (1001.0, 11), (1002.0, 21), (1003.0, 30)]


def test_a_restart_goes_on(log, clock):
    for content in ("first\n", "again\n"):
        grow(log, content)
        LogTimes(log).write()
        clock[0] += 10
    assert notes(log) == [(1000.0, 6), (1010.0, 12)]


def test_notes_take_less_space_than_the_log_and_the_last_one_is_written(log, clock, monkeypatch):
    monkeypatch.setattr(status, "FREE_BYTES", 200)
    times = LogTimes(log)
    for _ in range(1000):
        grow(log, "line of 20 bytes...\n")
        times.look()
        times.write()
        clock[0] += 1
    noted = notes(log)
    assert 0.8 * 5000 < log.with_suffix(".times").stat().st_size <= 200 + 20_000 / 4
    assert max(b[1] - a[1] for a, b in zip(noted, noted[1:], strict=False)) <= 120
    log.with_suffix(".times").write_bytes(b"x" * 100_000)
    times = LogTimes(log)
    times.write()
    assert notes(log) == []
    times.write(last=True)
    assert log.with_suffix(".times").read_text().endswith(f"x{clock[0]:.3f} 20000\n")


@pytest.mark.parametrize("fault", ["full", "folder", "gone"])
def test_notes_that_cannot_be_written_do_no_harm_and_are_made_up_for(tmp_path, clock, fault):
    folder = tmp_path / "attempts/1"
    folder.mkdir(parents=True)
    log, notes_file = folder / "learner-0.log", folder / "learner-0.times"
    heart = Heartbeat(tmp_path, "learner", 0, 1, ["attempts/1/learner-0.log"])
    assert heart.set(state=State.TRAINING), "there is no log yet"
    if fault == "full":
        notes_file.symlink_to("/dev/full")
    elif fault == "folder":
        notes_file.mkdir()
    grow(log, "one\n")
    if fault == "gone":
        log.rename(tmp_path / "moved")
    assert heart.set(step=1)
    clock[0] += 10
    heart.beat(step=2)
    if fault == "gone":
        (tmp_path / "moved").rename(log)
    else:
        notes_file.unlink() if fault == "full" else notes_file.rmdir()
    clock[0] += 10
    assert heart.set(state=State.COMPLETED)
    assert notes(log) == [(1020.0, 4)]
