"""The lab's set-up in docs/serve.md: the unit is right, and nginx lets through what it must."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urljoin

import pytest
from people import certificate
from repository import REPOSITORY
from rest_server import PROGRAM

pytestmark = pytest.mark.slow


def block(kind: str, number: int = 0) -> str:
    page = (REPOSITORY / "docs/serve.md").read_text()
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[number]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd")
def test_systemd_takes_the_unit_of_the_page(tmp_path):
    (tmp_path / ".local/bin").mkdir(parents=True)
    (tmp_path / ".local/bin/dlctl").symlink_to("/bin/true")
    unit = tmp_path / "dlctl.service"
    unit.write_text(block("ini", 1))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", str(unit)], capture_output=True, text=True,
        env={**os.environ, "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    # It looks at the machine's own units, too.
    assert done.returncode == 0 and unit.name not in done.stderr


@pytest.fixture
def lab(xdg, tmp_path):
    """`ask(path, data, method, **headers)` through the nginx of the page, as alice."""
    program = shutil.which("nginx")
    if not program:
        pytest.skip("no nginx")
    made, key = certificate(tmp_path)
    at, password = tmp_path / "serve.sock", tmp_path / "alice.htpasswd"
    password.write_text("alice:{PLAIN}pw\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = block("nginx")
    for old, new in {
        "443": str(port), "dlctl.lab.example": "localhost", "/etc/nginx/dlctl.pem": str(made),
        "/etc/nginx/dlctl.key": str(key), "/etc/nginx/alice.htpasswd": str(password),
        "/run/dlctl/alice/serve.sock": str(at), "1g;": "1m;",
    }.items():  # fmt: skip
        assert old in text
        text = text.replace(old, new)
    paths = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in
                    ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))  # fmt: skip
    user = "user root;\n" if os.geteuid() == 0 else ""
    conf = tmp_path / "nginx.conf"
    conf.write_text(f"{user}daemon off;\npid {tmp_path}/pid;\nevents {{}}\n"
                    f"http {{\naccess_log off;\n{paths}{text}}}\n")  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "serve", "--socket", str(at)], env=xdg.env,
        stdout=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    proxy = subprocess.Popen([program, "-e", f"{tmp_path}/error.log", "-c", conf])
    assert server.stdout is not None and server.stdout.readline()
    trusted = ssl.create_default_context(cafile=made)

    def ask(path: str, data: bytes | None = None, method: str = "GET", **headers: str) -> Any:
        told = {"Authorization": "Basic " + base64.b64encode(b"alice:pw").decode(), **headers}
        sent = {name.replace("_", "-"): value for name, value in told.items() if value}
        url = f"https://localhost:{port}/alice{path}"
        request = urllib.request.Request(url, data, sent, method=method)
        return urllib.request.urlopen(request, context=trusted, timeout=60)

    ask.port, ask.trusted = port, trusted  # type: ignore[attr-defined]
    try:
        until = time.monotonic() + 60
        while True:
            try:
                ask("/api/v1/health")
                break
            except (HTTPError, URLError):
                assert time.monotonic() < until and proxy.poll() is None
                time.sleep(0.05)
        yield ask
    finally:
        for each in (proxy, server):
            each.terminate()
            each.communicate(timeout=90)


def refused(ask: Any, *arguments: Any, **headers: str) -> int:
    with pytest.raises(HTTPError) as caught:
        ask(*arguments, **headers)
    with caught.value as error:
        return error.code


def test_a_training_goes_through_nginx_with_its_events_and_sockets(lab):
    from websockets.sync.client import connect

    assert refused(lab, "/api/v1/trainings", Authorization="") == 401
    assert refused(lab, "/api/v1/trainings", Origin="https://evil.example") == 403
    with lab("/api/v1/trainings", Origin=f"https://localhost:{lab.port}") as own:
        assert own.status == 200
    command = "echo one; until [ -e ../go ]; do sleep 0.1; done; echo two | tee $RESULT_DIR/a own"
    manifest = f"name: lines\ntime: 5m\nframework: {{name: custom, command: '{command}'}}\n"
    body = json.dumps({"manifest": manifest, "site": "local"}).encode()
    with lab("/api/v1/trainings", body, "POST", Content_Type="application/json") as answer:
        made = json.load(answer)
        assert answer.headers["Location"].endswith(f"/alice/api/v1/trainings/{made['training_id']}")
    training_id, job_dir = made["training_id"], Path(made["job_dir"])
    followed = []
    with lab(f"/api/v1/trainings/{training_id}/logs", Accept="text/event-stream") as events:
        for line in events:
            followed.append(line.decode())
            if "one" in followed[-1]:  # it came although the training goes on
                (job_dir / "go").touch()
    assert "two" in "".join(followed) and "event: end" in "".join(followed[-3:])
    with lab(f"/api/v1/trainings/{training_id}/results") as listed:
        (made,) = json.load(listed)["items"]
        href = urljoin(listed.url, made["href"])
    assert "/alice/" in href, "a link leads through the proxy, too"
    with lab(href.partition("/alice")[2]) as file:
        assert file.read() == b"two\n"
    with lab(f"/api/v1/trainings/{training_id}/results?of=output") as listed:
        answered = json.load(listed)
        (own,), href = answered["items"], urljoin(listed.url, answered["items"][0]["href"])
    assert own["path"] == "own" and answered["output"].startswith("own: 4 B")
    with lab(href.partition("/alice")[2]) as file:
        assert file.read() == b"two\n"
    basic = "Basic " + base64.b64encode(b"alice:pw").decode()
    with connect(
        f"wss://localhost:{lab.port}/alice/v1/models/{training_id}/logs?version=1",
        ssl=lab.trusted, additional_headers={"Authorization": basic}, origin="http://localhost/",
    ) as log:  # fmt: skip
        assert any("two" in str(message) for message in log)
    form = {"Content_Type": "multipart/form-data; boundary=x"}
    assert refused(lab, "/api/v1/trainings", bytes(2 << 20), "POST", **form) == 413
