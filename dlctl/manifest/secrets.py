"""Find credentials in a manifest's raw tree, before anything is validated, shown, stored or sent.

In `env`, `notify` and `data_stores[].connection`, where credentials belong, a reference replaces
the value. Anywhere else a credential is a problem, which is reported without the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from dlctl.contract.ground.safe_text import has_credential
from dlctl.yaml_source import FloatText, IntText, Trail

_WORDS = frozenset(
    ("SECRET", "SECRETS", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "APIKEY")
)
_LAST_WORDS = frozenset(("TOKEN", "KEY", "PASS"))
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/@]+@", re.IGNORECASE)
_TOKEN_URL = re.compile(r"https?://(?!git@|\$)[^\s/:@]+@", re.IGNORECASE)
"""A token is often the user name; in `https://$TOKEN@` its value is elsewhere."""
_SHAPES = re.compile(
    r"\bghp_\w{20}|\bgithub_pat_\w{20}|\bhf_[A-Za-z0-9]{20}|\bA[KS]IA[0-9A-Z]{16}\b|\bsk-[\w-]{20}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_ASSIGNED = re.compile(
    r"(?:\b\w*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)\b|--?(?:password|token|api-key))"
    r"[= ][\"']?(?!\$)[^\s\"'$-][^\s\"']{3}"
)

_HOOK_KEYS = ("webhook", "webhook_secret")


def extract(
    data: Any, secret_keys: Callable[[str], frozenset[str]] = lambda _: frozenset()
) -> dict[str, str]:
    """Replace each credential in `data` by a reference; return reference name → value.

    Args:
        data: The raw tree.
        secret_keys: Returns the keys of `connection` that a type of store says are credentials.
    """
    found: dict[str, str] = {}
    if not isinstance(data, dict):
        return found
    if isinstance(data.get("env"), dict):
        _replace(data["env"], "", found, is_credential)
    if isinstance(notify := data.get("notify"), dict):
        _replace(notify, "notify.", found, lambda key, _: key in _HOOK_KEYS)
        if isinstance(smtp := notify.get("smtp"), dict):
            _replace(smtp, "notify.smtp.", found, lambda key, _: key == "password")
    stores = data.get("data_stores")
    for position, store in enumerate(stores if isinstance(stores, list) else []):
        if isinstance(store, dict) and isinstance(store.get("connection"), dict):
            name = f"data_stores.{position}."
            keys = secret_keys(str(store.get("type", "")))

            def is_secret(key: str, value: str, keys: frozenset[str] = keys) -> bool:
                return key in keys or _is_connection_credential(key, value)

            _replace(store["connection"], name, found, is_secret)
            _add_token(store["connection"], keys)
    return found


def _add_token(connection: dict[str, Any], keys: Collection[str]) -> None:
    """Let the token of a profile's key come along: one that is temporary is useless without."""
    password = connection.get("password")
    if isinstance(password, dict) and "from_profile" in password and "session_token" in keys:
        connection.setdefault("session_token", dict(password))


def _replace(values: dict[str, Any], prefix: str, found: dict[str, str], test: Any) -> None:
    for key, value in values.items():
        text = value.text if isinstance(value, (IntText, FloatText)) else value
        if isinstance(text, str) and text and test(key, text):
            found[prefix + key] = text
            values[key] = {"from_secret": prefix + key}


def is_credential(name: str, value: str) -> bool:
    """Return whether an environment variable looks like a credential."""
    if any(each.search(value) for each in (_URL, _TOKEN_URL, _SHAPES)):
        return True
    words = [word for word in re.split(r"[^A-Z0-9]+", name.upper()) if word]
    if not words or _is_no_secret(value):
        return False
    if _WORDS.intersection(words) or words[-1] in ("TOKEN", "PASS"):
        return True
    return words[-1] in _LAST_WORDS and len(value) >= 8 and "/" not in value[:1]


def _is_connection_credential(name: str, value: str) -> bool:
    words = re.split(r"[^A-Z0-9]+", name.upper())
    named = _WORDS.intersection(words) or words[-1] in _LAST_WORDS
    return bool(named) or is_credential(name, value)


def _is_no_secret(value: str) -> bool:
    return value.lower() in ("true", "false", "yes", "no", "on", "off", "none") or bool(
        re.fullmatch(r"[0-9.]{1,5}", value)
    )


def stray(data: Any, trail: Trail = ()) -> list[tuple[Trail, str]]:
    """Return the places of credentials that do not belong there, and what to do about each."""
    if isinstance(data, dict):
        return [item for key, value in data.items() for item in stray(value, (*trail, key))]
    if isinstance(data, list):
        return [item for i, value in enumerate(data) for item in stray(value, (*trail, i))]
    if isinstance(data, str) and trail[:1] == ("requirements",):
        return [(trail, IN_REQUIREMENT)] if in_requirement(data) else []
    if isinstance(data, str) and _is_stray(data, trail):
        return [(trail, "holds a credential; put it in env and use its variable here")]
    return []


IN_REQUIREMENT = (
    "holds a credential, which everybody on the site could read in pip's arguments; put it on the "
    "site into ~/.netrc (chmod 600), which pip and git read, and leave it out of the URL"
)


def in_requirement(text: str) -> bool:
    """Return whether a line for pip holds a credential, or a variable as the user of a URL.

    pip puts the value of `${TOKEN}` into git's arguments, which everybody can read.
    """
    return has_credential(text) or bool(_SHAPES.search(text))


def _is_stray(text: str, trail: Trail) -> bool:
    if any(each.search(text) for each in (_URL, _TOKEN_URL, _SHAPES)):
        return True
    if trail[:2] == ("framework", "command"):
        return _ASSIGNED.search(text) is not None
    words = re.split(r"[^A-Z0-9]+", str(trail[-1]).upper()) if trail else []
    in_arguments = trail[:2] == ("framework", "arguments") and not _is_no_secret(text)
    return in_arguments and (bool(_WORDS.intersection(words)) or words[-2:] == ["API", "KEY"])
