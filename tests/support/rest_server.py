"""`dlctl serve` in a process of its own, and a small client of it."""

from __future__ import annotations

import http.client
import io
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlctl.serve import run
from dlctl.serve.desk import Desk

PROGRAM = """\
import os
os.geteuid = lambda: 1000 # tests may run as root, which the server refuses
from dlctl.__main__ import main
main()
"""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class RestServer:
    """A server that listens on a port, with the environment of a test's dlctl."""

    env: Mapping[str, str]
    cwd: Path
    port: int
    process: subprocess.Popen[str] | None = None

    @property
    def token(self) -> str:
        return Path(self.env["XDG_STATE_HOME"], "dlctl/serve.token").read_text().strip()

    def start(self) -> None:
        """Start the process, and wait until it listens."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "serve", "--port", str(self.port)],
            cwd=self.cwd, env=dict(self.env), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            assert self.process.stderr is not None
            raise AssertionError(f"no server: {self.process.stderr.read()}")

    def kill(self) -> None:
        """End it as a lost machine does."""
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def stop(self) -> int:
        """End it as systemd does; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        self.process.communicate(timeout=90)
        return self.process.returncode

    def open(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Ask; headers are written with `_` for `-`, an empty one is left out."""
        sent = {"authorization": f"Bearer {self.token}", "host": f"127.0.0.1:{self.port}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.putrequest(method, path, skip_host=True)
        for name, value in sent.items():
            if value:
                connection.putheader(name, value)
        if body is not None:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        return connection, connection.getresponse()

    def ask(
        self, path: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Answer:
        """Ask, and return the whole answer."""
        connection, answer = self.open(path, method, body, **headers)
        with closing(connection):
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())

    def send(self, path: str, document: Any, method: str = "POST", **headers: str) -> Answer:
        """Send JSON."""
        body = json.dumps(document).encode()
        return self.ask(path, method, body, content_type="application/json", **headers)

    def send_form(
        self, path: str, parts: Mapping[str, str | bytes | list[str]], **headers: str
    ) -> Answer:
        """Send a form; bytes are files, a list is a part that is repeated."""
        mark, body = secrets.token_hex(8), b""
        lists = {name: v if isinstance(v, list) else [v] for name, v in parts.items()}
        for name, value in ((name, each) for name, values in lists.items() for each in values):
            file = f'; filename="{name}"' if isinstance(value, bytes) else ""
            content = value if isinstance(value, bytes) else value.encode()
            head = f'--{mark}\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'
            body += head.encode() + content + b"\r\n"
        body += f"--{mark}--\r\n".encode()
        kind = f"multipart/form-data; boundary={mark}"
        return self.ask(path, "POST", body, content_type=kind, **headers)

    def events(
        self, path: str, *, most: int | None = None, **headers: str
    ) -> Iterator[tuple[str, str, Any]]:
        """Yield the kind, the id and the data of each event, until the stream or `most` ends."""
        connection, answer = self.open(path, accept="text/event-stream", **headers)
        with closing(connection):
            assert answer.status == 200, answer.read()
            kind, number, count = "message", "", 0
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    number = value
                elif name == "data":
                    yield kind, number, json.loads(value)
                    kind, count = "message", count + 1
                    if count == most:
                        return


class running:  # noqa: N801 - used as a context manager
    """A server in a thread of this process; yields its port."""

    def __init__(self, desk: Desk, place: run.Place) -> None:
        self.context = run.prepared(desk, place)

    def __enter__(self) -> int:
        address, self.server = self.context.__enter__()
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        return 0 if address.startswith("unix:") else int(address.rpartition(":")[2])

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.context.__exit__(None, None, None)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def zipped(files: Mapping[str, str]) -> bytes:
    """Return a ZIP."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


@contextmanager
def serving(dlctl: Any, site: Any) -> Iterator[RestServer]:
    """Run a server whose default site is `site`, until the end of the block."""
    env = dlctl.env | {"DLCTL_SITE": site.name, "PATH": os.environ["PATH"]}
    server = RestServer(env, dlctl.cwd, free_port())
    server.start()
    try:
        yield server
    finally:
        if server.process is not None and server.process.poll() is None:
            server.process.terminate()
            try:
                server.process.communicate(timeout=90)
            except subprocess.TimeoutExpired:
                server.kill()


def wait_for_end(server: RestServer, training_id: str, timeout_s: float = 300) -> str:
    """Wait until a training has ended; return its state."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        known = server.ask(f"/api/v1/trainings/{training_id}").json
        if known["state"] in ("COMPLETED", "FAILED", "HALTED", "CANCELLED"):
            return str(known["state"])
        time.sleep(1.0)
    raise AssertionError(f"{training_id} has not ended: {known}")
