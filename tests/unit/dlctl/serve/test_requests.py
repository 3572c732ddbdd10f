"""Requests are checked as the description says."""

from __future__ import annotations

import base64
import io
import json
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from login_side import make_record

from dlctl.contract import State
from dlctl.errors import TransferError
from dlctl.files.listing import SiteFile
from dlctl.record import GONE
from dlctl.serve import results, trainings
from dlctl.serve.app import OPERATIONS
from dlctl.serve.older import models
from dlctl.serve.openapi import describe
from dlctl.service import verbs, webhooks

LIST = "/api/v1/trainings"


@pytest.fixture
def training(desk):
    desk.mine.store.add(make_record(site="local", training_id="t-1", state=State.TRAINING))
    return f"{LIST}/t-1"


def test_a_path_allows_all_its_methods(server):
    for path, methods in ((f"{LIST}/x", "GET HEAD PATCH DELETE"), ("/v1/models", "GET HEAD POST"),
                          ("/v1/models/x/events/all/y", "GET HEAD POST DELETE")):  # fmt: skip
        refused = server.ask(path, "PUT", b"")
        assert refused.status == 405
        assert {*refused.headers["allow"].split(", ")} == {*methods.split()}, path
    for status in (server.ask(f"{LIST}/").status, server.ask("/v1/models/", "POST", b"").status):
        assert status == 404, "a slash at the end leads nowhere else"


@pytest.mark.parametrize(("since", "status"), [
    ("1.13e-287", 400), ("yesterday", 400), ("2026-01-31", 400),
    ("12", 200), ("-3", 200), ("2026-01-31T14:30:00Z", 200), ("", 200),
])  # fmt: skip
def test_an_older_client_says_since_when_as_a_time_or_in_whole_milliseconds(
    server, training, since, status
):
    lines = server.ask(f"/v1/logs/{Path(training).name}/loglines?since_time={quote(since)}")
    assert lines.status == status, lines


@pytest.mark.parametrize("query", ["tag=a b", "state=running", "site=../x", "limit=501", "any=x"])
def test_what_the_description_does_not_allow_is_refused(server, query):
    name, _, value = query.partition("=")
    wrong = server.ask(f"{LIST}?{name}={quote(value)}")
    assert wrong.status == 400 and name in wrong.json["detail"]


def test_description_and_checks_have_one_source():
    known = describe(OPERATIONS)
    asked = known["paths"][LIST]["get"]["parameters"]
    query = {each["name"]: each["schema"] for each in asked}
    assert query["tag"]["items"]["pattern"] == "^(?:[A-Za-z0-9][A-Za-z0-9._-]{0,39})$"
    assert query["state"]["items"] == {"$ref": "#/components/schemas/State"}
    assert known["components"]["schemas"]["State"]["enum"] == [*State]
    assert "anyOf" not in query["site"], "a query can't say null"
    form = known["paths"][LIST]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert form["schema"]["properties"]["code"]["format"] == "binary"
    assert form["encoding"]["overrides"] == {"contentType": "application/json"}
    free = [p for p, each in known["paths"].items() if each.get("get", {}).get("security") == []]
    assert free == ["/api/v1/health"], "all else needs a token"


def test_a_form_says_what_json_does(server, monkeypatch):
    said = []

    def send(_call, wanted, path: Path):
        said.append((wanted, path.read_text()))
        return make_record()

    monkeypatch.setattr(trainings, "send", send)
    tags = [f"t{number}" for number in range(40)]
    parts = {"manifest": b"name: x", "tags": tags, "overrides": '{"learners": 2}', "site": "local"}
    assert server.send_form(LIST, parts).status == 201
    body = {"manifest": "name: x", "tags": tags, "overrides": {"learners": 2}, "site": "local"}
    assert server.send(LIST, body).status == 201
    form, plain = said
    assert form[1] == plain[1] == "name: x"
    assert form[0].tags == plain[0].tags == tags and form[0].overrides == plain[0].overrides
    wrong = server.send_form(LIST, {"overrides": "{"})
    assert wrong.status == 400 and "overrides" in wrong.json["detail"]
    assert server.send_form(LIST, {"code": "no file"}).status == 400


def test_a_whole_number_is_tuned_as_one(server, training, monkeypatch):
    told = []

    def tune(_session, _record, _store, words, *_):
        told.extend(words)
        return SimpleNamespace(sentence="done")

    monkeypatch.setattr(verbs, "tune", tune)
    body = {"do": "tune", "settings": {"batch_size": 64, "lr": 0.5}}
    assert server.send(training, body, "PATCH").json["told"] == "done"
    assert told == ["batch_size=64", "lr=0.5"]
    for wrong in ({"do": "tune"}, {"do": "tune", "settings": {}}, {"do": "halt", "settings": {}},
                  {"do": "tune", "settings": {"x": 1}}, {"do": "nothing"}, {}):  # fmt: skip
        assert server.send(training, wrong, "PATCH").status == 400, wrong
    detail = server.send(training, {"do": "stop"}, "PATCH").json["detail"]
    assert "do: 'stop' is not allowed; 'halt', 'cancel', 'save', 'resume'" in detail


def test_changes_are_taken_as_an_answer_has_them():
    asked = trainings.Asked(learners=2, set=["env.A=1"]).overrides()
    assert (asked.learners, asked.set) == (2, ("env.A=1",))
    assert trainings.Asked(set={"env.A": "1"}).overrides().set == ('env.A="1"',)


def test_a_remark_asks_no_site_and_a_resumption_takes_epochs(server, desk, training, monkeypatch):
    asked = []

    def resume(_session, record, *_, epochs):
        asked.append(epochs)
        return record

    monkeypatch.setattr(verbs, "resume", resume)
    for epochs, status in ((30, 200), ("+10", 200), ("ten", 400), (-1, 400), (None, 400)):
        change = {"do": "resume", "epochs": epochs}
        assert server.send(training, change, "PATCH").status == status, epochs
    assert asked == ["30", "+10"]
    monkeypatch.setattr(desk, "open", lambda _: pytest.fail("a site was asked"))
    noted = server.send(training, {"do": "note", "text": "odd"}, "PATCH").json
    assert noted["told"].endswith(" odd") and noted["training"]["notes"] == [noted["told"]]
    assert server.send(training, {"do": "note", "remove": 2}, "PATCH").status == 422
    assert server.send(training, {"do": "note", "remove": 1}, "PATCH").json["told"] == ""


@pytest.mark.parametrize(("also", "status"), [
    ({"manifest": "name: x"}, 422), ({"model": "digits"}, 422), ({}, 404),
])  # fmt: skip
def test_an_earlier_training_is_trained_anew_in_place_of_a_manifest(server, also, status):
    refused = server.send(LIST, {"from": "nobody", **also})
    assert refused.status == status, refused
    assert server.ask(f"{LIST}/nobody/diff").status == 400, "it says with which"
    assert server.ask(f"{LIST}/nobody/diff?with=t-1").status == 404


def test_the_events_of_older_clients_are_ours(server, training, monkeypatch):
    known = []
    monkeypatch.setattr(webhooks, "endpoints", lambda *_: list(known))
    monkeypatch.setattr(webhooks, "register", lambda _s, _r, each: known.append(each) or each)
    monkeypatch.setattr(
        webhooks, "unregister", lambda _s, _r, each: known.remove(each))  # fmt: skip
    for status, code in (("x" * (1 << 20), 413), ("delete", 400)):
        assert server.send("/v1/models/t-1", {"status": status}, "PATCH").status == code
    events = "/v1/models/t-1/events"
    told = {"id": "mine", "url": "https://a.example/x"}
    said = {"url": told["url"], "type": "update"}
    assert server.send(f"{events}/update/mine", said).json == told
    assert [each.event for each in known] == ["started", "failed", "plateau", "finished"]
    for kind in ("all", "failed"):
        assert server.ask(f"{events}/{kind}").json == {"endpoints": [told]}
    assert server.ask(f"{events}/failed/mine", "DELETE").json == told
    assert [each.event for each in known] == ["started", "plateau", "finished"]
    assert server.ask(f"{events}/failed/mine").status == 404
    assert server.ask(f"{events}/metrics").status == 400, "they are a stream"


def test_files_that_were_removed_are_gone(server, desk):
    desk.mine.store.add(make_record(site="local", state=State.COMPLETED, reason=GONE))
    for path in ("/v1/models/t-1/trained_model", "/v1/models/t-1/definition",
                 f"{LIST}/t-1/results", f"{LIST}/t-1/results.zip"):  # fmt: skip
        gone = server.ask(path)
        assert gone.status == 410 and "gone" in gone.body.decode()


def test_a_manifest_is_read_once_and_told_with_what_was_asked(server, desk, tmp_path, monkeypatch):
    manifest = tmp_path / "manifest.yml"
    manifest.write_text("name: x\ndescription: first\nframework: {name: pytorch, command: run}\n")
    asked = {"learners": 3, "set": ["env.A_TOKEN=hunter2"]}
    asked["resume"] = {"attempt": 2, "asked": {"set": ["env.A_TOKEN=hunter2"]}}
    desk.mine.store.add(make_record(
        site="local", manifest_path=str(manifest), state=State.COMPLETED,
        overrides=json.dumps(asked)))  # fmt: skip
    reads = []
    load = models.load_manifest
    monkeypatch.setattr(models, "load_manifest", lambda *a: reads.append(a) or load(*a))

    def told():
        answer = server.ask("/v1/models")
        assert b"hunter2" not in answer.body
        (model,) = answer.json["models"]
        return model["description"], model["training"]["learners"]

    assert told() == told() == ("first", 3) and len(reads) == 1
    manifest.write_text(manifest.read_text().replace("first", "second"))
    assert told() == ("second", 3), "it has changed"
    (listed,) = server.ask(LIST).json["items"]
    hidden = ["env.A_TOKEN=(hidden)"]
    assert listed["overrides"]["set"] == listed["overrides"]["resume"]["asked"]["set"] == hidden
    assert listed["overrides"]["learners"] == 3


@pytest.mark.parametrize(("asked", "span"), [
    ("bytes=0-4", (0, 5)), ("bytes=6-", (6, 11)), ("bytes=-3", (8, 11)), ("bytes=-99", (0, 11)),
    ("bytes=3-99", (3, 11)), ("bytes=11-", (11, 11)), ("bytes=20-30", (20, 20)),
    ("bytes=-0", (11, 11)), ("bytes=0-1,3-4", None), ("items=0-1", None), ("bytes=5-2", None),
    ("bytes=-", None), ("nonsense", None),
    pytest.param(f"bytes={'9' * 5000}-", None, id="without an end"),
])  # fmt: skip
def test_part_of_a_file(asked, span):
    assert results.span_of(asked, 11) == span


def test_results_whose_names_are_no_text_are_in_the_zip(desk, monkeypatch):
    files = [SiteFile("caf\udce9.txt", "f", 2, "", ""), SiteFile("b", "f", 2, "", "")]
    monkeypatch.setattr(results, "files_of", lambda *_: ("/there", files))
    monkeypatch.setattr(results, "read_part", lambda *_: iter([b"ab"]))
    call = SimpleNamespace(desk=desk)
    content = b"".join(results.zipped(call, make_record(site="local"), "results"))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.namelist() == ["caf?.txt", "b"]


@pytest.mark.parametrize("content", [None, b"123"])
def test_a_file_that_is_shorter_than_it_was_is_not_called_whole(desk, tmp_path, content):
    path = tmp_path / "model.pt"
    if content is not None:
        path.write_bytes(content)
    with desk.open("local") as session, pytest.raises(TransferError, match=r"model\.pt"):
        list(results.read_part(session, str(path), 0, 5))


def test_each_site_is_looked_at_again_when_somebody_asks(desk, monkeypatch):
    woken: list[str] = []
    now = [1000.0]
    monkeypatch.setattr(desk.live, "wake", woken.append)
    monkeypatch.setattr("dlctl.serve.desk.time", SimpleNamespace(monotonic=lambda: now[0]))
    one, other = (make_record(site=site, state=State.TRAINING) for site in ("one", "other"))
    desk.keep_new([one, other])
    now[0] += 3600
    desk.keep_new([one])
    now[0] += 1
    desk.keep_new([other, one])
    assert woken.count("one") == woken.count("other") == 2


@pytest.mark.parametrize("position", [
    "nonsense", "{}x", '{"a": Infinity}', "[1]", '{"a": "x"}',
    pytest.param("[" * 200_000, id="deep"),
])  # fmt: skip
def test_a_position_of_no_stream_is_refused(server, training, position):
    packed = base64.urlsafe_b64encode(zlib.compress(position.encode())).decode()
    for sent in (packed, position[:1000]):
        answer = server.ask(f"{training}/metrics", accept="text/event-stream", last_event_id=sent)
        assert answer.status == 400 and "Last-Event-ID" in answer.json["detail"]


def test_pages_have_each_training_once_though_many_are_as_old(server, desk):
    names = [f"t-{number}" for number in (3, 1, 4, 2, 5)]
    desk.mine.store.add(*(
        make_record(site="local", training_id=name, state=State.COMPLETED) for name in names
    ))  # fmt: skip
    seen, cursor = [], ""
    while cursor is not None:
        page = server.ask(f"{LIST}?limit=2{cursor and f'&cursor={cursor}'}").json
        seen += [each["training_id"] for each in page["items"]]
        cursor = page["next"]
    assert seen == sorted(names, reverse=True)


def test_what_is_as_described_but_means_nothing_is_422_and_head_reads_no_stream(
    server, desk, training
):
    told = server.ask(f"{training}/logs", "HEAD", accept="text/event-stream")
    assert not desk.followers._sites
    assert told.status == 200 and told.headers["content-type"].startswith("text/event-stream")
    for query in ("grep=[", "rank=first", "since=someday"):
        answer = server.ask(f"{training}/logs?{query}")
        assert answer.status == 422 and answer.json["detail"], query
    assert server.ask(f"{training}/metrics?names=[").status == 422
