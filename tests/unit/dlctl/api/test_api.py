"""The Python interface: what it imports, its columns, its connections, and what it waits for."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from zygote import wait_for

import dlctl
from dlctl import lifecycle
from dlctl.api.functions import file_of
from dlctl.api.jobs import Training, is_there, states
from dlctl.api.shown import Line, html_of
from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.errors import ConnectionLost, HostKeyError, Misused, TrainingFailed
from dlctl.manifest.overrides import overrides_of
from dlctl.record import Record
from dlctl.request.bundle import collect
from dlctl.series.merged import Entry, columns_of
from dlctl.series.replays import Origin
from dlctl.service import pool
from dlctl.service.client import Client
from dlctl.service.pool import Pool
from dlctl.tell import SILENT

RECORD = Record("digits-1", "digits", "a", "/m", "/jobs/digits-1", "2026-01-01T00:00:00+00:00")
QUEUED = replace(RECORD, state=State.QUEUED)
LOOP = Origin(1, 0, Source.LOOP)


def test_the_import_brings_nothing_heavy():
    heavy = "paramiko pydantic typer rich jinja2 yaml asyncio"
    text = f"import dlctl, sys; print([n for n in {heavy!r}.split() if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_each_name_is_there_and_others_are_not():
    assert all(getattr(dlctl, name) is not None for name in dlctl._API)
    assert {name for name in dir(dlctl) if not name.startswith("__")} == set(dlctl._API)
    with pytest.raises(AttributeError, match="nonsense"):
        dlctl.nonsense  # noqa: B018


def test_columns_have_one_length_and_say_where_a_value_is_from():
    entries = [
        Entry(LOOP, MetricsLine(step=1, values={"loss": 0.5})),
        Entry(LOOP, MetricsLine(step=2, values={"loss": None, "validation_loss": 0.7})),
        Entry(LOOP, MetricsLine(step=2, event="a checkpoint was saved")),
    ]
    found = columns_of(entries)
    assert found["step"] == [1, 2] and found["source"] == ["loop", "loop"]
    assert found["loss"][0] == 0.5 and math.isnan(found["loss"][1])
    assert math.isnan(found["validation/loss"][0]) and found["validation/loss"][1] == 0.7
    assert {len(column) for column in found.values()} == {2}
    found = columns_of([
        Entry(LOOP, MetricsLine(values={"loss": 0.5})),
        Entry(LOOP, MetricsLine(step=2, epoch=1, texts={"phase": "late"})),
    ])  # fmt: skip
    kinds = {name: numpy.asarray(column).dtype.kind for name, column in found.items()}
    assert {name: kinds[name] for name in ("step", "epoch", "time", "loss", "source")} == {
        "step": "f", "epoch": "f", "time": "f", "loss": "f", "source": "U"
    }  # fmt: skip
    assert found["phase"] == [None, "late"]


def test_a_manifest_of_a_program_is_no_part_of_another_request(tmp_path):
    (tmp_path / "train.py").write_text("print(1)\n")
    first = file_of({"name": "a", "time": "1m"}, tmp_path)
    digest = collect(tmp_path).digest
    assert file_of({"name": "a", "time": "2m"}, tmp_path) != first
    assert [each.path for each in collect(tmp_path).files] == ["train.py"]
    assert collect(tmp_path).digest == digest


def test_numbers_of_numpy_and_paths_go_into_a_manifest():
    options = {"learners": numpy.int64(2), "memory": None}
    found = overrides_of(options, {
        "framework.arguments.lr": numpy.float32(0.5), "framework.job": Path("train.py"),
        "a": numpy.arange(2), "b": (1, None),
    })  # fmt: skip
    assert json.dumps(asdict(found)) and found.learners == 2 and found.memory is None
    assert found.set == (
        "framework.arguments.lr=0.5",
        'framework.job="train.py"',
        "a=[0, 1]",
        "b=[1, null]",
    )
    with pytest.raises(Misused, match="b: <object .*> is neither text, number, list nor dict"):
        overrides_of({}, {"b": {"deep": [object()]}})


class Opened:
    """Counts connections."""

    def __init__(self):
        self.opened = self.closed = 0

    def __call__(self, name):
        self.opened += 1
        return pool.Session(SimpleNamespace(name=name), SimpleNamespace(close=self.close), None)

    def close(self):
        self.closed += 1


def test_a_connection_is_used_again_and_closed_with_the_pool_or_if_nobody_uses_it(monkeypatch):
    opened = Opened()
    mine = Pool(opened)
    for _ in range(3):
        mine.lend("a").close()
    first, second = mine.lend("a"), mine.lend("a")
    assert opened.opened == 2
    first.close()
    mine.close()
    assert opened.closed == 1
    second.close()
    assert opened.closed == 2
    monkeypatch.setattr(pool, "_IDLE_S", 0.1)
    mine = Pool(opened)
    mine.lend("a").close()
    assert mine._sweeper is not None
    mine._sweeper.join(30)
    assert opened.closed == 3


def test_a_word_that_is_no_state_is_refused(xdg, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(xdg.state))
    with pytest.raises(Misused, match="NONE"):
        dlctl.trainings(state="NONE")
    assert dlctl.trainings() == []


def test_a_table_shows_a_curve_and_escapes_what_a_program_says():
    record = replace(RECORD, reason="<script>", step=1234)
    line = Line("<loss>", "steps", [(1, 4.0), (2, math.nan), (1001, 2.0)])
    shown = html_of(record, line, "as last known: no route")
    assert "1,234" in shown and "as last known: no route" in shown
    assert "points='0.0,2.0 320.0,78.0'" in shown
    assert "&lt;loss&gt;: 2 to 4, steps 1 to 1,001" in shown and "<script" not in shown
    one = html_of(record, Line("best", "trials", [(1, 1.0)]))
    assert "svg" not in one and "best: 1, trials 1" in one


def test_a_connection_that_comes_back_wakes_whoever_waits_for_its_site(monkeypatch):
    monkeypatch.setattr(pool, "_PATIENCE_S", 60.0)
    sites = Pool(Opened(), most=1)
    sites.lend("idle").close()  # which starts the thread that closes what nobody uses
    held = {name: sites.lend(name) for name in ("here", "there")}
    lent = []

    def wait(name):
        with closing(sites.lend(name)):
            lent.append(name)

    def waiting():
        return len(sites._changed._waiters)

    threads = [threading.Thread(target=wait, args=[name]) for name in held]
    for number, thread in enumerate(threads):
        wait_for(lambda: waiting() == number + 1)  # noqa: B023
        thread.start()
    wait_for(lambda: waiting() == len(held) + 1)
    held["there"].close()
    threads[1].join(20)
    held["here"].close()
    threads[0].join(20)
    sites.close()
    assert lent == ["there", "here"]


# Waiting, and what it keeps from others -----------------------------------------------------------


def opened(name):
    site = SimpleNamespace(name=name)
    return lifecycle.Session(site, SimpleNamespace(close=lambda: None), None)


def training_that(monkeypatch, *answers, most=4):
    """Return a training whose site gives these answers, and the last one for ever."""
    left = list(answers)
    store = SimpleNamespace(find=lambda _: QUEUED)

    def refresh(*_):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return [replace(QUEUED, state=answer)]

    monkeypatch.setattr(lifecycle, "refresh", refresh)
    monkeypatch.setattr("dlctl.api.jobs._FIRST_S", 0.001)
    return Training(QUEUED, Client(store, SILENT, pool=Pool(opened, most=most)))


@pytest.mark.parametrize(("state", "words", "there"), [
    ("TRAINING", "TRAINING", True), ("STORING", "TRAINING", True), ("PENDING", "TRAINING", False),
    ("COMPLETED", "TRAINING", True), ("FAILED", "TRAINING", False), ("HALTED", None, True),
    ("STORING", "COMPLETED", False), ("TRAINING", ["halted", "completed"], False),
    ("CANCELLED", ["HALTED", "CANCELLED"], True),
])  # fmt: skip
def test_a_state_or_one_beyond_it(state, words, there):
    assert is_there(State(state), states(words)) is there


def test_a_wait_outlives_a_lost_connection_but_no_changed_host_key(monkeypatch):
    seen = list[str]()
    training = training_that(monkeypatch, ConnectionLost("lost"), State.PENDING, State.COMPLETED)
    found = training.wait(until="TRAINING", on_look=lambda each: seen.append(str(each)))
    assert found == "COMPLETED" and len(seen) == 2
    with pytest.raises(HostKeyError):
        training_that(monkeypatch, HostKeyError("changed")).wait()


def test_a_wait_ends_with_the_time_or_with_another_end(monkeypatch):
    with pytest.raises(TimeoutError, match="digits-1 is PENDING after 0 s"):
        training_that(monkeypatch, State.PENDING).wait(timeout_s=0)
    with pytest.raises(TimeoutError):
        training_that(monkeypatch, ConnectionLost("lost")).wait(timeout_s=0)
    with pytest.raises(TrainingFailed) as failed:
        training_that(monkeypatch, State.FAILED).wait(until=["TRAINING", "COMPLETED"])
    assert failed.value.exit_code == 10 and "dlctl show" in failed.value.hint


def test_more_threads_may_wait_than_there_are_connections(monkeypatch):
    training = training_that(monkeypatch, State.TRAINING, most=1)
    looked, over = threading.Barrier(33), threading.Event()

    def wait():
        first = iter([looked.wait])
        with pytest.raises(KeyError):  # ends the wait
            training.wait(on_look=lambda _: next(first, stop)())

    def stop():
        if over.is_set():
            raise KeyError

    threads = [threading.Thread(target=wait) for _ in range(32)]
    for each in threads:
        each.start()
    looked.wait(30)
    assert training.refresh().record.state is State.TRAINING
    over.set()
    for each in threads:
        each.join(30)


def test_who_follows_keeps_nobody_waiting():
    mine = Pool(opened, most=1)
    follower, other = mine.lend("a", follows=True), mine.lend("a", follows=True)
    mine.lend("a").close()
    follower.close()
    held = mine.lend("a")
    other.close()
    held.close()
    assert mine._lent == {"a": 0}


def test_a_call_does_not_wait_for_ever_behind_long_ones(monkeypatch):
    monkeypatch.setattr("dlctl.service.pool._PATIENCE_S", 0.01)
    mine = Pool(opened, most=1)
    held = mine.lend("a")
    mine.lend("a").close()
    held.close()
    assert mine._lent == {"a": 0}


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of Python 3.12
def test_a_fork_opens_connections_of_its_own():
    opens = list[str]()
    mine = Pool(lambda name: opens.append(name) or opened(name), most=1)
    mine.lend("a").close()
    held, is_held, may_go = mine.lend("a"), threading.Event(), threading.Event()

    def hold():
        with mine._changed:
            is_held.set()
            may_go.wait(60)

    other = threading.Thread(target=hold)
    other.start()
    is_held.wait(30)
    if not (child := os.fork()):
        try:  # the lock, and what was lent, are the parent's
            signal.alarm(20)
            mine.lend("a").close()
            held.close()
        finally:
            os._exit(len(opens))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    may_go.set()
    other.join(30)
    held.close()
    assert len(opens) == 1
