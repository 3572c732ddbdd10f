"""Find the way to a host in the ssh configuration, for paramiko and for the doctor.

`ssh -G` knows Include, Match and every default of this machine; paramiko's own parser, for machines
without an ssh client, knows no Include.
"""

from __future__ import annotations

import contextlib
import getpass
import importlib
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

from dlctl.errors import ConnectError
from dlctl.sites.files import TransportSettings
from dlctl.transport.openssh import config_file, ssh_words

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside of paramiko and cryptography
    # paramiko imports invoke, and with it asyncio and unittest.mock, for `Match exec` alone: a
    # third of its cost. `_configuration` brings it back where paramiko parses.
    _invoke = sys.modules.get("invoke")
    sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        import paramiko
    finally:
        del sys.modules["invoke"]
        if _invoke is not None:
            sys.modules["invoke"] = _invoke

_ASK_S = 20.0


@dataclass(frozen=True)
class Target:
    """The way to one host, by the ssh configuration."""

    hostname: str
    port: int
    user: str
    options: paramiko.SSHConfigDict
    login_command: str
    """The command with which a user logs in there."""

    @property
    def name(self) -> str:
        """Return `user@host:port`."""
        return f"{self.user}@{self.hostname}:{self.port}"

    def option(self, key: str) -> str:
        """Return the value of an option, or nothing."""
        value = str(self.options.get(key) or "").strip()
        return "" if value.lower() == "none" else value

    @property
    def jumps(self) -> list[str]:
        """Return the hops on the way, `[user@]host[:port]`, the last the nearest to the host."""
        return [hop.strip() for hop in self.option("proxyjump").split(",") if hop.strip()]


def target_of(settings: TransportSettings, config: Path | None = None) -> Target:
    """Return how a site is reached, by `ssh -G` if there is an ssh client; nothing connects.

    Raises:
        ConnectError: the ssh configuration has an error.
    """
    assert settings.host is not None
    config = config or config_file()
    words = ["ssh", *ssh_words(settings, config)]
    try:
        text = _configuration(words, settings.host, config or Path.home() / ".ssh/config")
        options = paramiko.SSHConfig.from_text(text).lookup(settings.host)
    except (paramiko.SSHException, OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise ConnectError(f"the ssh configuration for {settings.host} can't be read: {error}",
                           hint="Correct the ssh config file.") from error  # fmt: skip
    return Target(
        options["hostname"], settings.port or int(options.get("port", 22)),
        settings.user or options.get("user") or getpass.getuser(), options,
        shlex.join([*words, settings.host]),
    )  # fmt: skip


def _configuration(words: list[str], host: str, file: Path) -> str:
    if not shutil.which("ssh"):
        with contextlib.suppress(ImportError):
            vars(paramiko.config)["invoke"] = importlib.import_module("invoke")
        return file.read_text(encoding="utf-8") if file.is_file() else ""
    end = subprocess.run([*words, "-G", "--", host], capture_output=True, text=True, check=False,
                         stdin=subprocess.DEVNULL, timeout=_ASK_S)  # fmt: skip
    if end.returncode:
        lines = end.stderr.strip().splitlines()
        fault = [line for line in lines if ": line " in line] or lines or [str(end.returncode)]
        raise ConnectError(f"ssh can't read its configuration: {fault[-1].strip()}",
                           hint="Correct the line in the ssh config file.")  # fmt: skip
    # ssh has made the name canonical already, and older ones print such options without a value.
    lines = end.stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("canonical") and " " in line)


def split_hop(hop: str) -> tuple[str, str | None, int | None]:
    """Return host, user and port of `[user@]host[:port]` or `ssh://…`."""
    user, _, place = hop.removeprefix("ssh://").rstrip("/").rpartition("@")
    found = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?|(.+)", place)
    if not found:
        raise ConnectError(f"ProxyJump {hop!r} is not of the form [user@]host[:port]")
    port = found[2] or found[4]
    return found[1] or found[3] or found[5], user or None, int(port) if port else None
