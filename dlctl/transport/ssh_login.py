"""Checks a host's key and logs in, as paramiko's `SSHClient` asks for it.

The order is OpenSSH's: keys of the agent, key files (with their certificates), questions, password.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import paramiko

from dlctl.errors import AuthError, HostKeyError
from dlctl.transport.base import Prompt
from dlctl.transport.openssh import PERSON_TIMEOUT_S
from dlctl.transport.ssh_config import Target

USE_OPENSSH = "set `kind: openssh` below `transport` in the site's file"
_TRIES = 3
_SWITCHES = {
    "publickey": "pubkeyauthentication", "password": "passwordauthentication",
    "keyboard-interactive": "kbdinteractiveauthentication",
}  # fmt: skip
"""Method → the option by which the user forbids it."""
_STEPS = 4
"""A server with a second factor accepts one method and then asks for the next."""


def _fingerprint(key: paramiko.PKey) -> str:
    """Return what `ssh` and `ssh-keygen -l` show."""
    digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _is_named(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a host is among the patterns of a line of known hosts, with `*` and `?`."""
    shapes = [re.escape(each).replace(r"\*", ".*").replace(r"\?", ".") for each in patterns]
    return any(re.fullmatch(shape, name) for shape in shapes)


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Refuses host keys that are unknown, changed or revoked.

    A host is found by its name alone or hashed, not by a pattern with `*` or `?`.
    """

    def __init__(self, target: Target) -> None:
        self._target, self._name = target, target.option("hostkeyalias") or target.hostname.lower()
        self._plain = self._name
        if target.port != 22 and not target.option("hostkeyalias"):
            self._name = f"[{self._name}]:{target.port}"
        self._revoked: dict[str, Path] = {}
        self._vouching: Path | None = None
        """The file that names an authority for this host; paramiko can't read certificates."""
        self._known: list[tuple[Path, str, paramiko.PKey]] = []
        """The file, one of the two names, and the key."""
        files = target.option("userknownhostsfile") or "~/.ssh/known_hosts"
        more = target.option("globalknownhostsfile") or "/etc/ssh/ssh_known_hosts"
        for word in f"{files} {more}".split():
            with contextlib.suppress(OSError):  # its hosts stay unknown, and are refused
                self._read(Path(word.strip('"')).expanduser())

    def _read(self, file: Path) -> None:
        for line in file.read_text(errors="replace").splitlines():
            words = line.split()
            if words[:1] == ["@revoked"]:
                self._revoked |= dict.fromkeys(words[3:4], file)
                continue
            if words[:1] == ["@cert-authority"]:
                patterns = ",".join(words[1:2]).lower().split(",")
                if any(_is_named(name, patterns) for name in (self._name, self._plain)):
                    self._vouching = file
                continue
            with contextlib.suppress(Exception):  # a damaged line makes no host known
                listed, kind, key = words[:3]
                for name in {self._name, self._plain}:
                    if name in listed.lower().split(",") or (
                        listed[0] == "|" and paramiko.HostKeys.hash_host(name, listed) == listed
                    ):
                        known = paramiko.PKey.from_type_string(kind, base64.b64decode(key))
                        self._known.append((file, name, known))

    def prefer(self, options: Any) -> None:
        """Ask the server for a known kind of key: another kind would look unknown."""
        kinds = {key.get_name() for _, name, key in self._known if name == self._name}
        if "ssh-rsa" in kinds:
            kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
        options.key_types = tuple(sorted(options.key_types, key=lambda kind: kind not in kinds))

    def missing_host_key(self, _client: object, _hostname: str, key: paramiko.PKey) -> None:
        """Refuse a host key that is not known for this name: nothing else is in the client's list.

        Raises:
            HostKeyError: has the fingerprint, and the command that accepts it.
        """
        target, shown = self._target, f"{key.get_name()} {_fingerprint(key)}"
        if file := self._revoked.get(key.get_base64()):
            raise HostKeyError(
                f"{target.name}: its host key {shown} is marked as revoked in {file}",
                hint="Ask the administrators of the host.",
            )
        known = [(file, each) for file, name, each in self._known if name == self._name]
        # As OpenSSH does: the same key known for the plain name is good enough.
        known = known or [(file, each) for file, _, each in self._known if each == key]
        if any(each == key for _, each in known):
            return
        for file, each in known:
            if each.get_name() == key.get_name():
                raise HostKeyError(
                    f"{target.name}: the host key has CHANGED: it shows {shown}, and {file} has "
                    f"{_fingerprint(each)}: someone may be listening, or the host is a new one",
                    hint="Ask its administrators. If the new key is right: ssh-keygen -R "
                    f"'{self._name}' -f '{file}' ; then {target.login_command}",
                )
        keeper = f"{self._vouching} leaves it to a certificate authority (@cert-authority)"
        if command := target.option("knownhostscommand"):
            keeper = f"the ssh configuration leaves it to a KnownHostsCommand ({command})"
        if self._vouching or command:
            raise HostKeyError(
                f"{target.name}: the host key is unknown: {shown}; {keeper}, which this transport "
                "can't ask",
                hint=f"The system's ssh can: {USE_OPENSSH}",
            )
        raise HostKeyError(
            f"{target.name}: the host key is unknown: {shown}",
            hint="Compare it with what the site publishes, then accept it by logging in once: "
            f"{target.login_command}",
        )


class Login:
    """Logs in with what the user has: a strategy of `SSHClient`.

    Args:
        prompt: Asks the user; None: nobody is there.
    """

    def __init__(self, target: Target, prompt: Prompt | None) -> None:
        self._target, self._ask = target, prompt
        self._tried: list[str] = []
        self._has_begun = False

    def step(self) -> str:
        """Return what a failure has interrupted."""
        return "logging in" if self._has_begun else "setting up the connection"

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Log in.

        Raises:
            AuthError: says what was tried, and what the server accepts.
        """
        self._has_begun, user = True, self._target.user
        try:
            transport.auth_none(user)
            return
        except paramiko.BadAuthenticationType as error:
            accepted = list(error.allowed_types)
        with contextlib.closing(paramiko.Agent()) as agent:
            tries = (partial(transport.auth_publickey, user, key) for key in self._keys(agent))
            steps: dict[str, Callable[[], list[str] | None]] = {
                "publickey": lambda: self._try_each(transport, tries),
                "keyboard-interactive": lambda: self._try_questions(transport),
                "password": lambda: self._try_password(transport),
            }
            for _ in range(_STEPS):
                methods = (
                    step
                    for method, step in steps.items()
                    if method in accepted
                    and self._target.option(_SWITCHES[method]) not in ("no", "false")
                )
                answer = next((found for step in methods if (found := step()) is not None), None)
                if answer == []:
                    return
                if answer is None:
                    break
                accepted = answer
        raise AuthError(
            f"{self._target.name}: no credential was accepted "
            f"(tried: {', '.join(self._tried) or 'nothing'}); the server accepts "
            f"{' or '.join(accepted)}",
            hint=f"Does `{self._target.login_command}` work? A key that it uses must be in the "
            "agent (ssh-add) or named by IdentityFile in ~/.ssh/config.",
        )

    def _try_each(
        self, transport: paramiko.Transport, attempts: Iterator[Callable[[], list[str]]]
    ) -> list[str] | None:
        """Return the methods that the first accepted attempt leaves to do; None: all refused."""
        for attempt in attempts:
            try:
                return list(attempt())
            except paramiko.AuthenticationException as error:
                if not transport.is_active():
                    raise AuthError(
                        f"the server ended the login: {error}",
                        hint="It may have seen too many keys: set IdentityFile and "
                        "`IdentitiesOnly yes` for this host in ~/.ssh/config.",
                    ) from error
                if "timeout" in str(error).lower():
                    raise
        return None

    # Keys

    def _keys(self, agent: paramiko.Agent) -> Iterator[paramiko.PKey]:
        names = map(os.path.expandvars, self._identity_files())
        files = [Path(name).expanduser() for name in names]
        public = [blob for file in files if (blob := _public_part(file))]
        own_only = self._target.option("identitiesonly") == "yes"
        held = [key for key in agent.get_keys() if key.asbytes() in public or not own_only]
        for key in sorted(held, key=lambda each: each.asbytes() not in public):
            self._tried.append(f"agent key {key.comment or key.get_name()}")
            yield key
        in_agent = [key.asbytes() for key in held]
        for file in files:
            if (
                not file.is_file()
                or _public_part(file) in in_agent
                or not (key := self._load(file))
            ):
                continue
            self._tried.append(str(file))
            yield key
            if key.public_blob is not None:  # the certificate was not accepted
                key.public_blob = None
                yield key

    def _identity_files(self) -> list[str]:
        default = [f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ed25519")]
        return list(self._target.options.get("identityfile", default))

    def _load(self, file: Path) -> Any:
        """Return a key with its certificate; None if it can't be used."""
        passphrase: bytes | None = None
        for left in range(_TRIES, -1, -1):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # cryptography's, about old kinds
                    return paramiko.PKey.from_path(file, passphrase)  # type: ignore[arg-type]
            except Exception as error:  # as many classes as kinds of keys: a security key's, too
                locked = "password" in str(error).lower() or passphrase is not None
                if not locked:
                    self._tried.append(f"{file} (can't be read: {error})")
                    return None
            if self._ask is None:
                self._tried.append(f"{file} (encrypted, and no terminal to ask for the passphrase)")
                return None
            question = f"Passphrase of {file}: "
            if not left or not (passphrase := self._answer(question, True).encode()):
                break
        self._tried.append(f"{file} (wrong passphrase)")
        return None

    # Questions

    def _answer(self, text: str, hidden: bool) -> str:
        assert self._ask is not None
        try:
            return self._ask(text, hidden)
        except EOFError:
            question = text.strip().splitlines()[-1]
            raise AuthError(
                f"{self._target.name}: the login was cancelled: nobody answered {question!r}",
                hint="Answer it at a terminal, or load a key into the agent: ssh-add",
            ) from None

    def _try_questions(self, transport: paramiko.Transport) -> list[str] | None:
        if self._ask is None:
            self._tried.append("keyboard-interactive (no terminal to ask on)")
            return None
        failures: list[BaseException] = []

        def answer(title: str, text: str, questions: Sequence[tuple[str, bool]]) -> list[str]:
            head = "".join(f"{part.strip()}\n" for part in (title, text) if part.strip())
            try:
                return [self._answer(f"{head if not n else ''}{question}", not shown)
                        for n, (question, shown) in enumerate(questions)]  # fmt: skip
            except BaseException as error:  # raised again in the caller's thread
                failures.append(error)
                return [""] * len(questions)

        def attempt() -> list[str]:
            try:
                return transport.auth_interactive(self._target.user, answer)
            finally:
                if failures:
                    raise failures[0]

        self._tried.append("keyboard-interactive")
        transport.auth_timeout = PERSON_TIMEOUT_S
        return self._try_each(transport, iter([attempt] * _TRIES))

    def _try_password(self, transport: paramiko.Transport) -> list[str] | None:
        if self._ask is None:
            self._tried.append("password (no terminal to ask on)")
            return None
        self._tried.append("password")

        def attempt() -> list[str]:
            password = self._answer(f"Password of {self._target.name}: ", True)
            return transport.auth_password(self._target.user, password, fallback=False)

        return self._try_each(transport, iter([attempt] * _TRIES))


def _public_part(file: Path) -> bytes | None:
    """Return the public key from the file next to a private key; needs no passphrase."""
    for place in (file.with_name(file.name + ".pub"), file):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = place.read_text().split()
            if words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1], validate=True)
    return None
