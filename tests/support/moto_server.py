"""A second implementation of S3: moto's server, on a free port."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.request import urlopen

from swift_server import PYTHON

_MAKE = """\
import boto3, sys
s3 = boto3.client("s3", endpoint_url=sys.argv[1], region_name="us-east-1",
                  aws_access_key_id="id", aws_secret_access_key="k")
s3.create_bucket(Bucket=sys.argv[2])
"""


@dataclass(frozen=True)
class MotoServer:
    """A running server, which takes any credentials."""

    port: int
    user: str = "id"
    password: str = "a secret key"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket."""
        subprocess.run([PYTHON, "-W", "ignore", "-c", _MAKE, self.url, name], check=True)


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """Run a server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(PYTHON), "-W", "ignore", "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        server, until = MotoServer(port), time.monotonic() + 60
        try:
            while True:
                try:
                    urlopen(f"{server.url}/moto-api/data.json", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < until
                    time.sleep(0.1)
            yield server
        finally:
            process.terminate()
