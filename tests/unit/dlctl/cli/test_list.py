"""Which trainings a command is about; `dlctl list` asks the sites of those that are open."""

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from login_side import make_record, session_of

from dlctl import lifecycle
from dlctl.cli import output
from dlctl.contract import State
from dlctl.contract.metrics import Source, make_line
from dlctl.errors import (
    ConnectError,
    HasEnded,
    HostKeyError,
    Misused,
    RecordError,
    ResultsError,
)
from dlctl.lifecycle.observe import INTERRUPTED
from dlctl.manifest.overrides import Overrides
from dlctl.record import Record, RecordStore
from dlctl.search import start, workers
from dlctl.series.replays import Origin
from dlctl.service import client, verbs
from dlctl.service.client import Client, Filter, chosen
from dlctl.tell import Tell
from dlctl.terminal import trainings

OPEN = {"state": State.TRAINING, "job_id": "7", "epochs": 8}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # Set here: an hour may pass between the import of this file and a test.
    monkeypatch.setitem(OPEN, "seen_at", time.time() - 5 * 3600)
    monkeypatch.setattr(Client, "open", lambda _, name, may_ask=True: Site(name, may_ask))
    return RecordStore()


class Site:
    def __init__(self, name, may_ask):
        self.name, self.may_ask, self.site = name, may_ask, SimpleNamespace(name=name)

    def close(self):
        pass


@pytest.fixture
def asked(monkeypatch):
    """What was asked of each site; `asked.answers` says what a site answers."""

    class Asked(dict):
        answers = {}  # noqa: RUF012

    asked = Asked()

    def refresh(session, records, store):
        asked[session.name] = [r.training_id for r in records]
        assert threading.current_thread() is threading.main_thread() or not session.may_ask
        return asked.answers.get(session.name, lambda records: records)(records)

    monkeypatch.setattr(lifecycle, "refresh", refresh)
    return asked


def test_sites_with_open_trainings_are_asked(store, asked, run):
    store.add(make_record(training_id="open-1", site="a", **OPEN))
    store.add(make_record(training_id="ended-1", site="b", state=State.COMPLETED,
                          started_at=100.0, ended_at=3700.0, epoch=8, epochs=8,
                          loss=0.01234567))  # fmt: skip
    asked.answers["a"] = lambda records: [
        make_record(training_id="open-1", site="a", **OPEN | {
            "seen_at": time.time(), "started_at": time.time() - 600, "epoch": 3, "loss": 0.5})
    ]  # fmt: skip
    assert "TRAINING (5 h ago)" in run("list", "--offline").stdout
    assert asked == {}
    done = run("list")
    assert asked == {"a": ["open-1"]}
    told = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert told == [
        "training state site progress left elapsed loss why",
        "ended-1 COMPLETED b epoch 8/8 - 60 min 0.01235",
        "open-1 TRAINING a epoch 3/8 - 10 min 0.5",
    ]
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(("known", "told"), [
    ({}, "-"), ({"step": 70}, "step 70"), ({"step": 70, "done": 0.4}, "40 %"),
    ({"state": State.DOWNLOADING, "moved": 0.43}, "43 %"),
    ({"state": State.FAILED, "moved": 0.43, "step": 70}, "step 70"),
    ({"state": State.STORING, "moved": 0.0, "epoch": 8, "epochs": 8}, "0 %"),
    ({"epoch": 3, "done": 0.4}, "40 %"), ({"epoch": 3}, "epoch 3"),
    ({"epoch": 3, "epochs": 8}, "epoch 3/8"),
])  # fmt: skip
def test_progress_is_told_as_the_training_counts_it(known, told):
    assert trainings.progress(make_record(**known)) == told


def test_a_site_that_is_silent_or_refuses_leaves_the_last_that_is_known(
    store, asked, run, monkeypatch
):
    monkeypatch.setattr(client, "LIMIT_S", 2.0)
    for name in ("dead", "hangs", "lives"):
        store.add(make_record(training_id=f"{name}-1", site=name, **OPEN))

    def refuse(_):
        raise ConnectError("no route to host")

    release = threading.Event()
    asked.answers |= {"dead": refuse, "hangs": lambda records: release.wait(60) and records}
    warned = []
    monkeypatch.setattr(output.Shown, "warn", staticmethod(warned.append))
    done = run("list")
    release.set()
    assert done.exit_code == 0
    assert sorted(warned) == ["dead: no route to host", "hangs: no answer within 2 s"]
    states = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert "(5 h ago)" in states["dead-1"] and "(5 h ago)" in states["hangs-1"]
    assert "ago" not in states["lives-1"]
    assert {r.training_id for r in store.all() if r.stale_since} == {"dead-1", "hangs-1"}


def test_nobody_waits_for_what_was_never_sent(store, run):
    """It waited for ever, without a word."""
    reason = f"{INTERRUPTED}log.txt changed while it was sent"
    store.add(make_record(state=State.QUEUED, reason=reason, hint="dlctl resume t-1"))
    done = run("wait", "t-1")
    assert isinstance(done.exception, RecordError) and done.exception.hint == "dlctl resume t-1"
    assert "t-1 has no job: the submission was interrupted" in done.exception.message


def test_status_fails_where_no_waiting_heals(store, asked, run):
    store.add(make_record(site="a", **OPEN))

    def refuse(error):
        def answer(_):
            raise error

        return answer

    asked.answers["a"] = refuse(HostKeyError("its host key has changed"))
    done = run("status", "t-1")
    assert isinstance(done.exception, HostKeyError)
    assert "stale for" in done.stdout
    asked.answers["a"] = refuse(ConnectError("no route to host"))
    assert run("status", "t-1").exit_code == 0


def test_metrics_that_were_seen_are_printed_while_their_site_is_silent(
    store, run, tmp_path, monkeypatch
):
    from dlctl.series.merged import Entry

    store.add(make_record(site="dead", **OPEN))

    def refuse(*_):
        raise ConnectError("dead: no route to host")

    monkeypatch.setattr(Client, "open", refuse)
    assert isinstance(run("metrics", "t-1", "--csv").exception, ConnectError)
    entry = Entry(Origin(1, 0, Source.LOOP), make_line(7, 1, 1000.0, {"loss": 0.5}))
    monkeypatch.setattr(
        "dlctl.outputs.metrics.files.kept_metrics", lambda _: (time.time() - 90, [entry])
    )
    warned = []
    monkeypatch.setattr(output.Shown, "warn", staticmethod(warned.append))
    done = run("metrics", "t-1", "--csv")
    assert done.stdout.splitlines()[1].endswith(",loss,0.5")
    assert warned == ["dead: no route to host; the metrics are as of 2 min ago"]


def test_a_silent_site_does_not_hide_the_figures_of_others(store, asked, run, monkeypatch):
    from dlctl.outputs.metrics.platform import Platform

    def figures(session, site, records):
        if site == "dead":
            raise ConnectError("dead: no route to host")
        return Platform(site, len(records), running=0, nodes_held=0, node_hours=1.25)

    monkeypatch.setattr("dlctl.outputs.metrics.platform.platform", figures)
    for name in ("dead", "lives"):
        store.add(make_record(training_id=f"{name}-1", site=name, state=State.COMPLETED))
    done = run("metrics", "--platform")
    assert "lives  1          0        0      none        75 min " in done.stdout
    assert isinstance(done.exception, ConnectError)


@pytest.mark.parametrize("command", [
    ("metrics", "t-1", "--export", "tensorboard={}"), ("dashboard", "--export", "{}"),
    ("metrics", "t-1", "--export", "parquet={}"),
])  # fmt: skip
def test_a_named_file_that_cannot_be_written_is_said_plainly(
    store, run, tmp_path, monkeypatch, command
):
    from dlctl.series.merged import Entry

    if "metrics" in command:
        store.add(make_record(site="a", **OPEN))
    monkeypatch.setattr(Site, "transport", None, raising=False)
    entry = Entry(Origin(1, 0, Source.LOOP), make_line(7, 1, 1000.0, {"loss": 0.5}))
    monkeypatch.setattr("dlctl.outputs.metrics.files.read_metrics", lambda *_: [entry])
    (tmp_path / "file").write_text("")
    place = f"{tmp_path}/file/below"
    done = run(*(word.format(place) for word in command))
    assert isinstance(done.exception, ResultsError), done.exception
    assert done.exception.message == f"{tmp_path}/file/below can't be written: Not a directory"


def test_only_sites_of_trainings_that_are_meant_are_asked(store, asked, run):
    """`list --tag` waited for a silent site that had none with that tag, and warned of it."""
    store.add(make_record(training_id="open-1", site="a", **OPEN | {"tags": ["rates"]}))
    store.add(make_record(training_id="open-2", site="silent", **OPEN))
    assert "open-1" in run("list", "--tag", "rates").stdout
    assert "open-1" in run("list", "--name", "open-1").stdout
    assert asked == {"a": ["open-1"]}


def test_a_watch_of_nothing_says_so(store, asked, run):
    """It printed nothing, and ended."""
    done = run("list", "--watch", "--name", "nobody")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "no training fits\n")


# Which trainings are meant ------------------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    made = RecordStore(tmp_path / "record.db")
    for number, (name, state) in enumerate(
        [("digits", State.TRAINING), ("digits-big", State.COMPLETED), ("words", State.TRAINING)]
    ):
        tags = ["first"] * (number < 2) + ["big"] * (number == 1)
        made.add(Record(f"{name}-{number}", name, "local", str(tmp_path), "", "", state=state,
                        tags=tags))  # fmt: skip
    return made


@pytest.mark.parametrize(
    ("name", "states", "tags", "numbers"),
    [("digits*", [], [], "01"), ("digits", [], [], "0"), ("*-2", [], [], "2"),
     (None, ["training"], [], "02"), (None, ["TRAINING", "COMPLETED"], [], "012"),
     ("digits*", ["COMPLETED"], [], "1"), ("none", [], [], ""), (None, [], ["first"], "01"),
     (None, [], ["first", "big"], "1"), (None, [], ["none"], "")],
)  # fmt: skip
def test_those_that_fit_are_meant(several, name, states, tags, numbers):
    found = chosen(several, None, Filter(name, states, tags))
    assert [record.training_id[-1] for record in found] == list(numbers)


def test_ids_are_meant_alone(several):
    found = chosen(several, ["words-2", "digits-0"], Filter())
    assert [record.name for record in found] == ["words", "digits"]
    with pytest.raises(Misused, match="either ids, or --name, --state and --tag"):
        chosen(several, ["words-2"], Filter("*"))
    with pytest.raises(Misused, match="'TRAINED' is no state; there are"):
        Filter(None, ["TRAINED"])


def test_what_has_ended_meanwhile_is_a_failure_only_if_it_was_named(several, monkeypatch):
    def cancel_all(_session, records, _store):
        return [HasEnded(f"{each.training_id} is COMPLETED") for each in records]

    class Notes(Tell):
        def note(self, text):
            noted.append(text)

    noted = []
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(lifecycle, "cancel_all", cancel_all)
    done = verbs.end(Client(several, Notes()), "cancel", None, Filter("words*"))
    assert noted == ["words-2 is COMPLETED"] and not done.failures
    done = verbs.end(Client(several, Notes()), "cancel", ["words-2"], Filter())
    assert [each.message for each in done.failures] == noted == ["words-2 is COMPLETED"]


def test_the_workers_of_a_search_end_with_it_whatever_command_ends_it(several, monkeypatch):
    ended = []
    several.add(Record("found-3", "found", "local", "", "", "", state=State.TRAINING,
                     is_search=True))  # fmt: skip
    monkeypatch.setattr(Client, "open", lambda _, name, **__: session_of(name))
    monkeypatch.setattr(workers, "end_workers", lambda _, each: ended.append(each.training_id))
    for verb in ("halt", "cancel"):
        monkeypatch.setattr(lifecycle, f"{verb}_all", lambda _, records, __: list(records))
        verbs.end(Client(several), verb, ["words-2", "found-3"], Filter())
    assert ended == ["found-3"] * 2


def test_a_resumed_search_gets_the_resources_that_were_asked_for(several, monkeypatch):
    """`dlctl resume SEARCH --time 2h` went on with the old limit, and said nothing."""
    asked = []
    known = Record("found-3", "found", "local", "", "", "", is_search=True)
    monkeypatch.setattr(start, "go_on", lambda *given, **__: asked.append(given[4]) or known)
    for name in ("refresh", "end_workers", "read_pools", "set_pool"):
        monkeypatch.setattr(start, name, lambda *given: [known] if len(given) == 3 else [])
    monkeypatch.setattr(start, "sent_search", lambda *_: nullcontext(SimpleNamespace(
        file=SimpleNamespace(workers=SimpleNamespace(jobs=(1, 1))))))  # fmt: skip
    verbs.resume(None, known, several, overrides=Overrides(time="2h"))
    assert asked == [Overrides(time="2h")]


def test_a_site_that_is_watched_asks_in_the_main_thread_alone(tmp_path, monkeypatch):
    """With `list --watch`, ssh asked for passphrases of two sites on the screen that it drew."""
    prompts = []
    monkeypatch.setattr(client, "open_site", lambda _, prompt: prompts.append(prompt))
    mine = client.Client(RecordStore(tmp_path / "record.db"), prompt=input)
    mine.open_to_watch("a")
    other = threading.Thread(target=mine.open_to_watch, args=("b",))
    other.start()
    other.join()
    assert prompts == [input, None]
