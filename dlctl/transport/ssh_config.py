"""Finds out how to reach an ssh host: by `ssh -G` if there is an ssh client, else by our parser.

`ssh -G` knows Include, Match and every default of this machine, and does not connect. This module
knows nothing about paramiko: the parser for machines without a client is passed in.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.errors import ConnectError, TransportTimeout

_TIMEOUT_S = 20.0
_CONFIG_VARIABLE = "DLCTL_SSH_CONFIG"
_DEFAULT_IDENTITIES = ("id_rsa", "id_ecdsa", "id_ed25519")

Options = dict[str, list[str]]
"""Lower-case option → its values."""


@dataclass(frozen=True)
class Target:
    """Everything about one host that a connection needs."""

    alias: str
    """What the user calls it."""
    hostname: str
    port: int
    user: str
    identity_files: list[Path] = field(default_factory=list)
    certificate_files: list[Path] = field(default_factory=list)
    identities_only: bool = False
    identity_agent: str | None = None
    """Path of the agent's socket; None if there is none."""
    proxy_jump: list[str] = field(default_factory=list)
    """`[user@]host[:port]`, the nearest first."""
    proxy_command: str | None = None
    known_hosts_files: list[Path] = field(default_factory=list)
    host_key_alias: str | None = None
    methods: frozenset[str] = frozenset({"publickey", "keyboard-interactive", "password"})
    """Authentication methods that the user has not disabled."""
    login_command: str = ""
    """The command with which a user logs in there."""

    @property
    def name(self) -> str:
        """Return `user@host:port`."""
        return f"{self.user}@{self.hostname}:{self.port}"


def config_file() -> Path | None:
    """Return the ssh config file to use instead of the user's own, if one is set."""
    value = os.environ.get(_CONFIG_VARIABLE)
    return Path(value).expanduser() if value else None


def resolve(
    host: str,
    user: str | None,
    port: int | None,
    config: Path | None,
    parse: Callable[[str, Path], Options],
) -> Target:
    """Return how to reach a host; `user` and `port` win over the config file.

    Raises:
        ConnectError: the config file has an error.
    """
    words = ["ssh"]
    words += ["-F", str(config)] if config else []
    words += ["-p", str(port)] if port else []
    words += ["-l", user] if user else []
    if shutil.which("ssh"):
        options = _ask_ssh([*words, "-G", "--", host])
    else:
        options = _parsed(host, config, parse)
    login = [*words, host]
    return _target(host, user, port, options, " ".join(_readable(word) for word in login))


def _ask_ssh(argv: list[str]) -> Options:
    try:
        answer = subprocess.run(
            argv, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TransportTimeout(f"`{' '.join(argv)}` did not end in {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ConnectError(f"ssh did not start: {error.strerror}") from error
    if answer.returncode:
        said = answer.stderr.decode(errors="replace").strip().splitlines()
        fault = [line for line in said if ": line " in line] or said or [str(answer.returncode)]
        raise ConnectError(
            f"ssh can't read its configuration: {fault[-1].strip()}",
            hint="Correct the line in the ssh config file.",
        )
    options: Options = {}
    for line in answer.stdout.decode("utf-8", "surrogateescape").splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value)
    return options


def _parsed(host: str, config: Path | None, parse: Callable[[str, Path], Options]) -> Options:
    own = config or Path.home() / ".ssh" / "config"
    options = parse(host, own) if own.is_file() else {}
    folder = Path.home() / ".ssh"
    options.setdefault("identityfile", [str(folder / name) for name in _DEFAULT_IDENTITIES])
    options.setdefault("userknownhostsfile", [str(folder / "known_hosts")])
    options.setdefault("globalknownhostsfile", ["/etc/ssh/ssh_known_hosts"])
    return options


def _target(
    host: str, user: str | None, port: int | None, options: Options, login_command: str
) -> Target:
    def one(key: str) -> str | None:
        value = options.get(key, [""])[0].strip()
        return None if value.lower() in ("", "none") else value

    hostname = one("hostname") or host
    user = user or one("user") or getpass.getuser()
    port = port or int(one("port") or 22)
    tokens = {
        "%": "%", "h": hostname, "n": host, "p": str(port), "r": user, "d": str(Path.home()),
        "u": getpass.getuser(), "i": str(os.getuid()) if hasattr(os, "getuid") else "",
        "l": socket.gethostname(),
        "L": socket.gethostname().partition(".")[0], "k": one("hostkeyalias") or host,
        "j": one("proxyjump") or "",
    }  # fmt: skip

    def paths(*keys: str) -> list[Path]:
        values = [value for key in keys for value in options.get(key, [])]
        return [Path(_expand(v, tokens)) for v in values if v and v.lower() != "none"]

    def words(key: str) -> list[str]:
        return [word.strip('"') for value in options.get(key, []) for word in value.split()]

    known = [*words("userknownhostsfile"), *words("globalknownhostsfile")]
    proxy_command = one("proxycommand")
    jump = one("proxyjump")
    return Target(
        alias=host,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=paths("identityfile"),
        certificate_files=paths("certificatefile"),
        identities_only=one("identitiesonly") == "yes",
        identity_agent=_agent(options, tokens),
        proxy_jump=[hop.strip() for hop in jump.split(",")] if jump else [],
        proxy_command=_expand_tokens(proxy_command, tokens) if proxy_command else None,
        known_hosts_files=[Path(_expand(f, tokens)) for f in known if f.lower() != "none"],
        host_key_alias=one("hostkeyalias"),
        methods=_methods(options),
        login_command=login_command,
    )


def _methods(options: Options) -> frozenset[str]:
    switches = {
        "pubkeyauthentication": "publickey",
        "kbdinteractiveauthentication": "keyboard-interactive",
        "passwordauthentication": "password",
    }
    return frozenset(
        method for key, method in switches.items() if options.get(key, ["yes"])[0] != "no"
    )


def _agent(options: Options, tokens: dict[str, str]) -> str | None:
    value = options.get("identityagent", ["SSH_AUTH_SOCK"])[0].strip()
    if value.lower() == "none":
        return None
    if value in ("", "SSH_AUTH_SOCK"):
        return os.environ.get("SSH_AUTH_SOCK") or None
    return os.environ.get(value[1:]) if value.startswith("$") else _expand(value, tokens)


def _expand(value: str, tokens: dict[str, str]) -> str:
    text = re.sub(
        r"\$\{(\w+)\}",
        lambda m: os.environ.get(m.group(1), m.group(0)),
        _expand_tokens(value.strip().strip('"'), tokens),
    )
    return str(Path(text).expanduser())


def _expand_tokens(value: str, tokens: dict[str, str]) -> str:
    return re.sub(r"%(.)", lambda m: tokens.get(m.group(1), m.group(0)), value)


def split_hop(hop: str) -> tuple[str, str | None, int | None]:
    """Return host, user and port of `[user@]host[:port]` or `ssh://…`."""
    user, _, place = hop.removeprefix("ssh://").rstrip("/").rpartition("@")
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", place)
    if not match:
        raise ConnectError(f"ProxyJump {hop!r} is not of the form [user@]host[:port]")
    host = match.group(1) or match.group(3) or match.group(5)
    port = match.group(2) or match.group(4)
    return host, user or None, int(port) if port else None


def _readable(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else "'" + word.replace("'", "'\\''") + "'"
