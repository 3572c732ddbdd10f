"""The REST interface before real schedulers: what clients see, and what a fault makes of it."""

from __future__ import annotations

import base64
import io
import json
import random
import re
import socket
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urljoin

import pytest
import websockets.sync.client
from rest_server import RestServer, serving, wait_for_end, zipped
from waiting import wait_until
from websockets.exceptions import ConnectionClosedOK

from dlctl import contract

PROGRAM = """\
import os, time
from learner import ddl
for step in range(1, 9):
    time.sleep(0.2)
    ddl.log(step, loss=1 / step)
    print("step", step, flush=True)
open(os.environ["RESULT_DIR"] + "/model.txt", "w").write("hello world")
"""
RUNS = "import os; open(os.environ['JOB_STATE_DIR'] + '/runs', 'a').write('ran ')"
MANIFEST = {"name": "served", "memory": "512MiB", "time": "5m",
            "framework": {"name": "pytorch", "command": "python3 run.py"}}  # fmt: skip


def submit(server: RestServer, key: str = "", **overrides: Any) -> str:
    parts: dict[str, Any] = {"manifest": json.dumps(MANIFEST), "code": zipped({"run.py": PROGRAM})}
    if overrides:
        parts["overrides"] = json.dumps(overrides)
    made = server.send_form("/api/v1/trainings", parts, idempotency_key=key)
    assert made.status == 201, made
    return str(made.json["training_id"])


def text_of(events: list[tuple[str, str, Any]]) -> list[str]:
    return [f"{line['source']} {line['line']}" for kind, _, lines in events if kind == "message"
            for line in lines]  # fmt: skip


def test_a_program_submits_follows_and_fetches(dlctl, site):
    with serving(dlctl, site) as server:
        training = submit(server, "first")
        assert submit(server, "first") == training, "the same request means the same training"
        one = f"/api/v1/trainings/{training}"
        # A client that is cut off goes on where it was, without a gap and without a repeat.
        begun = list(server.events(f"{one}/logs", most=4))
        curve = f"{one}/metrics?names=loss"
        measured = list(server.events(curve, most=1))
        whole = [*begun, *server.events(f"{one}/logs", last_event_id=begun[-1][1])]
        measured += server.events(curve, last_event_id=measured[0][1])
        assert [each["step"] for kind, _, some in measured if kind == "message" for each in some
                if each["kind"] == "scalar"] == [*range(1, 9)]  # fmt: skip
        assert whole[-1][0] == "end" and whole[-1][2] == {"state": "COMPLETED"}
        told = text_of(whole)
        assert [each for each in told if "step" in each] == [
            f"learner-0 step {step}" for step in range(1, 9)
        ]
        assert told == server.ask(f"{one}/logs").body.decode().replace(" | ", " ").splitlines()
        some = quote("^step [23]$")
        assert server.ask(f"{one}/logs?rank=0&attempt=1&grep={some}").body == (
            b"learner-0 | step 2\nlearner-0 | step 3\n"
        )
        assert text_of(list(server.events(f"{one}/logs?grep={some}"))) == [
            "learner-0 step 2", "learner-0 step 3",
        ]  # fmt: skip
        assert server.ask(f"{one}/logs?attempt=2").status == 409
        assert server.ask(f"{one}/logs?since=yesterday").status == 422
        columns = server.ask(f"{one}/metrics?names=loss").json["columns"]
        assert columns["step"] == [*range(1, 9)]
        assert columns["loss"] == [1 / step for step in range(1, 9)]
        (file,) = server.ask(f"{one}/results").json["items"]
        assert (file["path"], file["size_bytes"]) == ("model.txt", 11)
        where = urljoin(f"{one}/results", file["href"])
        assert server.ask(where).body == b"hello world"
        part = server.ask(where, range="bytes=6-")
        assert (part.status, part.body) == (206, b"world")
        assert server.ask(where, if_none_match=file["etag"]).status == 304
        assert server.ask(where, range="bytes=11-").status == 416
        with zipfile.ZipFile(io.BytesIO(server.ask(f"{one}/results.zip").body)) as archive:
            assert archive.testzip() is None and archive.read("model.txt") == b"hello world"
        # What the command line does, the server knows, and the other way round.
        assert dlctl("status", training, "--json", ok=True).json["state"] == "COMPLETED"
        dlctl("tag", training, "--add", "kept", ok=True)
        listed = server.ask("/api/v1/trainings?tag=kept&state=COMPLETED").json
        assert [each["training_id"] for each in listed["items"]] == [training]
        assert server.ask(one, "DELETE").json == {"training_id": training, "deleted": True}
        assert server.ask(one).status == 404
        assert server.stop() == 0


def test_a_training_is_halted_and_resumed(dlctl, site, tmp_path):
    counter = """\
import os, signal, sys, time
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
print("begins", flush=True)
while not os.path.exists(os.environ["JOB_STATE_DIR"] + "/end"):
    time.sleep(0.1)
"""
    manifest = MANIFEST | {"framework": {"name": "pytorch", "command": "exec python3 run.py"}}
    parts = {"manifest": json.dumps(manifest), "code": zipped({"run.py": counter})}
    with serving(dlctl, site) as server:
        training = server.send_form("/api/v1/trainings", parts).json["training_id"]
        one = f"/api/v1/trainings/{training}"
        for _, _, lines in server.events(f"{one}/logs"):
            if any("begins" in line["line"] for line in lines):
                break
        halted = server.send(one, {"do": "halt"}, "PATCH")
        assert halted.status == 200, halted
        assert wait_for_end(server, training) == "HALTED"
        again = server.send(one, {"do": "halt"}, "PATCH")
        assert again.status == 409 and "nothing to halt" in again.json["detail"]
        resumed = server.send(one, {"do": "resume", "overrides": {"time": "4m"}}, "PATCH")
        assert resumed.status == 200 and resumed.json["training"]["attempt"] == 2
        (site.job_dir(training) / "state/end").touch()
        assert wait_for_end(server, training) == "COMPLETED"


def test_a_client_of_the_open_successor_is_served(dlctl, site):
    with serving(dlctl, site) as server:
        basic = base64.b64encode(f"anybody:{server.token}".encode()).decode()
        how: dict[str, Any] = {"authorization": f"Basic {basic}"}
        parts = {"manifest": json.dumps(MANIFEST).encode(),
                 "model_definition": zipped({"run.py": PROGRAM})}  # fmt: skip
        made = server.send_form("/v1/models?version=2017-02-13", parts, **how)
        assert made.status == 201, made
        training = made.headers["location"].rpartition("/")[2]
        events = f"/v1/models/{training}/events/finished"
        body = json.dumps({"url": "https://hooks.example.org/x", "type": "finished"}).encode()
        told = {"id": "mine", "url": "https://hooks.example.org/x"}
        assert server.ask(f"{events}/mine", "POST", body, **how).json == told
        assert server.ask(events, **how).json == {"endpoints": [told]}
        assert server.ask(f"{events}/mine", **how).json == told
        assert server.ask(f"{events}/mine", "DELETE", **how).status == 200
        assert server.ask(f"{events}/mine", **how).status == 404
        assert server.ask(events.replace("finished", "nonsense"), **how).status == 400
        assert made.json == {"model_id": training, "location": f"/v1/models/{training}"}
        frames: dict[str, list[Any]] = {"logs": [], "metrics": []}
        for what, found in frames.items():
            address = f"ws://127.0.0.1:{server.port}/v1/models/{training}/{what}?follow=true"
            with websockets.sync.client.connect(
                address, subprotocols=["ws"], origin="http://localhost/",
                additional_headers={"Authorization": f"Basic {basic}"},
            ) as connection, suppress(ConnectionClosedOK):  # fmt: skip
                while True:
                    found.append(connection.recv())
            assert connection.protocol.close_code == 1000
        assert [line for line in "".join(frames["logs"]).splitlines() if "step" in line] == [
            f"step {step}" for step in range(1, 9)
        ]
        measured = [json.loads(each) for each in frames["metrics"]]
        assert [each["iteration"] for each in measured] == [*range(1, 9)]
        assert measured[0]["Values"] == {"loss": 1.0}
        one = server.ask(f"/v1/models/{training}", **how).json
        assert one["training"]["training_status"]["status"] == "COMPLETED"
        assert [each["model_id"] for each in server.ask("/v1/models", **how).json["models"]] == [
            training
        ]
        seen, since = [], ""
        while rows := server.ask(f"/v1/logs/{training}/loglines?pagesize=3&since_time={since}",
                                 **how).json["models"]:  # fmt: skip
            seen += [row["line"] for row in rows]
            since = str(rows[-1]["meta"]["time"] + 1)  # as their client pages
        assert seen == "".join(frames["logs"]).splitlines()
        suggested = f"/api/v1/suggestions?manifest={quote(json.dumps(MANIFEST))}"
        assert server.ask(suggested).json["trainings"] == 1
        zipped_results = server.ask(f"/v1/models/{training}/trained_model", **how).body
        assert zipfile.ZipFile(io.BytesIO(zipped_results)).namelist() == ["model.txt"]
        code = server.ask(f"/v1/models/{training}/definition", **how).body
        assert zipfile.ZipFile(io.BytesIO(code)).namelist() == ["run.py"]
        assert server.ask(f"/v1/models/{training}", "DELETE", **how).status == 200
        gone = server.ask(f"/v1/models/{training}", **how)
        assert gone.status == 404 and gone.json["code"] == 404


SEARCH = """\
name: asked
space: {x: {float: [0, 1]}}
strategy: {name: genetic, seed: 1, population: 2}
metric: {name: loss}
budget: {trials: 2}
task: {python: "trials:Valley", time: 1m, memory: 256MiB}
workers: {jobs: 1, slots: 1, time: 5m}
"""
TRIALS = """\
from search.tasks import BaseTask

class Valley(BaseTask):
    def __init__(self, x):
        self.x = x

    def run(self):
        return {"loss": self.x}
"""


def test_what_is_asked_again_with_its_key_is_made_once(dlctl, site):
    with serving(dlctl, site) as server:
        training = submit(server)
        search = {"code": zipped({"search.yml": SEARCH, "trials.py": TRIALS})}
        started = [server.send_form("/api/v1/searches", search, idempotency_key="s").json
                   for _ in range(2)]  # fmt: skip
        assert started[0]["training_id"] == started[1]["training_id"]
        other = {"code": zipped({"search.yml": SEARCH + "# other\n", "trials.py": TRIALS})}
        assert server.send_form("/api/v1/searches", other, idempotency_key="s").status == 409
        server.send(f"/api/v1/searches/{started[0]['training_id']}", {"do": "cancel"}, "PATCH")
        assert wait_for_end(server, training) == "COMPLETED"

        wish = {"training": training, "name": "kept", "aliases": ["good"]}
        made = [server.send("/api/v1/models", wish, idempotency_key="m") for _ in range(2)]
        assert [each.status for each in made] == [201, 201] and made[0].json == made[1].json
        for other in ({"name": "other"}, {"results": "*.txt"}, {"aliases": ["best"]}):
            taken = server.send("/api/v1/models", wish | other, idempotency_key="m")
            assert taken.status == 409 and "another request" in taken.json["detail"], taken
        with ThreadPoolExecutor(4) as clients:
            again = {"training": training, "name": "twin"}
            ask = partial(server.send, "/api/v1/models", again, idempotency_key="at once")
            twins = [each.result() for each in [clients.submit(ask) for _ in range(4)]]
        assert {each.status for each in twins} == {201}, twins
        assert len({each.json["model_id"] for each in twins}) == 1
        twin = f"/api/v1/models/{twins[0].json['model_id']}"
        assert server.ask(twin).json["versions"] == [1]
        assert server.ask(twin, "DELETE").status == 200
        one = f"/api/v1/models/{made[0].json['model_id']}"
        more = {"training": training, "tags": ["night"], "removed_aliases": ["good"]}
        changed = server.send(one, more, "PATCH")
        assert changed.status == 200 and changed.json["version"] == 2, changed
        assert (changed.json["tags"], changed.json["aliases"]) == (["night"], {})
        refused = server.ask(f"{one}@1", "DELETE")
        assert refused.status == 409 and "@2" in refused.json["detail"], "it was made from that"
        assert server.ask(f"{one}@2", "DELETE").json["deleted"]
        assert server.ask(one).json["versions"] == [1]
        assert server.ask(one, "DELETE").status == 200 and server.ask(one).status == 404


SECRETS = {
    "env": {"HF_TOKEN": "hunter2-variable"},
    "data_stores": [{
        "id": "store", "type": "s3_datastore", "training_results": {"container": "results"},
        "connection": {"auth_url": "http://127.0.0.1:9", "user_name": "me",
                       "password": "hunter2-store"}}],
    "notify": {"on": ["finished"], "webhook": "https://hooks.example.org/hunter2-hook",
               "webhook_secret": "whsec_aHVudGVyMi1zZWNyZXQtaHVudGVyMi1zZWNyZXQ="},
}  # fmt: skip
SECRET = re.compile(rb"hunter2|aHVudGVyMi")


def test_no_route_tells_a_secret(dlctl, site):
    manifest = json.dumps(MANIFEST | SECRETS)
    said = {"set": {"env.OTHER_TOKEN": "hunter2-asked"}}
    parts = {"manifest": manifest, "code": zipped({"run.py": PROGRAM}),
             "overrides": json.dumps(said)}  # fmt: skip
    with serving(dlctl, site) as server:
        made = server.send_form("/api/v1/trainings", parts)
        assert made.status == 201 and not SECRET.search(made.body), made
        training = made.json["training_id"]
        told = server.send(f"/api/v1/trainings/{training}", {"do": "cancel"}, "PATCH").body
        part = {"id": training, "name": site.name, "path": "run.py", "type": "all",
                "endpoint_id": "none", "model": "none"}  # fmt: skip
        queries = {"/suggestions": f"?manifest={quote(manifest)}", "/results.zip": "?of=code",
                   "/files/{path}": "?of=code"}  # fmt: skip
        paths = server.ask("/openapi.json").json["paths"]
        for path in (path for path, methods in paths.items() if "get" in methods):
            query = next((q for end, q in queries.items() if path.endswith(end)), "")
            answer = server.ask(path.format_map(part) + query)
            assert answer.status in (200, 404, 409), answer
            told += answer.body
            if answer.body.startswith(b"PK"):
                with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
                    told += b"".join(map(archive.read, archive.namelist()))
        for kind in ("logs", "metrics"):
            told += repr([*server.events(f"/api/v1/trainings/{training}/{kind}")]).encode()
        # What is wrong beside a secret, or is one where none may be.
        for name, value in (("env", {"A_TOKEN": ["hunter2"]}), ("learners", "hunter2"),
                            ("framework", {"name": "x", "command": "run --token=hunter2-hunter2"}),
                            ("notify", {"on": ["x"], "webhook": "ftp://hunter2"})):  # fmt: skip
            wrong = {"manifest": json.dumps(MANIFEST | SECRETS | {name: value}).encode()}
            for path in ("/api/v1/trainings", "/v1/models"):
                refused = server.send_form(path, wrong)
                assert refused.status in (400, 422)
                assert name == "learners" or not SECRET.search(refused.body), refused
    assert not SECRET.search(told), SECRET.findall(told)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_server_that_is_killed_again_and_again_submits_each_training_once(dlctl, site):
    """Each client repeats its request with its key until it is answered."""
    clients, count, kills = 9, 24, 8
    ended, chance = threading.Event(), random.Random(7)  # noqa: S311
    with serving(dlctl, site) as server:
        token = server.token

        def killer() -> None:
            for _ in range(kills):
                if ended.wait(chance.uniform(0.2, 3.0)):
                    return
                server.kill()
                server.start()

        def client(number: int) -> set[str]:
            found = set[str]()
            for key in (f"{token[:4]}-{number}",) * 2:
                while True:
                    with suppress(OSError, HTTPException, ValueError):
                        parts = {"manifest": json.dumps(MANIFEST),
                                 "code": zipped({"run.py": RUNS})}  # fmt: skip
                        made = server.send_form("/api/v1/trainings", parts, idempotency_key=key)
                        if made.status == 201:
                            found.add(made.json["training_id"])
                            break
                        assert made.status in (409, 503), made
            return found

        killing = threading.Thread(target=killer)
        killing.start()
        try:
            with ThreadPoolExecutor(clients) as room:
                answers = list(room.map(client, range(count)))
        finally:
            ended.set()
            killing.join()
        ids = set().union(*answers)
        assert [len(each) for each in answers] == [1] * count and len(ids) == count
        assert {each.training_id for each in dlctl.records()} == ids, "and none besides"
        states = {wait_for_end(server, each, 600) for each in ids}
        assert states == {"COMPLETED"}
        for each in ids:
            folder = site.job_dir(each)
            assert (folder / contract.submit_answer(1)).read_text().startswith("0\n")
            assert (folder / "state/runs").read_text() == "ran "
            assert not (folder / contract.attempt_dir(2)).exists()
        if site.cluster is not None:
            names = {contract.token(each, 1) for each in ids}

            def jobs() -> list[str]:
                told = site.cluster.exec("sacct", "-XnP", "--format=JobName", "-S", "now-1hour")
                return [name for name in told.split() if name in names]

            wait_until(lambda: set(jobs()) == names)  # its database hears of them a while later
            assert len(jobs()) == count


COUNTS = """\
n=0
until [ -e $JOB_STATE_DIR/end ]; do n=$((n + 1)); echo line $n; sleep 0.05; done
echo last $n
"""


def parts(text: str) -> dict[str, Any]:
    framework = {"name": "pytorch", "command": "sh run.sh"}
    return {"manifest": json.dumps(MANIFEST | {"framework": framework}),
            "code": zipped({"run.sh": text})}  # fmt: skip


def lines(events: list[tuple[str, str, Any]]) -> list[str]:
    return [each["line"] for kind, _, some in events if kind == "message" for each in some
            if each["source"] == "learner-0"]  # fmt: skip


def follow(server: RestServer, path: str, into: list[tuple[str, str, Any]], **headers: str) -> None:
    into += server.events(path, **headers)


def test_events_go_on_after_the_link_is_lost(dlctl, cluster_site):
    seen: list[tuple[str, str, Any]] = []
    with serving(dlctl, cluster_site) as server:
        training = server.send_form("/api/v1/trainings", parts(COUNTS)).json["training_id"]
        path = f"/api/v1/trainings/{training}/logs"
        follower = threading.Thread(target=follow, args=(server, path, seen))
        follower.start()
        kept = list(server.events(path, most=3))
        for _ in range(3):
            cluster_site.cluster.ssh_drop()
            before = len(kept)
            kept += server.events(path, most=3, last_event_id=kept[-1][1])
            assert len(kept) == before + 3
        (cluster_site.job_dir(training) / "state/end").touch()
        kept += server.events(path, last_event_id=kept[-1][1])
        follower.join()
        count = int(lines(seen)[-1].split()[1])
        whole = [*(f"line {number}" for number in range(1, count + 1)), f"last {count}"]
        assert lines(seen) == lines(kept) == whole
        assert seen[-1][::2] == kept[-1][::2] == ("end", {"state": "COMPLETED"})


def test_a_submission_that_a_dead_scheduler_refused_is_made_once_when_it_is_repeated(
    dlctl, cluster_site
):
    with serving(dlctl, cluster_site) as server:

        def submit() -> Any:
            return server.send_form("/api/v1/trainings", parts("echo ran"), idempotency_key="one")

        cluster_site.cluster.ctld_stop()
        refused = submit()
        assert refused.status == 503 and refused.headers["retry-after"], refused
        assert refused.json["hint"], refused.json
        cluster_site.cluster.ctld_start()
        made = submit()
        assert made.status == 201, made
        assert submit().json["training_id"] == made.json["training_id"]
        (training,) = dlctl.records()
        assert made.json["training_id"] == training.training_id
        assert wait_for_end(server, training.training_id) == "COMPLETED"
        jobs = cluster_site.cluster.exec("squeue", "--noheader", "--states=all", "--format=%j")
        assert jobs.split().count(contract.token(training.training_id, 1)) == 1


def test_a_server_that_is_told_to_end_finishes_what_comes_in(dlctl, site):
    with serving(dlctl, site) as server:
        manifest = MANIFEST | {"framework": {"name": "pytorch", "command": "echo ran"}}
        body = json.dumps({"manifest": manifest}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=120) as client:
            head = (f"POST /api/v1/trainings HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
                    f"authorization: Bearer {server.token}\r\ncontent-type: application/json\r\n"
                    f"content-length: {len(body)}\r\n\r\n")  # fmt: skip
            client.sendall(head.encode() + body[:20])
            assert server.ask("/api/v1/health").status == 200
            assert server.process is not None
            server.process.terminate()
            client.sendall(body[20:])
            assert client.recv(100).startswith(b"HTTP/1.1 201 ")
        assert server.stop() == 0
        assert len(dlctl.records()) == 1
