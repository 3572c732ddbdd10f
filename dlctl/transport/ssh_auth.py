"""Logs in: which key, password or answer is tried when, and what the user is asked.

The order is OpenSSH's: keys of the agent, key files (with their certificates), questions, password.
Knows nothing about paramiko: `ssh.py` passes in a session.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import getpass
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from dlctl.contract.ground.safe_text import printable_lines
from dlctl.errors import AuthError
from dlctl.transport.base import Prompt
from dlctl.transport.ssh_config import Target

PERSON_TIMEOUT_S = 180.0
"""How long the user may take to answer, or to confirm on a phone."""
_TRIES = 3

AnswerQuestions = Callable[[str, str, Sequence[tuple[str, bool]]], list[str]]
"""Title, instructions, and questions with whether the answer is shown → answers."""
Attempt = Callable[[], Sequence[str]]
Closer = Callable[[], None]


class PassphraseNeeded(Exception):  # noqa: N818 - a question, not an error
    """The key file is encrypted."""


class Unusable(Exception):  # noqa: N818 - the same
    """The key file can't be read, or the passphrase is wrong."""


class LoginSession(Protocol):
    """A connection that is to be logged in; see `ssh._LoginSession`."""

    def methods(self) -> list[str]: ...  # noqa: D102
    def try_key(self, key: object) -> list[str] | None: ...  # noqa: D102
    def try_password(self, password: str) -> list[str] | None: ...  # noqa: D102
    def try_answers(self, answer: AnswerQuestions) -> list[str] | None: ...  # noqa: D102
    def agent_keys(self, path: str) -> tuple[list[tuple[str, object, bytes]], Closer]: ...  # noqa: D102
    def load_key(self, file: Path, passphrase: str | None) -> object: ...  # noqa: D102
    def with_certificate(self, key: object, file: Path | None) -> bool: ...  # noqa: D102


def terminal_prompt() -> Prompt | None:
    """Return a way to ask the user at the terminal, or None if there is no terminal."""
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        return None

    def ask(text: str, hidden: bool) -> str:
        text = printable_lines(text)  # a server may ask anything
        if hidden:
            return getpass.getpass(text)
        sys.stderr.write(text)
        sys.stderr.flush()
        return sys.stdin.readline().rstrip("\n")

    return ask


def closed_by_server(said: str) -> AuthError:
    """Return the error for a server that hung up during the login."""
    return AuthError(
        f"the server ended the login: {said}",
        hint="It may have seen too many keys: set IdentityFile and `IdentitiesOnly yes` for this "
        "host in ~/.ssh/config.",
    )


def authenticate(session: LoginSession, target: Target, prompt: Prompt | None) -> None:
    """Log in.

    Raises:
        AuthError: says what was tried, and what the server accepts.
    """
    _Login(session, target, prompt).run()


class _Login:
    def __init__(self, session: LoginSession, target: Target, prompt: Prompt | None) -> None:
        self._session = session
        self._target = target
        self._prompt = None if prompt is None else self._answered(prompt)
        self._notes: list[str] = []

    def _answered(self, prompt: Prompt) -> Prompt:
        def ask(text: str, hidden: bool) -> str:
            try:
                return prompt(text, hidden)
            except EOFError:
                question = text.strip().splitlines()[-1]
                raise AuthError(
                    f"{self._target.name}: the login was cancelled: nobody answered {question!r}",
                    hint="Answer it at a terminal, or load a key into the agent: ssh-add",
                ) from None

        return ask

    def run(self) -> None:
        asked = self._session.methods()
        if not asked:
            return
        with contextlib.ExitStack() as stack:
            keys = self._keys(stack)
            steps: dict[str, Callable[[], list[str] | None]] = {
                "publickey": lambda: self._try_keys(keys),
                "keyboard-interactive": self._try_questions,
                "password": self._try_password,
            }
            # A server with a second factor accepts one method and then asks for the next.
            for _ in range(4):
                answer = self._step(asked, steps)
                if answer is None:
                    break
                if not answer:
                    return
                asked = answer
        raise AuthError(
            f"{self._target.name}: no credential was accepted "
            f"(tried: {', '.join(self._notes) or 'nothing'}); the server accepts "
            f"{' or '.join(asked)}",
            hint=f"Does `{self._target.login_command}` work? A key that it uses must be in the "
            "agent (ssh-add) or named by IdentityFile in ~/.ssh/config.",
        )

    def _step(
        self, asked: Sequence[str], steps: dict[str, Callable[[], list[str] | None]]
    ) -> list[str] | None:
        for method, attempt in steps.items():
            if method in asked and method in self._target.methods:
                answer = attempt()
                if answer is not None:
                    return answer
        return None

    # Keys

    def _try_keys(self, keys: Iterator[tuple[str, object]]) -> list[str] | None:
        for label, key in keys:
            self._notes.append(label)
            answer = self._session.try_key(key)
            if answer is not None:
                return answer
        return None

    def _keys(self, stack: contextlib.ExitStack) -> Iterator[tuple[str, object]]:
        public = {blob for f in self._target.identity_files if (blob := _public_part(f))}
        in_agent: set[bytes] = set()
        if self._target.identity_agent:
            found, close = self._session.agent_keys(self._target.identity_agent)
            stack.callback(close)
            found.sort(key=lambda item: item[2] not in public)
            for comment, key, blob in found:
                if blob in public or not self._target.identities_only:
                    in_agent.add(blob)
                    yield f"agent key {comment}", key
        for file in self._target.identity_files:
            if file.is_file() and _public_part(file) not in in_agent:
                yield from self._file_keys(file)

    def _file_keys(self, file: Path) -> Iterator[tuple[str, object]]:
        key = self._load(file)
        if key is None:
            return
        own = file.with_name(file.name + "-cert.pub")
        for certificate in [*self._target.certificate_files, own]:
            if certificate.is_file() and self._session.with_certificate(key, certificate):
                yield f"{file} with {certificate.name}", key
        self._session.with_certificate(key, None)
        yield str(file), key

    def _load(self, file: Path) -> object | None:
        try:
            return self._session.load_key(file, None)
        except Unusable as error:
            self._notes.append(f"{file} (can't be read: {error})")
            return None
        except PassphraseNeeded:
            pass
        if self._prompt is None:
            self._notes.append(f"{file} (encrypted, and no terminal to ask for the passphrase)")
            return None
        for _ in range(_TRIES):
            passphrase = self._prompt(f"Passphrase of {file}: ", True)
            if not passphrase:
                break
            with contextlib.suppress(Unusable):
                return self._session.load_key(file, passphrase)
        self._notes.append(f"{file} (wrong passphrase)")
        return None

    # Questions

    def _try_questions(self) -> list[str] | None:
        prompt = self._prompt
        if prompt is None:
            self._notes.append("keyboard-interactive (no terminal to ask on)")
            return None
        failures: list[BaseException] = []

        def answer(title: str, text: str, questions: Sequence[tuple[str, bool]]) -> list[str]:
            head = "\n".join(part for part in (title.strip(), text.strip()) if part)
            try:
                return [
                    prompt(f"{head}\n{question}" if head and not i else question, not shown)
                    for i, (question, shown) in enumerate(questions)
                ]
            except BaseException as error:  # raised again in the caller's thread
                failures.append(error)
                return [""] * len(questions)

        self._notes.append("keyboard-interactive")
        for _ in range(_TRIES):
            result = self._session.try_answers(answer)
            if failures and isinstance(failures[0], AuthError):
                raise failures[0]
            if failures:
                raise AuthError(f"{self._target.name}: the login was cancelled") from failures[0]
            if result is not None:
                return result
        return None

    def _try_password(self) -> list[str] | None:
        if self._prompt is None:
            self._notes.append("password (no terminal to ask on)")
            return None
        self._notes.append("password")
        for _ in range(_TRIES):
            password = self._prompt(f"Password of {self._target.name}: ", True)
            result = self._session.try_password(password) if password else None
            if result is not None or not password:
                return result
        return None


def _public_part(file: Path) -> bytes | None:
    """Return the public key from the file next to a private key; needs no passphrase."""
    for place in (file.with_name(file.name + ".pub"), file):
        with contextlib.suppress(OSError, binascii.Error, ValueError, IndexError):
            words = place.read_text().split()
            if words[0].startswith(("ssh-", "ecdsa-", "sk-")):
                return base64.b64decode(words[1], validate=True)
    return None
