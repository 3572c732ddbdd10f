"""A real keystone (identity v3), and a proxy of the real Swift that believes its tokens."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from repository import SUPPORT
from swift_server import PROXY_PARTS, PYTHON, Swift, port_of, start_server

_CONF = """\
[DEFAULT]
log_dir = {folder}
[database]
connection = sqlite:///{folder}/keystone.db
[fernet_tokens]
key_repository = {folder}/fernet
[credential]
key_repository = {folder}/credential
[identity]
password_hash_rounds = 4
"""
_PROXY = """\
[DEFAULT]
swift_dir = {swift}
log_level = ERROR
[pipeline:main]
pipeline = catch_errors cache authtoken keystoneauth slo dlo proxy-server
[filter:authtoken]
paste.filter_factory = keystonemiddleware.auth_token:filter_factory
www_authenticate_uri = {url}
auth_url = {url}
auth_type = password
project_domain_id = default
user_domain_id = default
project_name = admin
username = admin
password = {admin}
delay_auth_decision = true
[filter:keystoneauth]
use = egg:swift#keystoneauth
operator_roles = admin
"""
_ADMIN = "the-admins-own"
MANAGE = PYTHON.with_name("keystone-manage")
"""Keystone's own program, which comes with `make test-all`."""


@dataclass
class Keystone:
    """A running keystone with one user, of a domain of its own."""

    url: str
    project_id: str
    domain: str
    region: str
    swift: Swift
    """Swift as it is reached with keystone's tokens, of the same name and password."""

    def put(self, path: str, body: bytes = b"") -> None:
        """Make a container, or an object in one, as the user."""
        user = {"name": self.swift.user, "password": self.swift.password,
                "domain": {"name": self.domain}}  # fmt: skip
        headers = {"X-Auth-Token": _token(self.url, user, {"id": self.project_id})}
        url = f"http://127.0.0.1:{self.swift.port}/v1/AUTH_{self.project_id}/{path}"
        urlopen(Request(url, body, headers, method="PUT")).close()


@contextlib.contextmanager
def running_keystone(folder: Path, swift: Swift) -> Iterator[Keystone]:
    """Start keystone beside a Swift; it takes some seconds to make its database."""
    for name in ("fernet", "credential"):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / "keystone.conf").write_text(_CONF.format(folder=folder))
    user = str(os.getuid()), str(os.getgid())
    _manage(folder, "db_sync")
    _manage(folder, "fernet_setup", "--keystone-user", user[0], "--keystone-group", user[1])
    _manage(folder, "bootstrap", "--bootstrap-password", _ADMIN, "--bootstrap-region-id", "dallas")
    with contextlib.ExitStack() as stack:
        process = start_server([str(SUPPORT / "keystone_process.py"), str(folder)],
                               folder / "process.log", stack)  # fmt: skip
        url = f"http://127.0.0.1:{port_of(folder, 'keystone', [process])}"
        conf = _PROXY.format(swift=swift.folder, url=url, admin=_ADMIN) + PROXY_PARTS
        (swift.folder / "by_keystone.conf").write_text(conf)
        proxy = start_server([str(SUPPORT / "swift_process.py"), str(swift.folder), "by_keystone"],
                             swift.folder / "by_keystone.log", stack)  # fmt: skip
        port = port_of(swift.folder, "by_keystone", [proxy])
        yield _with_user(url, replace(swift, port=port))


def _manage(folder: Path, *words: str) -> None:
    argv = [str(MANAGE), "--config-dir", str(folder), *words]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _with_user(url: str, swift: Swift) -> Keystone:
    """Make a domain, a project and a user who may use Swift, and name Swift in the catalog."""
    default = {"domain": {"id": "default"}}
    admin = {"name": "admin", "password": _ADMIN, **default}
    token = _token(url, admin, {"name": "admin", **default})

    def make(kind: str, **values: Any) -> str:
        answer = _ask(url, "POST", f"{kind}s", {kind: values}, token)[1]
        return str(answer[kind]["id"])

    domain = make("domain", name="mine")
    project = make("project", name="research", domain_id=domain)
    user = make("user", name=swift.user, password=swift.password, domain_id=domain)
    roles = _ask(url, "GET", "roles?name=admin", None, token)[1]["roles"]
    _ask(url, "PUT", f"projects/{project}/users/{user}/roles/{roles[0]['id']}", None, token)
    own = make("service", type="identity", name="keystone")
    make("endpoint", service_id=own, region_id="dallas", interface="internal", url=f"{url}/v3")
    service = make("service", type="object-store", name="swift")
    for region, port in (("elsewhere", 9), ("dallas", swift.port)):
        if region != "dallas":
            make("region", id=region)
        make("endpoint", service_id=service, region_id=region, interface="public",
             url=f"http://127.0.0.1:{port}/v1/AUTH_%(project_id)s")  # fmt: skip
    return Keystone(url, project, "mine", "dallas", swift)


def _token(url: str, user: dict[str, Any], project: dict[str, Any]) -> str:
    identity = {"methods": ["password"], "password": {"user": user}}
    request = {"auth": {"identity": identity, "scope": {"project": project}}}
    return str(_ask(url, "POST", "auth/tokens", request)[0]["X-Subject-Token"])


def _ask(url: str, method: str, path: str, body: Any, token: str = "") -> tuple[Any, Any]:
    headers = {"Content-Type": "application/json", "X-Auth-Token": token}
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(f"{url}/v3/{path}", data, headers, method=method)) as answer:
        return answer.headers, json.loads(answer.read() or b"null")
