"""The cursor's file among real processes: life, death, locks and refusals."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

from psrv.cursor import file as cursor_file
from psrv.cursor import leases
from psrv.cursor import table as cursor_table
from psrv.cursor.base import Chunk, CursorError, make_state, read_state
from psrv.cursor.file import FileCursor
from psrv.cursor.overseer import expel, progress, reported

LEARNER = """\
import sys
from psrv.cursor.base import Chunk, CursorError
from psrv.cursor_file import FileCursor
cursor = FileCursor(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), look_every_s=0)
print("ready", flush=True)
for line in sys.stdin:
    try:
        print(eval(line), flush=True)
    except CursorError as error:
        print(repr(str(error)), flush=True)
"""


class Learner:
    """A learner in its own process that carries out orders."""

    def __init__(self, path: Path, samples: int, passes: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEARNER, path, str(samples), str(passes)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, text: str) -> Any:
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()
        return eval(self.process.stdout.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # A look for dead learners that a busy machine makes slow would put off the next one.
    monkeypatch.setattr(cursor_file, "_LONGEST_S", 0.0)
    learners: list[Learner] = []

    def start(samples: int = 100, passes: int = 2) -> Learner:
        learners.append(Learner(tmp_path / "cursor", samples, passes))
        return learners[-1]

    yield start
    for learner in learners:
        learner.process.send_signal(signal.SIGCONT)
        learner.end()


def opened(tmp_path: Path, **more: Any) -> FileCursor:
    return FileCursor(tmp_path / "cursor", 100, 2, **{"look_every_s": 0.0, **more})


def test_chunks_end_at_the_end_of_a_pass_and_come_once(tmp_path):
    with opened(tmp_path) as cursor:
        seen = []
        chunk = cursor.take(30)
        while chunk is not None:
            seen.append(chunk)
            chunk = cursor.take(45, chunk)
        assert seen == [
            Chunk(0, 0, 30), Chunk(0, 30, 75), Chunk(0, 75, 100),
            Chunk(1, 0, 45), Chunk(1, 45, 90), Chunk(1, 90, 100),
        ]  # fmt: skip
        assert cursor.finished
        assert cursor.reported == 6
        assert cursor.take(1) is None
        assert cursor.state() == {
            "version": 1, "samples": 100, "passes": 2, "next": 200, "undone": [],
        }  # fmt: skip


def test_no_chunk_has_a_single_sample(tmp_path, start):
    """Batch norm can't be trained on one. A learner that asks for single samples gets them."""
    learner = start()
    assert learner.ask("cursor.take(33)") == Chunk(0, 0, 33)
    with opened(tmp_path) as cursor:
        assert [cursor.take(33), cursor.take(33)] == [Chunk(0, 33, 66), Chunk(0, 66, 100)]
        learner.end()
        chunk = cursor.take(2)
        assert chunk == Chunk(0, 0, 2)
        assert cursor.take(1, chunk) == Chunk(0, 2, 3)
        assert cursor.take(29, Chunk(0, 2, 3)) == Chunk(0, 3, 33)


def test_leases_of_the_dead_are_given_out_again_in_the_requested_sizes(tmp_path, start):
    learner = start()
    assert learner.ask("cursor.take(40)") == Chunk(0, 0, 40)
    assert learner.ask("cursor.take(40, done=Chunk(0, 0, 40))") == Chunk(0, 40, 80)
    with opened(tmp_path) as cursor:
        assert cursor.take(10) == Chunk(0, 80, 90)
        learner.end()
        assert [cursor.take(25), cursor.take(25)] == [Chunk(0, 40, 65), Chunk(0, 65, 80)]
        assert cursor.take(25) == Chunk(0, 90, 100)
        dead = next(entry for entry in cursor.learners() if not entry.alive)
        assert (dead.reported, dead.leases) == (1, ())


def test_a_stopped_learner_is_alive(tmp_path, start):
    learner = start(passes=2)
    learner.ask("cursor.take(100)")
    with opened(tmp_path) as cursor:
        learner.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, learner.process.pid, os.WSTOPPED | os.WNOWAIT)
        assert cursor.take(100, done=None) == Chunk(1, 0, 100)
        cursor.done(Chunk(1, 0, 100))
        assert cursor.take(100) is None
        assert not cursor.finished
        learner.process.send_signal(signal.SIGCONT)
        assert learner.ask("cursor.done(Chunk(0, 0, 100))") is None
        assert cursor.finished


def test_a_learner_that_lost_its_locks_gets_an_error(tmp_path, start):
    learner = start()
    assert learner.ask("cursor.take(30)") == Chunk(0, 0, 30)
    # Closing any other descriptor of the file releases POSIX locks.
    assert learner.ask("open(sys.argv[1]).close()") is None
    with opened(tmp_path) as cursor:
        assert cursor.take(30) == Chunk(0, 0, 30)
        assert "found dead" in learner.ask("cursor.done(Chunk(0, 0, 30))")
        assert "found dead" in learner.ask("cursor.take(1)")
        cursor.done(Chunk(0, 0, 30))
        assert cursor.reported == 1


def test_an_expelled_learner_that_lives_gets_an_error(tmp_path, start):
    """Its node was given up, but it still holds its locks."""
    learner, path = start(), tmp_path / "cursor"
    assert expel(path, 7)
    number = learner.ask("cursor.learner")
    assert learner.ask("cursor.take(30)") == Chunk(0, 0, 30)
    assert learner.ask("cursor.take(30, done=Chunk(0, 0, 30))") == Chunk(0, 30, 60)
    assert expel(path, number)
    assert reported(path) == {number: 1}
    assert progress(path) == (30, 200)
    with opened(tmp_path) as cursor:
        assert cursor.take(30) == Chunk(0, 30, 60)
        assert "expelled" in learner.ask("cursor.done(Chunk(0, 30, 60))")
        assert "expelled" in learner.ask("cursor.take(1)")
        assert "expelled" in learner.ask("cursor.state()")
        (entry,) = [each for each in cursor.learners() if each.learner == number]
        assert (entry.alive, entry.reported, entry.leases) == (False, 1, ())
        cursor.done(Chunk(0, 30, 60))
        assert cursor.take(100) == Chunk(0, 60, 100)


def test_expelling_waits_for_no_lock(tmp_path, start):
    path = tmp_path / "cursor"
    assert (expel(path, 7), reported(path), progress(path)) == (True, None, None)
    path.touch()
    assert (expel(path, 7), reported(path)) == (False, None)
    learner = start()
    number = learner.ask("cursor.learner")
    assert learner.ask("cursor._locks.lock()") is None
    assert (expel(path, number), reported(path)) == (False, None)
    assert learner.ask("cursor._locks.unlock()") is None
    assert (expel(path, number), reported(path)) == (True, {number: 0})


@pytest.mark.parametrize("place", ["os.open", "os.fstat", "mmap.mmap", "pathlib.Path.exists"])
def test_the_overseer_survives_an_unreachable_file_system(tmp_path, monkeypatch, place):
    """The supervisor tries again as long as it gets a CursorError."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    path = tmp_path / "cursor"
    if place == "pathlib.Path.exists":
        path.touch()  # an empty file
    else:
        opened(tmp_path).close()
    with monkeypatch.context() as patched:
        patched.setattr(place, fail)
        with pytest.raises(CursorError, match="can't be used: Stale"):
            expel(path, 7)
    assert expel(path, 7) is (place != "pathlib.Path.exists")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 and newer
def test_a_forked_child_can_not_use_its_parent_s_cursor(tmp_path):
    with opened(tmp_path) as cursor:
        mine = cursor.take(10)
        child = os.fork()
        if child == 0:  # must not return into pytest
            try:
                cursor.take(10)
            except CursorError as error:
                cursor.close()
                os._exit(7 if "forked" in str(error) else 1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        other = Learner(tmp_path / "cursor", 100, 2)
        try:
            assert other.ask("cursor.take(200)") == Chunk(0, 10, 100)
        finally:
            other.end()
        cursor.done(mine)


def test_threads_share_one_cursor(tmp_path):
    with opened(tmp_path) as cursor:
        seen: list[Chunk] = []

        def work() -> None:
            chunk = cursor.take(3)
            while chunk is not None:
                seen.append(chunk)
                chunk = cursor.take(3, chunk)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert cursor.finished
        assert sorted(place for c in seen for place in range(c.pass_number * 100 + c.start,
                      c.pass_number * 100 + c.stop)) == list(range(200))  # fmt: skip


def test_a_state_survives_a_checkpoint(tmp_path):
    with opened(tmp_path) as cursor:
        chunks = [cursor.take(20) for _ in range(4)]
        cursor.done(chunks[0])
        cursor.done(chunks[2])
        state = json.loads(json.dumps(cursor.state()))
        assert state["undone"] == [[20, 40], [60, 80]]
        assert read_state(state, 100, 2).done_samples == 40
        for chunk in (chunks[1], chunks[3]):
            cursor.done(chunk)
        cursor.restore(state)
        again = [cursor.take(15) for _ in range(4)]
        assert again == [Chunk(0, 20, 35), Chunk(0, 35, 40), Chunk(0, 60, 75), Chunk(0, 75, 80)]
        with pytest.raises(CursorError, match="holds 4 chunks"):
            cursor.take(15)
        assert cursor.take(15, again[0]) == Chunk(0, 80, 95)
    assert [file.name for file in tmp_path.iterdir()] == ["cursor"]


def test_a_restore_is_refused_while_other_learners_are_there(tmp_path, start):
    learner = start()
    with opened(tmp_path) as cursor:
        state = cursor.state()
        cursor.take(10)
        with pytest.raises(CursorError, match="other learners use"):
            cursor.restore(state)
        learner.end()
        cursor.restore(state)
        assert cursor.take(10) == Chunk(0, 0, 10)


def test_more_undone_ranges_than_slots_are_kept_or_refused(tmp_path):
    most = cursor_table.SLOTS * cursor_table.LEASES
    path, samples = tmp_path / "cursor", 4 * most
    undone = [(2 * start, 2 * start + 1) for start in range(most)]
    with FileCursor(path, samples, 1) as cursor:
        state = make_state(samples, 1, 2 * most, undone).to_dict()
        cursor.restore(state)
        assert cursor.state()["undone"] == [list(part) for part in undone]
        assert cursor.take(5).samples == 1
        more = make_state(samples, 1, 3 * most, [*undone, (2 * most + 1, 2 * most + 2)]).to_dict()
        with pytest.raises(CursorError, match="can't hold 4097 undone chunks"):
            cursor.restore(more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"samples": 99}, "of 99 samples, but the data set has 100"),
        ({"next": 201}, "at position 201, but 2 passes"),
        ({"undone": [[5, 5]]}, "wrong range, 5 to 5"),
        ({"undone": [[90, 110]]}, "wrong range, 90 to 110"),
        ({"undone": [[5, 9], [8, 10]]}, "wrong range, 8 to 10"),
        ({"undone": "x"}, "can't be read"),
        ({"version": 2}, "version 2, not 1"),
    ],
)
def test_a_wrong_state_is_refused(tmp_path, change, message):
    state = {**make_state(100, 2, 150, []).to_dict(), **change}
    with opened(tmp_path) as cursor:
        with pytest.raises(CursorError, match=message):
            cursor.restore(state)
        assert cursor.take(1) == Chunk(0, 0, 1)


def test_a_state_may_go_on_for_more_passes(tmp_path):
    with opened(tmp_path) as cursor:
        cursor.restore(make_state(100, 1, 100, []).to_dict())
        assert cursor.take(1) == Chunk(1, 0, 1)


def test_wrong_uses_are_refused(tmp_path):
    with pytest.raises(CursorError, match="nothing to take from 0 samples"):
        FileCursor(tmp_path / "cursor", 0, 1)
    with pytest.raises(CursorError, match=r"can't be opened: No such file .*\n  HINT: "):
        FileCursor(tmp_path / "absent/cursor", 1, 1)
    text = tmp_path / "text"
    text.write_text("mine")
    with pytest.raises(CursorError, match="is no cursor's file"):
        FileCursor(text, 1, 1)
    assert text.read_text() == "mine"
    long_text = tmp_path / "long"
    long_text.write_text("mine" * 50_000)
    with pytest.raises(CursorError, match="not a cursor's file, or it is damaged"):
        FileCursor(long_text, 1, 1)
    with opened(tmp_path) as cursor:
        with pytest.raises(CursorError, match="open in this process already"):
            opened(tmp_path)
        with pytest.raises(CursorError, match="a chunk of 0 samples"):
            cursor.take(0)
        with pytest.raises(CursorError, match="is not held by this learner"):
            cursor.done(Chunk(0, 0, 5))
        with pytest.raises(CursorError, match="is not held by this learner"):
            cursor.take(5, Chunk(0, 0, 5))
        assert cursor.take(5) == Chunk(0, 0, 5)
    cursor.close()
    with pytest.raises(CursorError, match="closed already"):
        cursor.take(5)
    with pytest.raises(CursorError, match="2 passes over 100 samples, not of 2 over 50"):
        FileCursor(tmp_path / "cursor", 50, 2)
    opened(tmp_path).close()


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CursorError, match="No space left on device"):
        opened(tmp_path)
    monkeypatch.undo()
    opened(tmp_path).close()


def test_a_file_with_pages_from_different_times_is_refused(tmp_path):
    """A power loss may leave a header or a record that is older than the other pages."""
    with opened(tmp_path) as cursor:
        cursor.take(30, cursor.take(30))
        cursor.take(30)
    whole = (tmp_path / "cursor").read_bytes()
    changes = {cursor_table.NEXT: 45, cursor_table.USED: 2000, cursor_table.HELD + 2: 59}
    for word, value in changes.items():
        words = array("q", whole)
        table = cursor_table.Table(memoryview(words))
        table.load()
        words[table.at + word] = value
        (tmp_path / "cursor").write_bytes(words)
        with pytest.raises(
            CursorError, match=r"cursor is damaged: .*\n  HINT: .*restore the state"
        ):
            opened(tmp_path)
    (tmp_path / "cursor").write_bytes(whole)
    opened(tmp_path).close()


# Locks -------------------------------------------------------------------------------------------


def test_lost_locks_are_an_error(tmp_path, monkeypatch):
    def lost(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(tmp_path) as cursor:
        chunk = cursor.take(5)
        calls = [lambda: cursor.take(5), lambda: cursor.done(chunk), cursor.state, cursor.learners]
        with monkeypatch.context() as patch:
            patch.setattr(leases, "_lockf", lost)
            for call in calls:
                with pytest.raises(CursorError, match=r"refuses a lock on .*Input/output error"):
                    call()
            with pytest.raises(CursorError, match=r"refuses a lock on .*other"):
                FileCursor(tmp_path / "other", 5, 1)
        cursor.done(chunk)
        assert cursor.take(5) == Chunk(0, 5, 10)


def test_the_cursor_loads_neither_mpi_nor_torch():
    program = (
        "import sys, psrv.cursor_file, psrv.cursor.leases\n"
        "print({'mpi4py', 'torch', 'numpy', 'learner', 'dlctl.cli'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


class Looks:
    """Looks for dead learners that take a given time, by the test's own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float) -> None:
        self.now, self.count, self.takes_s = 0.0, 0, takes_s
        monkeypatch.setattr(cursor_file, "monotonic", lambda: self.now)
        monkeypatch.setattr(FileCursor, "_reclaim", lambda _: self._look_for_dead())

    def _look_for_dead(self) -> None:
        self.now += self.takes_s
        self.count += 1


def test_slow_looks_for_the_dead_are_rare(tmp_path, monkeypatch):
    """On a network each learner checks the locks of all, and blocks all meanwhile."""
    looks = Looks(monkeypatch, 0.1)
    with FileCursor(tmp_path / "cursor", 10, 1, look_every_s=0.0) as cursor:
        for _ in range(10):
            assert (chunk := cursor.take(1)) is not None
            cursor.done(chunk)
            looks.now += 0.05
        assert looks.count == 1
        while looks.now < 3.0:
            assert cursor.take(1) is None  # only leases of the dead are left
            looks.now += 0.05
        assert looks.count <= 13


def test_one_slow_look_does_not_delay_the_next_for_hours(tmp_path, monkeypatch):
    """The file's server was away meanwhile."""
    looks = Looks(monkeypatch, 90.0)
    with FileCursor(tmp_path / "cursor", 100, 1) as cursor:
        cursor.take(1)
        looks.now += 125.0
        cursor.take(1)
    assert looks.count == 2
