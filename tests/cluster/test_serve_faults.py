"""The REST interface when the link or the scheduler fails: clients lose nothing and repeat."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

from rest_server import RestServer, serving, wait_for_end, zipped

from dlctl import contract

MANIFEST = {"name": "served", "memory": "512MiB", "time": "5m",
            "framework": {"name": "pytorch", "command": "sh run.sh"}}  # fmt: skip
COUNTS = """\
n=0
until [ -e $JOB_STATE_DIR/end ]; do n=$((n + 1)); echo line $n; sleep 0.05; done
echo last $n
"""


def parts(text: str) -> dict[str, Any]:
    return {"manifest": json.dumps(MANIFEST), "code": zipped({"run.sh": text})}


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
