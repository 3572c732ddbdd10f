"""A second implementation of S3, moto's server, as a process on a free port."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import obstore
from swift_server import PYTHON


@dataclass(frozen=True)
class Moto:
    """A running server, which takes any credentials."""

    port: int
    user: str = "id"
    password: str = "a secret key"

    @property
    def url(self) -> str:
        """Return its address on this machine."""
        return f"http://127.0.0.1:{self.port}"

    def bucket(self, name: str, files: Mapping[str, bytes]) -> None:
        """Make a bucket with these objects."""
        urlopen(Request(f"{self.url}/{name}", method="PUT"), timeout=60).close()
        for key, content in files.items():
            obstore.put(self._store(name), key, content)

    def names(self, bucket: str) -> set[str]:
        """Return the keys of a bucket."""
        return {each["path"] for part in obstore.list(self._store(bucket)) for each in part}

    def get(self, bucket: str, key: str) -> bytes:
        """Return an object."""
        return bytes(obstore.get(self._store(bucket), key).bytes())

    def _store(self, bucket: str) -> obstore.store.S3Store:
        return obstore.store.S3Store(
            bucket, endpoint=self.url, access_key_id=self.user, secret_access_key=self.password,
            region="us-east-1", virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )  # fmt: skip

    def role_key(self) -> dict[str, str]:
        """Return a temporary key: that of a role which may do all with buckets."""
        self._ask("iam", Action="CreateRole", RoleName="r", AssumeRolePolicyDocument="{}")
        allowed = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        self._ask("iam", Action="PutRolePolicy", RoleName="r", PolicyName="p",
                  PolicyDocument=policy)  # fmt: skip
        answer = self._ask("sts", Action="AssumeRole", RoleSessionName="s",
                           RoleArn="arn:aws:iam::123456789012:role/r")  # fmt: skip
        return dict(re.findall(r"<(AccessKeyId|SecretAccessKey|SessionToken)>(.*?)<", answer))

    def _ask(self, service: str, **form: str) -> str:
        signed = f"AWS4-HMAC-SHA256 Credential=id/20260101/us-east-1/{service}/aws4_request, "
        headers = {"Authorization": f"{signed}SignedHeaders=host, Signature=00"}
        with urlopen(Request(self.url, urlencode(form).encode(), headers), timeout=60) as answer:
            return answer.read().decode()


@contextlib.contextmanager
def running_moto(checks_after: int | None = None) -> Iterator[Moto]:
    """Yield a server, which ends with the block.

    Args:
        checks_after: After so many requests it checks signatures, tokens and permissions.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [str(PYTHON), "-W", "ignore", "-m", "moto.server", "-p", str(port)]
    env = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": str(checks_after or 10**9)}
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(argv, env=env, stdout=nowhere, stderr=nowhere) as process:
        try:
            until = time.monotonic() + 60
            while True:
                try:
                    urlopen(f"http://127.0.0.1:{port}/moto-api/data.json", timeout=5).close()
                    break
                except OSError:
                    assert process.poll() is None and time.monotonic() < until
                    time.sleep(0.1)
            yield Moto(port)
        finally:
            process.terminate()
