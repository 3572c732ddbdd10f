"""Azurite, Microsoft's own emulator of Azure's blob storage, if it is installed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.request import Request, urlopen

_INSTALLED = Path(sys.prefix, "servers/node_modules/.bin")
_ACCOUNT = "tests"


def find_azurite() -> str | None:
    """Return its program; None if it is not installed (`make cloud-deps`)."""
    return shutil.which("azurite-blob", path=f"{_INSTALLED}{os.pathsep}{os.environ['PATH']}")


@dataclass(frozen=True)
class Azurite:
    """A running server with one account."""

    port: int
    password: str
    user: str = _ACCOUNT

    @property
    def url(self) -> str:
        """The account's address."""
        return f"http://127.0.0.1:{self.port}/{self.user}"

    def make_container(self, name: str) -> None:
        """Make an empty container, by a request that is signed with the account's key."""
        date = formatdate(usegmt=True)
        of_azure = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in of_azure.items()),
                 f"/{self.user}/{self.user}/{name}", "restype:container"]  # fmt: skip
        key = base64.b64decode(self.password)
        signature = hmac.digest(key, "\n".join(lines).encode(), hashlib.sha256)
        authorization = f"SharedKey {self.user}:{base64.b64encode(signature).decode()}"
        request = Request(f"{self.url}/{name}?restype=container", method="PUT",
                          headers={**of_azure, "Authorization": authorization})  # fmt: skip
        urlopen(request, timeout=60).close()


@contextmanager
def azurite(program: str, folder: Path) -> Iterator[Azurite]:
    """Run a server whose data is in a folder."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = base64.b64encode(os.urandom(64)).decode()
    argv = [program, "--location", str(folder), "--blobPort", str(port), "--silent",
            "--disableTelemetry", "--skipApiVersionCheck"]  # fmt: skip
    env = {**os.environ, "AZURITE_ACCOUNTS": f"{_ACCOUNT}:{key}"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None and time.monotonic() < until
                time.sleep(0.1)
            yield Azurite(port, key)
        finally:
            process.terminate()
