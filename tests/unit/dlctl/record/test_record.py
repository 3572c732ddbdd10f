"""The local record: what is written comes back, and nothing old overwrites what is newer."""

import contextlib
import functools
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from login_side import make_record
from made_past import past

from dlctl.contract import Amount, Made, OutputPlace, State
from dlctl.errors import RecordError
from dlctl.record import FETCHED, RecordStore, batches, file, state_directory, used
from dlctl.record.training import ADOPTED


@pytest.fixture
def store(tmp_path):
    return RecordStore(tmp_path / "record.db")


@pytest.mark.parametrize("folder", ["/home/me/t", "/home/me/caf\udce9"])
def test_a_record_comes_back_whole(store, folder):
    """SQLite takes no text that is not UTF-8: `dlctl submit` ended with an internal error."""
    record = make_record(reason="weird: ' \" \n ; DROP TABLE trainings", state=State.HALTED,
                         attempt=3, job_id="77", seen_at=1.5, stale_since=2.5, folder=folder,
                         manifest_path=f"{folder}/m.yml")  # fmt: skip
    store.add(record)
    assert store.all() == [record]
    store.update(record := replace(record, state=State.TRAINING))
    assert store.all() == [record]


def test_a_poll_that_began_before_keeps_the_words_that_the_user_gave_since(store):
    """`dlctl watch` wrote its old tags over those of `dlctl tag`."""
    store.add(old := make_record(tags=["first"]))
    store.reword([old], "tags", lambda tags: [*tags, "baseline"])
    store.update(replace(old, overrides='{"learners": 2}'), new_overrides=True)
    store.update(replace(old, state=State.TRAINING))
    (known,) = store.all()
    assert (known.tags, known.overrides) == (["first", "baseline"], '{"learners": 2}')
    assert known.state is State.TRAINING


def test_a_late_poll_overwrites_no_later_attempt_and_brings_nothing_back(store):
    old = make_record(attempt=1, state=State.TRAINING)
    store.add(old)
    new = replace(old, attempt=2, state=State.PENDING, job_id="8")
    store.update(new)
    store.update(replace(old, state=State.FAILED))
    assert store.all() == [new]
    store.remove("t-1")
    store.update(replace(new, state=State.COMPLETED))
    assert store.all() == []


def test_a_unique_beginning_or_end_is_enough_and_a_near_miss_is_named(store):
    for training_id in ("digits-aaaa", "digits-aabb", "digits", "words-cccc"):
        store.add(make_record(training_id=training_id))
    assert store.find("w").training_id == "words-cccc"
    assert store.find("digits").training_id == "digits"
    store.add(make_record(training_id="words-more-dddd"))
    assert store.find("words").training_id == "words-cccc", "a whole name comes before a beginning"
    store.remove("words-more-dddd")
    assert store.find("cccc").training_id == "words-cccc"
    with pytest.raises(RecordError) as near:
        store.find("digits-aaba")
    assert near.value.hint == "did you mean digits-aabb? `dlctl list` shows them all"
    with pytest.raises(RecordError, match="fits 2 trainings") as ambiguous:
        store.find("digits-a")
    assert "digits-aabb" in ambiguous.value.hint
    with pytest.raises(RecordError, match="no training 'x' is known"):
        store.find("x")
    for find in (store.find, store.find_search):  # an empty variable names none
        with pytest.raises(RecordError, match="'' fits 4 trainings"):
            find("")


def test_no_id_is_the_newest_of_the_folder_or_of_the_nearest_above_it(store, tmp_path):
    here = tmp_path.resolve()
    for number, folder in enumerate([here, here, "/elsewhere", here / "a"]):
        store.add(make_record(training_id=f"t-{number}", folder=str(folder),
                              created_at=f"2026-0{9 if number == 2 else number + 1}"))  # fmt: skip
    assert store.find(None, here).training_id == "t-1"
    assert store.find(None, here / "b" / "c").training_id == "t-1"
    assert store.find(None, here / "a" / "c").training_id == "t-3"
    with pytest.raises(RecordError, match="no training was submitted from"):
        store.find(None, tmp_path.parent)


def test_the_latest_is_the_last_that_was_submitted_whatever_the_clock_said(store):
    """The clock of a laptop was a year ahead: a bare `cancel` would have ended that training."""
    for name, created_at in (("a", "2026-11-01"), ("ahead", "2027-11-02"), ("b", "2026-11-03")):
        store.add(make_record(training_id=f"{name}-1", created_at=created_at, folder="/f"))
    store.add_missing([make_record(training_id="old-1", created_at="2026-10-01", folder=ADOPTED)])
    assert [each.training_id for each in store.all()] == ["old-1", "a-1", "ahead-1", "b-1"]
    assert store.find(None, Path("/f")).training_id == "b-1"
    assert store.find("@latest").training_id == "b-1"


def test_many_ids_are_found_with_one_look_into_the_file(store, monkeypatch):
    for number in range(20):
        store.add(make_record(training_id=f"t-{number:02}"))
    looks, look = [], store.all
    monkeypatch.setattr(store, "all", lambda: looks.append(1) or look())
    found = store.find_all([f"t-{number:02}" for number in range(20)] + ["t-03"])
    assert [r.training_id for r in found] == [f"t-{number:02}" for number in range(20)]
    assert len(looks) == 1


def test_what_has_not_changed_is_not_decoded_again(store):
    kept, changed = make_record(training_id="a-1"), make_record(training_id="b-2")
    store.add(kept, changed)
    before = store.all()
    store.update(replace(changed, epoch=3))
    store.reword([changed], "tags", lambda _: ["new"])
    after = store.all()
    assert after[0] is before[0]
    assert (after[1].epoch, after[1].tags) == (3, ["new"])


def test_the_folder_is_private_and_lies_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert state_directory() == tmp_path / ".local/state/dlctl"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert stat.S_IMODE(state_directory().stat().st_mode) == 0o700
    assert RecordStore().path == tmp_path / "state/dlctl/record.db"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with pytest.raises(RecordError, match="can't be created"):
        RecordStore()


def test_a_record_of_an_earlier_dlctl_is_named_while_there_is_no_other(store):
    """`dlctl list` was empty after an update, and said nothing."""
    said = []
    store.tell = said.append
    assert store.all() == [] and not said
    store.path.with_name("trainings.db").touch()
    assert store.all() == [] and "dlctl adopt SITE" in said[0]
    store.add(make_record())
    assert len(store.all()) == len(said) == 1


def test_several_at_once_lose_nothing(store):
    def add(number):
        RecordStore(store.path).add(make_record(training_id=f"t-{number}"))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(add, range(12)))
    assert {r.training_id for r in store.all()} == {f"t-{n}" for n in range(12)}


@contextlib.contextmanager
def changed(path):
    """Another process's open transaction, which holds the lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    yield connection
    connection.execute("COMMIT")
    connection.close()


def test_reading_neither_waits_for_a_lock_nor_writes(store, monkeypatch):
    assert store.all() == []
    assert not store.path.exists()
    monkeypatch.setattr(file, "_READ_PATIENCE_S", 0.1)
    store.add(make_record())
    before = store.path.read_bytes()
    with changed(store.path):
        assert [r.training_id for r in store.all()] == ["t-1"]
    assert store.path.read_bytes() == before


def test_a_reader_waits_again_where_a_writer_changes_what_it_reads(store, monkeypatch):
    """45 clients at a load of 60: one submission was told that the record is malformed."""
    select = file._select
    store.add(make_record())
    writer = sqlite3.connect(store.path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")

    def torn(path, how, query):
        if "immutable" in how:
            writer.execute("COMMIT")
            raise sqlite3.DatabaseError("database disk image is malformed")
        return select(path, how, query)

    monkeypatch.setattr(file, "_READ_PATIENCE_S", 0.1)
    monkeypatch.setattr(file, "_select", torn)
    assert [r.training_id for r in store.all()] == ["t-1"]
    writer.close()


def test_a_full_disk_does_not_keep_anyone_from_reading(store):
    store.add(make_record())
    program = (
        "import pathlib, resource, sys\n"
        "from dlctl.record import RecordStore\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
        "sys.exit([r.training_id for r in RecordStore(pathlib.Path(sys.argv[1])).all()] != ['t-1'])"
    )
    subprocess.run([sys.executable, "-c", program, store.path], check=True)


def test_the_change_of_a_writer_that_was_killed_is_undone(store):
    """Readers saw half of it, and `dlctl adopt` could not repair the file."""
    store.add(*[make_record(training_id=f"t-{n}") for n in range(50)])
    subprocess.run([sys.executable, "-c", KILLED_WRITER, str(store.path)], check=False)
    assert store.path.with_name("record.db-journal").exists()
    assert len(store.all()) == 50
    assert store.repair() is None


KILLED_WRITER = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("DELETE FROM trainings WHERE training_id > 't-2'")
for number in range(300):
    connection.execute("INSERT INTO trainings VALUES (?, ?)", [f"x-{number}", "x" * 900])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_cannot_be_written_is_told_and_known_all_the_same(store, monkeypatch):
    told = []
    store.add(make_record(), make_record(training_id="t-2"))
    mine = RecordStore(store.path, told.append)
    monkeypatch.setattr(file, "_WRITE_PATIENCE_S", 0.1)
    with changed(store.path):
        mine.update(make_record(state=State.FAILED, seen_at=2.0), make_record(training_id="t-2"))
        assert [r.state for r in mine.all()] == [State.FAILED, State.QUEUED]
    assert told == [f"the local record {store.path} can't be used: database is locked; "
                    "what is known is not written down"]  # fmt: skip
    store.remove("t-2")
    store.reword(store.all(), "tags", lambda tags: [*tags, "new"])
    assert [(r.state, r.tags) for r in mine.all()] == [(State.FAILED, ["new"])]
    store.update(make_record(seen_at=3.0))  # another dlctl has asked since
    assert [r.state for r in mine.all()] == [State.QUEUED]
    mine.update(make_record(state=State.PENDING))
    store.update(make_record(state=State.HALTED))
    assert [r.state for r in mine.all()] == [State.HALTED]


@pytest.mark.parametrize("others_write", [True, False])
def test_a_writer_waits_as_long_as_others_make_progress(store, monkeypatch, others_write):
    """Of 45 clients at once one gave up after 30 s, although the others wrote all the time."""
    store.add(make_record())
    now, change, tries = [0.0], file._change, []

    def meets_a_lock(*arguments):
        tries.append(now[0])
        if len(tries) == 20:
            return change(*arguments)
        if others_write:
            change(store.path, lambda database: database.execute(
                f"INSERT INTO submissions VALUES ('{now[0]}', '', '')"))  # fmt: skip
        now[0] += 10
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(file.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(file, "_change", meets_a_lock)
    if others_write:
        store.add(make_record(training_id="t-2"))
        assert len(store.all()) == 2
    else:
        with pytest.raises(RecordError, match="locked"):
            store.add(make_record(training_id="t-2"))
        assert tries[-1] == 30


@pytest.mark.parametrize(("problem", "hint"), [
    (sqlite3.OperationalError("database is locked"), "another process holds its lock"),
    (sqlite3.OperationalError("database or disk is full"), "make room there: df -h "),
    (sqlite3.OperationalError("disk I/O error"), "make room there: df -h "),
    (OSError(28, "No space left on device"), "make room there: df -h "),
    (sqlite3.DatabaseError("file is not a database"), "dlctl adopt SITE"),
    (OSError(13, "Permission denied"), "without the file dlctl starts afresh"),
])  # fmt: skip
def test_the_hint_of_a_record_that_cannot_be_written_fits_its_problem(
    store, monkeypatch, problem, hint
):
    """A locked record once advised to do without the file, which alone knows the trainings."""

    def fail(*_):
        raise problem

    monkeypatch.setattr(file, "_WRITE_PATIENCE_S", 0.01)
    monkeypatch.setattr(file, "_change", fail)
    with pytest.raises(RecordError) as refused:
        store.add(make_record())
    assert hint in refused.value.hint


def test_a_folder_in_the_place_of_the_file_is_said(store):
    """The hint was to make room on the disk."""
    store.path.mkdir()
    for use in (store.all, lambda: store.add(make_record()), store.repair):
        with pytest.raises(RecordError) as caught:
            use()
        assert caught.value.hint == "a folder is in the file's place: move it away"


def test_a_lock_that_is_held_for_a_while_is_waited_for_and_an_id_is_there_once(store):
    store.add(make_record())
    held = sqlite3.connect(store.path, isolation_level=None, check_same_thread=False)
    held.execute("BEGIN EXCLUSIVE")
    release = threading.Timer(0.3, lambda: held.execute("COMMIT"))
    release.start()
    store.add(make_record(training_id="t-2"))
    release.join()
    held.close()
    with pytest.raises(RecordError, match="can't be used"):
        store.add(make_record())
    assert [r.training_id for r in store.all()] == ["t-1", "t-2"]


def test_a_row_with_an_unknown_word_is_skipped_told_and_kept(store):
    told = []
    for training_id in ("t-1", "t-2"):
        store.add(make_record(training_id=training_id))
    with changed(store.path) as connection:
        for training_id, change in (("t-1", '"$.colour", "red"'), ("t-2", '"$.state", "BOGUS"')):
            connection.execute("UPDATE trainings SET fields = json_set(fields, "
                               f"{change}) WHERE training_id = ?", [training_id])  # fmt: skip
    store = RecordStore(store.path, told.append)
    assert [r.training_id for r in store.all()] == ["t-1"]
    store.all()
    assert len(told) == 1
    assert "1 that this version of dlctl does not understand: t-2 (Record.state: 'BOGUS'" in told[0]
    store.update(make_record(training_id="t-1", state=State.COMPLETED))
    store.add(make_record(training_id="t-3"))
    assert [r.training_id for r in store.all()] == ["t-1", "t-3"]
    rows = sqlite3.connect(store.path).execute(
        "SELECT fields ->> 'state', fields ->> 'colour' FROM trainings ORDER BY training_id"
    )
    assert rows.fetchall() == [("COMPLETED", "red"), ("BOGUS", None), ("QUEUED", None)]


@pytest.mark.parametrize("change", [
    """json_set(fields, '$.loss', 'low')""", """json_set(fields, '$.epochs', null)""",
    """json_set(fields, '$.stale_since', 'yesterday')""", "'no JSON'", "x'00ff'",
])  # fmt: skip
def test_a_value_of_another_type_skips_its_row(store, change):
    """`dlctl list` failed later, on the value."""
    told = []
    for training_id in ("t-1", "t-2"):
        store.add(make_record(training_id=training_id, loss=0.5))
    with changed(store.path) as connection:
        connection.execute(f"UPDATE trainings SET fields = {change} WHERE training_id = 't-2'")
    assert [r.training_id for r in RecordStore(store.path, told.append).all()] == ["t-1"]
    assert "does not understand: t-2 (" in told[0]


def test_a_newer_record_is_read_and_never_overwritten(store):
    store.add(make_record())
    with changed(store.path) as connection:
        connection.execute("PRAGMA user_version = 2")
    told = []
    newer = RecordStore(store.path, told.append)
    assert newer.all() == [make_record()]
    newer.update(make_record(state=State.COMPLETED))
    assert "newer version of dlctl" in told[0]
    with pytest.raises(RecordError, match="^nothing was submitted: .* newer version of dlctl"):
        newer.add(make_record(training_id="t-2"))
    assert RecordStore(store.path).all() == [make_record()]


def test_what_was_fetched_stays_fetched(store):
    store.add(before := make_record())
    store.mark_fetched(before)
    store.update(replace(before, state=State.COMPLETED))
    assert store.all()[0].fetched_attempt == 1
    made = Made(Amount(1, 2), Amount(), [OutputPlace("out/", 3, 4)])
    store.mark_fetched(replace(before, made=made), ("checkpoints", "output"))
    known = store.all()[0]
    assert known.made == made
    assert all(map(known.was_fetched, FETCHED))
    assert not any(map(replace(known, attempt=2).was_fetched, FETCHED))


def test_a_submission_whose_lock_can_not_be_made_says_why(store, monkeypatch):
    monkeypatch.setattr(batches, "_lock_file", lambda *_: Path("/proc/none/submitting-1"))
    with pytest.raises(RecordError, match="can't be made: unable to open database file") as caught:
        batches.begin(store, "command", [make_record()])
    assert "df -h /proc" in caught.value.hint
    assert store.all() == []


WITHOUT_LOCKS = """
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/syscall.h>
#include <unistd.h>
int fcntl64(int file, int what, ...) {
    va_list more; va_start(more, what); void *argument = va_arg(more, void *); va_end(more);
    if (what == F_SETLK || what == F_SETLKW) { errno = ENOLCK; return -1; }
    return syscall(SYS_fcntl, file, what, argument);
}
int fcntl(int, int, ...) __attribute__((alias("fcntl64")));
"""
SUBMITS = """
import sys
from login_side import make_record
from dlctl.errors import RecordError
from dlctl.record import RecordStore, batches
for command in ("", "command"):
    try:
        batches.begin(RecordStore(), command, [make_record()])
    except RecordError as error:
        print(error.message, "|", error.hint)
"""


def test_a_home_without_locks_is_named_with_the_variable(tmp_path):
    """NFS without lockd, or Lustre without flock: `submit` ended with an internal error."""
    (tmp_path / "locks.c").write_text(WITHOUT_LOCKS)
    library = tmp_path / "locks.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "locks.c"], check=True)
    support = next(path for path in sys.path if path.endswith("tests/support"))
    env = os.environ | {"LD_PRELOAD": str(library), "XDG_STATE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SUBMITS], capture_output=True, text=True,
                          env=env | {"PYTHONPATH": support}, timeout=60, check=True)  # fmt: skip
    alone, claimed = done.stdout.splitlines()
    assert f"the local record {tmp_path}/dlctl/record.db can't be used" in alone
    assert f"nothing was submitted: no file in {tmp_path}/dlctl can be locked" in claimed
    for sentence in (alone, claimed):
        assert "(ENOLCK): set XDG_STATE_HOME to a folder on another one" in sentence
    assert {path.name for path in (tmp_path / "dlctl").iterdir()} <= {"record.db"}


def test_a_submission_that_ends_while_the_next_one_looks_disturbs_nobody(store, monkeypatch):
    """Its lock file was removed while open: one of 200 commands at once met a disk I/O error."""
    first = batches.begin(store, "command", [make_record()])

    class Late(sqlite3.Connection):
        def execute(self, *arguments):
            monkeypatch.undo()
            batches.finish(store, first)
            return super().execute(*arguments)

    rows, late = batches._rows(store), functools.partial(sqlite3.connect, factory=Late)
    monkeypatch.setattr(batches, "_rows", lambda _: rows)
    monkeypatch.setattr(sqlite3, "connect", late)
    assert batches.broken_off(store, "command") is None


def test_of_what_attempts_have_used_the_newest_is_kept(store, monkeypatch):
    monkeypatch.setattr(used, "_MOST", 3)
    assert used.known(store) == []
    for number in range(5):
        used.keep(store, [past(number)])
    used.keep(store, [past(3, state="FAILED")])
    known = [(each.training_id, each.state) for each in used.known(store)]
    assert known == [("digits-2", "COMPLETED"), ("digits-3", "FAILED"), ("digits-4", "COMPLETED")]


def test_a_use_that_nobody_understands_is_left_out(store):
    used.keep(store, [past(1)])
    store.change(lambda connection: connection.execute(
        "INSERT INTO used VALUES ('t-2.1', '', '', 'x'), ('t-3.1', '', '', '{}')"))  # fmt: skip
    assert [each.training_id for each in used.known(store)] == ["digits-1"]
    store.path.write_bytes(b"no database")
    assert used.known(store) == []
