"""Reads known_hosts files as OpenSSH does: hashed names, `[host]:port`, patterns, revoked keys.

Refuses unknown, changed and revoked keys. Knows nothing about connections.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fnmatch
import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dlctl.errors import HostKeyError
from dlctl.transport.ssh_config import Target


@dataclass(frozen=True)
class KnownKey:
    """A line of a known_hosts file that names the host."""

    marker: str
    """Empty, `@revoked` or `@cert-authority`."""
    key_type: str
    key: bytes
    file: Path


def host_name(hostname: str, port: int, alias: str | None) -> str:
    """Return the name under which known_hosts files list a host's keys."""
    if alias:
        return alias
    return hostname.lower() if port == 22 else f"[{hostname.lower()}]:{port}"


def known_keys(files: Sequence[Path], name: str) -> list[KnownKey]:
    """Return all keys that the files list for a name, in order."""
    found = []
    for file in files:
        # An unreadable file makes its hosts unknown, so they are refused.
        with contextlib.suppress(OSError):
            lines = file.read_text(errors="replace").splitlines()
            found += [key for line in lines for key in _parse(line, name, file)]
    return found


def fingerprint(key: bytes) -> str:
    """Return the fingerprint that `ssh` and `ssh-keygen -l` show."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _parse(line: str, name: str, file: Path) -> Iterator[KnownKey]:
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or not _matches(words[0], name):
        return
    with contextlib.suppress(binascii.Error, ValueError):
        yield KnownKey(marker, words[1], base64.b64decode(words[2], validate=True), file)


def _matches(hosts: str, name: str) -> bool:
    if hosts.startswith("|1|"):
        return _matches_hash(hosts, name)
    matched = False
    for pattern in hosts.lower().split(","):
        negated = pattern.startswith("!")
        # In OpenSSH only `*` and `?` are special: the brackets of `[host]:port` are not.
        text = pattern.lstrip("!").replace("[", "[[]")
        if fnmatch.fnmatchcase(name.lower(), text):
            if negated:
                return False
            matched = True
    return matched


def _matches_hash(hosts: str, name: str) -> bool:
    with contextlib.suppress(binascii.Error, ValueError):
        _, _, salt, digest = hosts.split("|")
        # The format prescribes HMAC-SHA1; it hides host names and protects no key.
        seen = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(seen, base64.b64decode(digest))
    return False


def verify_host_key(
    target: Target, name: str, key_type: str, key: bytes, known: list[KnownKey]
) -> None:
    """Refuse a host key that is not known for this name.

    Raises:
        HostKeyError: has the fingerprint, and the command that accepts it.
    """
    seen = f"{key_type} {fingerprint(key)}"
    same = [entry for entry in known if entry.key == key and entry.marker != "@cert-authority"]
    if any(entry.marker == "@revoked" for entry in same):
        raise HostKeyError(
            f"{target.name}: its host key {seen} is marked as revoked in {same[0].file}",
            hint="Ask the administrators of the host.",
        )
    if same:
        return
    other = [entry for entry in known if entry.key_type == key_type and not entry.marker]
    if other:
        forget = f"ssh-keygen -R '{name}' -f '{other[0].file}'"
        raise HostKeyError(
            f"{target.name}: the host key has CHANGED: it shows {seen}, and {other[0].file} has "
            f"{fingerprint(other[0].key)}: someone may be listening, or the host is a new one",
            hint=f"Ask its administrators. If the new key is right: {forget} ; then "
            f"{target.login_command}",
        )
    raise HostKeyError(
        f"{target.name}: the host key is unknown: {seen}",
        hint="Compare it with what the site publishes, then accept it by logging in once: "
        f"{target.login_command}",
    )
