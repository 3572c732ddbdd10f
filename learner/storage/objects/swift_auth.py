"""Tokens for Swift: its own authentication (v1), and keystone (v3)."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import urlsplit

from learner.storage.objects.base import Place, Refusal, Refused
from learner.storage.objects.http_client import Answer, HttpClient, from_json


class Session:
    """A token and the address that it opens; all threads share them."""

    def __init__(self, place: Place, http: HttpClient) -> None:
        self._place = place
        self._http = http
        self._lock = threading.Lock()
        self._known: tuple[str, str] | None = None

    def token(self) -> tuple[str, str]:
        """Return the token and the address of the account, without a slash at its end."""
        with self._lock:
            if self._known is None:
                self._known = self._v3() if self._is_v3() else self._v1()
            return self._known

    def renew(self, expired: str) -> None:
        """Forget a token that the server no longer accepts."""
        with self._lock:
            if self._known is not None and self._known[0] == expired:
                self._known = None

    def _is_v3(self) -> bool:
        settings = self._place.settings
        path = urlsplit(settings["auth_url"]).path.rstrip("/")
        named = settings.get("project_id") or settings.get("domain_name")
        return bool(named) or path.endswith("/v3")

    def _v1(self) -> tuple[str, str]:
        settings = self._place.settings
        given = {"X-Auth-User": settings["user_name"], "X-Auth-Key": settings["password"]}
        answer = self._http.request("GET", settings["auth_url"], given)
        _check(answer)
        token, url = (answer.headers.get(name, "") for name in ("x-auth-token", "x-storage-url"))
        if not token or not url:
            raise Refused(Refusal.NO_SUCH_SERVICE, "its answer has no token of Swift")
        return token, self._rewritten(url.rstrip("/"))

    def _v3(self) -> tuple[str, str]:
        settings = self._place.settings
        url = settings["auth_url"].rstrip("/")
        url = url if url.endswith("/v3") else f"{url}/v3"
        domain = {"name": settings.get("domain_name") or "Default"}
        user = {"name": settings["user_name"], "password": settings["password"], "domain": domain}
        identity = {"methods": ["password"], "password": {"user": user}}
        scope = {"project": {"id": settings.get("project_id", "")}}
        wanted: dict[str, Any] = {"auth": {"identity": identity}}
        wanted["auth"] |= {"scope": scope} if settings.get("project_id") else {}
        answer = self._http.request("POST", f"{url}/auth/tokens",
                                    {"Content-Type": "application/json"},
                                    json.dumps(wanted).encode())  # fmt: skip
        _check(answer)
        catalog = from_json(answer.body).get("token", {}).get("catalog", [])
        region = settings.get("region")
        found = [
            end["url"] for service in catalog if service.get("type") == "object-store"
            for end in service.get("endpoints", ())
            if end.get("interface") == "public"
            and (not region or region in (end.get("region"), end.get("region_id")))
        ]  # fmt: skip
        if not found:
            where = f" in the region {region!r}" if region else ""
            where += "" if settings.get("project_id") else "; `project_id` says whose"
            raise Refused(Refusal.NO_SUCH_SERVICE, f"its catalog has no object store{where}")
        return answer.headers.get("x-subject-token", ""), self._rewritten(found[0].rstrip("/"))

    def _rewritten(self, url: str) -> str:
        """Return the account's address as this site reaches it: `FROM TO` a line."""
        for line in self._place.settings.get("endpoints", "").splitlines():
            old, _, new = line.partition(" ")
            if url == old or url.startswith(f"{old.rstrip('/')}/"):
                return new.rstrip("/") + url[len(old.rstrip("/")) :]
        return url


def _check(answer: Answer) -> None:
    if answer.status in (401, 403):
        raise Refused(Refusal.CREDENTIALS, str(answer.status))
    if answer.status not in (200, 201, 204):
        raise Refused(Refusal.NO_SUCH_SERVICE, f"{answer.status} to the authentication")
