"""A real OpenStack Swift with its S3 interface: four unprivileged processes, on free ports."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from repository import SUPPORT

PYTHON = Path(sys.prefix, "servers/bin/python")
"""An environment of its own: Swift's packages would be loaded by every Python of the tests."""
USER, PASSWORD = "test:tester", "correct-horse-battery"
_CONNECTIONS = 6
_BACKENDS = ("account", "container", "object")
_SWIFT_CONF = (
    "[swift-hash]\nswift_hash_path_suffix = tests\n[storage-policy:0]\nname = one\ndefault = yes\n"  # noqa: E501
    "[swift-constraints]\ncontainer_listing_limit = 100\n"  # servers differ in it
)
_BACKEND_CONF = """\
[DEFAULT]
devices = {folder}/devices
mount_check = false
swift_dir = {folder}
log_level = ERROR
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
fallocate_reserve = 0
"""
PROXY_PARTS = """\
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
[filter:slo]
use = egg:swift#slo
min_segment_size = 1
[filter:dlo]
use = egg:swift#dlo
"""
"""What the configuration of each proxy ends with."""
_PROXY_CONF = """\
[DEFAULT]
swift_dir = {folder}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors healthcheck cache listing_formats bulk s3api tempauth slo dlo proxy-server
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:bulk]
use = egg:swift#bulk
[filter:s3api]
use = egg:swift#s3api
dns_compliant_bucket_names = no
max_bucket_listing = 99
min_segment_size = 1
location = us-east-1
[filter:tempauth]
use = egg:swift#tempauth
user_{user} = {password} .admin
"""
_RINGS = """\
import sys
from swift.common.ring import RingBuilder
folder = sys.argv[1]
for kind, port in zip(("account", "container", "object"), sys.argv[2:]):
    builder = RingBuilder(1, 1, 1)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "weight": 1.0, "ip": "127.0.0.1",
                     "port": int(port), "device": "d1"})
    builder.rebalance()
    builder.get_ring().save(f"{folder}/{kind}.ring.gz")
"""


@dataclass
class Swift:
    """A running Swift."""

    folder: Path
    port: int
    memcached_port: int
    user: str = USER
    password: str = PASSWORD
    outside_address: str = ""
    """`HOST:PORT` as those see it who are to read and write; empty: as this process does."""

    @property
    def auth_url(self) -> str:
        """The v1 authentication."""
        return f"{self.s3_url}/auth/v1.0"

    @property
    def s3_url(self) -> str:
        """The S3 interface."""
        return f"http://{self.outside_address or f'127.0.0.1:{self.port}'}"

    def forget_tokens(self) -> None:
        """Make every token expire now."""
        with socket.create_connection(("127.0.0.1", self.memcached_port)) as connection:
            connection.sendall(b"flush_all\r\n")
            assert connection.recv(100) == b"OK\r\n"

    def request(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask Swift's own interface; `path` is `container/object`."""
        given = {"X-Auth-Token": self.token(), **(headers or {})}
        return self._ask(method, f"/v1/AUTH_test/{quote(path)}", body, given)

    def token(self) -> str:
        """Return a fresh token."""
        given = {"X-Auth-User": self.user, "X-Auth-Key": self.password}
        return self._ask("GET", "/auth/v1.0", b"", given)[1]["x-auth-token"]

    def _ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()

    def put(self, path: str, body: bytes = b"") -> None:
        """Make a container, or an object in one."""
        status, _, answer = self.request("PUT", path, body)
        assert status in (201, 202), (status, answer)

    def get(self, path: str) -> bytes:
        """Return the content of an object."""
        status, _, body = self.request("GET", path)
        assert status == 200, (path, status)
        return body

    def names(self, container: str) -> list[str]:
        """Return the names in a container."""
        found: list[str] = []
        while True:
            after = quote(found[-1], safe="") if found else ""
            path = f"/v1/AUTH_test/{quote(container)}?marker={after}"
            page = self._ask("GET", path, b"", {"X-Auth-Token": self.token()})[2]
            if not page:
                return found
            found += page.decode().splitlines()

    def container(self, name: str, objects: dict[str, bytes]) -> str:
        """Make a container with objects in it, through a few connections; return its name."""
        self.put(name)
        keys = list(objects)
        with ThreadPoolExecutor(_CONNECTIONS) as pool:
            some = (keys[n::_CONNECTIONS] for n in range(_CONNECTIONS))
            list(pool.map(lambda mine: self._put_all(name, mine, objects), some))
        return name

    def _put_all(self, name: str, keys: list[str], objects: dict[str, bytes]) -> None:
        if not keys:
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"X-Auth-Token": self.token()}
        with contextlib.closing(connection):
            for key in keys:
                path = f"/v1/AUTH_test/{quote(f'{name}/{key}')}"
                connection.request("PUT", path, objects[key], headers)
                answer = connection.getresponse()
                assert answer.status in (201, 202), (key, answer.status)
                answer.read()


@contextlib.contextmanager
def running_swift(folder: Path) -> Iterator[Swift]:
    """Start Swift in a folder on a file system with user attributes; end it with the block."""
    (folder / "devices/d1").mkdir(parents=True)
    (folder / "swift.conf").write_text(_SWIFT_CONF)
    user = USER.replace(":", "_")
    (folder / "proxy.conf").write_text(
        _PROXY_CONF.format(folder=folder, user=user, password=PASSWORD) + PROXY_PARTS
    )
    for kind in _BACKENDS:
        (folder / f"{kind}.conf").write_text(_BACKEND_CONF.format(folder=folder, kind=kind))
    with contextlib.ExitStack() as stack:
        servers = [_start(folder, kind, stack) for kind in _BACKENDS]
        ports = [str(port_of(folder, kind, servers)) for kind in _BACKENDS]
        subprocess.run([str(PYTHON), "-W", "ignore", "-c", _RINGS, str(folder), *ports], check=True)
        servers.append(_start(folder, "proxy", stack))
        port = port_of(folder, "proxy", servers)
        yield Swift(folder, port, port_of(folder, "memcached", servers))


def start_server(
    argv: list[str], log: Path, stack: contextlib.ExitStack
) -> subprocess.Popen[bytes]:
    """Start a program of the servers' environment, which ends when the stack closes."""
    output = stack.enter_context(log.open("wb"))
    process = subprocess.Popen(
        [str(PYTHON), *argv], stdin=subprocess.PIPE, stdout=output, stderr=output
    )
    stack.callback(_end, process)
    return process


def _start(folder: Path, kind: str, stack: contextlib.ExitStack) -> subprocess.Popen[bytes]:
    argv = [str(SUPPORT / "swift_process.py"), str(folder), kind]
    return start_server(argv, folder / f"{kind}.log", stack)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def port_of(folder: Path, kind: str, servers: list[subprocess.Popen[bytes]]) -> int:
    """Return the port that a server writes to a file once it listens."""
    file, until = folder / f"{kind}.port", time.monotonic() + 60
    while not file.exists():
        logs = {path.name: path.read_text()[-2000:] for path in folder.glob("*.log")}
        assert all(server.poll() is None for server in servers), logs
        assert time.monotonic() < until, logs
        time.sleep(0.05)
    return int(file.read_text())
