"""The feed of real trainings, over the real local transport."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from dashboard_server import served
from login_side import make_record, plan_of
from made_search import events_of, lines_of, write_search
from starlette.requests import Request
from synthetic_feed import EVIL, HTML

from dlctl.contract import PLAN, Made, OutputPlace, State, to_json
from dlctl.contract import search as names
from dlctl.contract.metrics import MetricsLine, make_line
from dlctl.dashboard.app import Pages
from dlctl.dashboard.feed import Refused, Unknown
from dlctl.dashboard.live import LiveFeed
from dlctl.dashboard.report import report
from dlctl.errors import ConnectionLost
from dlctl.lifecycle import open_session
from dlctl.outputs.metrics import long_files
from dlctl.record import Record, RecordStore
from dlctl.service.verbs import offers
from dlctl.sites.files import load_site
from learner.job.metrics import MetricsFile

ONE = "digits-3k9f"


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "jobs" / ONE
    (folder / "metrics").mkdir(parents=True)
    (folder / "attempts" / "1").mkdir(parents=True)
    (folder / "attempts" / "1" / "learner-0.log").write_text("hello\nthere\n")
    return folder


@pytest.fixture
def store(tmp_path, job):
    store = RecordStore(tmp_path / "record.db")
    store.add(Record(ONE, "digits", "local", str(tmp_path), str(job), "2026-01-01T10:00:00+00:00",
                     job_id="1", state=State.HALTED))  # fmt: skip
    return store


class Sites:
    """Opens this machine, and counts what is open."""

    def __init__(self):
        self.open = 0
        self.fails = False

    def __call__(self, name):
        if self.fails:
            raise ConnectionLost("the network is down")
        session = open_session(load_site(name))
        close = session.transport.close
        self.open += 1

        def closed():
            self.open -= 1
            close()

        session.transport.close = closed
        return session


@pytest.fixture
def sites():
    return Sites()


@pytest.fixture
def feed(store, sites, xdg, monkeypatch):
    for name, value in xdg.env.items():
        monkeypatch.setenv(name, value)
    feed = LiveFeed(store, sites)
    yield feed
    feed.close()
    assert sites.open == 0
    assert not [t.name for t in threading.enumerate() if t.name == "dlctl-local"]


def write(job, *steps):
    with (job / "metrics" / "1-0.jsonl").open("ab") as file:
        for step in steps:
            file.write(
                make_line(step, 1, 1_790_000_000.0 + step, {"loss": 1 / (1 + step)}).encode()
            )


def test_metrics_are_read_when_somebody_asks(feed, job):
    write(job, 1, 2, 3)
    assert feed.trainings()[0]["spark"] == []
    with feed.run(ONE) as run:
        assert run.last_step == 3
    assert len(feed.trainings()[0]["spark"]) == 3


def test_a_search_is_read_as_it_grows_and_kept_when_its_site_is_silent(feed, job, monkeypatch):
    with pytest.raises(Unknown, match="is a training, and no search"):
        feed.search(ONE)
    write_search(job, 20, 12)
    page = feed.search(ONE)
    assert (page["all_trials"], page["counts"].split(",")[0]) == (20, "12 of 40 ended")
    assert page["importance"]["of"][0]["share"] is not None
    (job / names.TRIALS).write_bytes(lines_of(events_of(20)))
    assert feed.search(ONE)["counts"].startswith("20 of 40 ended")
    assert report(feed, [ONE]).count('"searches":{}') == 1, "its plan is not known to be a search"

    def silent(*_):
        raise ConnectionLost("the network is down")

    monkeypatch.setattr("dlctl.search.overview.read_appended", silent)
    assert feed.search(ONE)["counts"].startswith("20 of 40 ended")


def test_no_name_of_a_training_is_more_than_text_in_an_answer(feed, store, job):
    evil = f"{EVIL}</script>\n\u2028\udcff"
    line = MetricsLine(1, 0, 1.0, {HTML: 1.0}, group=f"{EVIL}</script>\u2028")
    MetricsFile(job / "metrics/1-0.program.jsonl").add(line)
    for name in ("manifest.yml", "job.sbatch"):
        (job / name).touch()
    (job / PLAN).write_text(to_json(plan_of()))
    (job / "checkpoints").mkdir()
    (job / "checkpoints" / evil.replace("/", "|")).write_text("12")
    (job / "attempts/1/learner-0.log").write_bytes(evil.encode(errors="surrogateescape"))
    made = Made(output=[OutputPlace(evil, 1, 2)])
    store.update(replace(store.find(ONE), name=evil, reason=evil, made=made))
    at = f"/api/trainings/{ONE}"
    with served(feed) as page:
        while not (details := page.ask(at).json)["metrics_known"]:
            time.sleep(0.1)
        answers = [page.ask(path) for path in ("/api/trainings", at, f"{at}/curves?width=400")]
        text = report(feed, [ONE])
    assert [each.status for each in answers] == [200] * 3
    assert details["output"].startswith(f"{HTML}\\u202e") and details["output"].isprintable()
    (saved,) = details["checkpoints"]
    assert saved["name"].startswith(EVIL)
    assert HTML not in text and text.count("</script>") == 3


def test_a_page_that_looks_hears_of_news(feed, store, job, wait_until, monkeypatch):
    monkeypatch.setattr("dlctl.live.sites.refresh", lambda _, records, *__: records)
    store.update(replace(store.find(ONE), state=State.TRAINING))
    write(job, 1)
    with feed.look([ONE]):
        wait_until(lambda: feed.versions.after(0) == [ONE], what="the first line")
        seen = feed.versions.newest
        write(job, 2)

        def has_the_second_line():
            with feed.run(ONE) as run:
                return run.last_step == 2

        wait_until(has_the_second_line, what="the second line")
        assert feed.versions.newest > seen


def test_a_page_hears_of_what_another_dlctl_has_found_out(feed, store, wait_until):
    with feed.look([ONE]):
        wait_until(lambda: feed.versions.after(0) == [ONE], what="the first look")
        seen = feed.versions.newest
        store.update(replace(store.find(ONE), state=State.CANCELLED, seen_at=1e12))
        wait_until(lambda: feed.versions.newest > seen, what="the new state")
        assert feed.details(ONE)["state"] == "CANCELLED"


def test_a_page_is_offered_what_makes_sense_and_the_rest_is_refused_with_the_reason(feed, sites):
    sites.fails = True
    found = feed.details(ONE)
    assert found["state"] == "HALTED", "what is known stays"
    assert [offer["verb"] for offer in found["offers"]] == ["resume"]

    def offered(**known):
        return [each.verb for each in offers(make_record(**known))]

    assert offered(state=State.TRAINING, epochs=3) == ["save", "tune", "halt", "cancel"]
    assert offered(state=State.TRAINING, started_at=1.0) == ["halt", "cancel"]
    assert offered(state=State.COMPLETED) == [] and offered(state=State.FAILED) == ["resume"]
    for verb, values, said in (
        ("cancel", {}, "network is down"), ("halt", {}, "there is nothing to halt"),
        ("tune", {"speed": "2"}, "no setting that can be tuned"),
        ("tune", {}, "name at least one setting"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=said):
            feed.act(ONE, verb, values)
        sites.fails = False
    with pytest.raises(Unknown):
        feed.details("nobody")
    with pytest.raises(Unknown), feed.run("nobody"):
        pass


def test_the_log_is_read_to_its_end(feed):
    async def read():
        return [piece["text"] async for piece in feed.log_pieces(ONE)]

    with ThreadPoolExecutor() as other_thread:  # an open browser's loop runs in this one
        assert "".join(other_thread.submit(asyncio.run, read()).result()) == "hello\nthere\n"


def test_a_training_is_exported(feed, job):
    write(job, 1, 2)
    text = report(feed, [ONE])
    data = text.split('id="report">')[1].split("</script>")[0]
    found = json.loads(data)
    assert found["curves"][ONE]["curves"][0]["x"] == [1, 2]
    assert len(found["details"][ONE]["answers"]) == 6
    assert "".join(piece["text"] for piece in found["logs"][ONE]) == "hello\nthere\n"


def test_only_what_was_asked_for_is_shown(store, sites, tmp_path):
    store.add(Record("other-1a2b", "other", "alps", "", str(tmp_path), "2026-01-02T10:00:00+00:00"))
    for feed in LiveFeed(store, sites, [ONE]), LiveFeed(store, sites, site="local"):
        assert [row["id"] for row in feed.trainings()] == [ONE]
        feed.close()


def test_a_zoom_into_a_long_curve_brings_its_points(feed, job, monkeypatch):
    monkeypatch.setattr(long_files, "LONG_BYTES", 512 * 1024)
    file = MetricsFile(job / "metrics" / "1-0.jsonl")
    file.add_all([make_line(step, 1, 1000.0 + step, {"loss": 1.0}) for step in range(1, 20_001)])
    pages = Pages(feed)

    def drawn(query):
        scope = {
            "type": "http", "query_string": query.encode(), "path_params": {"id": ONE},
            "headers": [],
        }  # fmt: skip
        return json.loads(bytes(pages.curves(Request(scope)).body))["curves"][0]

    assert drawn("width=50")["count"] < 1000
    zoomed = drawn("width=50&from=9000&to=9040")
    inside = [x for x in zoomed["x"] if 9000 <= x <= 9040]
    assert inside == [float(step) for step in range(9000, 9041)]
    by_time = drawn("width=50&x=time&from=499&to=509")
    assert [x for x in by_time["x"] if 499 <= x <= 509] == [float(s) for s in range(499, 510)]
