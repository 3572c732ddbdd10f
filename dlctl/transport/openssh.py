"""Runs scripts by the system's ssh: one connection that stays open, a channel for each command.

The connection is OpenSSH's own master (ControlMaster), which stays when the command that opened it
has ended: a site that asks for a one-time code asks once a day. A command opens it, and lets ssh
ask on the terminal only where a log-in without questions was refused. No further connection is
made: where the master is gone, ssh would silently make one, and for that its ProxyCommand is
`false`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import socket
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from dlctl.contract.ground.processes import end_child
from dlctl.errors import (
    AuthError,
    ConnectError,
    ConnectionLost,
    HostKeyError,
    TransportError,
    TransportTimeout,
)
from dlctl.sites.files import TransportSettings
from dlctl.transport.algorithms import algorithm_hint
from dlctl.transport.local import LocalStreams
from dlctl.transport.script import ScriptTransport
from dlctl.transport.streams import end_group, session_refused

PERSON_TIMEOUT_S = 180.0
"""The time that the user has to answer, or to confirm on a phone."""
_QUICK_S = 10.0
"""Within this time the master on this machine answers."""
_ASKING = threading.Lock()
"""Threads that open several sites at once ask at the terminal one after the other."""
_IDLE_S = 60.0
"""A connection that nobody has used for so long is tried before a command trusts it."""
_KILL_GRACE_S = 5.0
_ERROR_BYTES = 4096
_SAY_S = 2.0
"""The time after ssh's end to read the rest of its standard error."""
_FAILED = 255
"""ssh's own exit code, and perhaps the script's."""
_PLAIN = ("IgnoreUnknown=*", "RemoteCommand=none", "RequestTTY=no",
          "ClearAllForwardings=yes", "ForwardX11=no", "ForwardAgent=no",
          "PermitLocalCommand=no")  # fmt: skip
"""Whatever the user's configuration says for people who log in. The first comes first: older
versions don't know the others (RemoteCommand came with 7.6), and it takes the place of the
user's own IgnoreUnknown, so it has to cover whatever that covers."""
_CHANNEL = ("ControlMaster=no", "ProxyCommand=false", "SessionType=default", "StdinNull=no",
            "ForkAfterAuthentication=no", "LogLevel=ERROR")  # fmt: skip
"""A ProxyCommand also rules out the configuration's ProxyJump; the last three came with 8.7."""
_REFUSED_SESSION = b"session request failed"
"""Printed by ssh where MaxSessions permits no further channel."""


def config_file() -> Path | None:
    """Return the ssh config file to use instead of the user's own, if one is set."""
    value = os.environ.get("DLCTL_SSH_CONFIG")
    return Path(value).expanduser() if value else None


def ssh_words(settings: TransportSettings, config: Path | None) -> list[str]:
    """Return the options of ssh that say where a site is."""
    words = ["-F", str(config)] if config else []
    words += [] if settings.port is None else ["-p", str(settings.port)]
    return words + ([] if settings.user is None else ["-l", settings.user])


class OpensshTransport(ScriptTransport):
    """One connection to one host, shared by all commands of this user on this machine.

    Args:
        settings: Where to.
        connect: The command that opens the connection where questions come.
        config: The configuration to use instead of the user's own.
        may_ask: ssh may ask on the terminal.

    Raises:
        ConnectError: there is no folder for the connection's socket, or this is Windows.
    """

    def __init__(
        self, settings: TransportSettings, connect: str = "", config: Path | None = None, *,
        may_ask: bool = False,
    ) -> None:  # fmt: skip
        if os.name == "nt":
            raise ConnectError(
                "the ssh of Windows can't share a connection between commands",
                hint="set `kind: ssh` under `transport:` in the site's file",
            )
        assert settings.host is not None
        self._settings, self._may_ask = settings, may_ask
        self._where = ssh_words(settings, config or config_file())
        self._connect = connect or shlex.join(["ssh", *self._where, settings.host])
        self._socket = control_path(settings.host, *self._where)
        self.name = f"{settings.user}@{settings.host}" if settings.user else settings.host

    # The connection -----------------------------------------------------------------------------

    def is_open(self) -> bool:
        """Return whether a master listens: one that was killed leaves its socket."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(self._socket))
            return True
        return False

    def open(self, *, ask: bool) -> None:
        """Open the connection, unless it is there.

        Args:
            ask: ssh may ask on the terminal.

        Raises:
            AuthError, ConnectError, HostKeyError, TransportTimeout
        """
        with self._one_at_a_time():
            if self.is_open():
                return
            self._socket.unlink(missing_ok=True)  # of a machine that was switched off
            with tempfile.TemporaryFile() as errors:
                self._open_master(errors, ask=ask)

    def _open_master(self, errors: IO[bytes], *, ask: bool) -> None:
        settings, known = self._settings, self._configured()
        ciphers = sorted(known.get("ciphers", "").split(","), key=lambda name: "-gcm@" not in name)
        timeout_s = PERSON_TIMEOUT_S if ask else settings.connect_timeout_s + _QUICK_S
        options = [
            f"ControlPersist={settings.persist_s}",
            f"ConnectTimeout={settings.connect_timeout_s:.0f}",
            f"ServerAliveInterval={settings.keepalive_s:.0f}",
            f"StrictHostKeyChecking={'ask' if ask else 'yes'}",
            f"BatchMode={'no' if ask else 'yes'}",
            f"LogLevel={'INFO' if ask else 'ERROR'}",  # a banner is no reason
            *([f"Ciphers={','.join(ciphers)}"] if ciphers != [""] else []),
        ]
        argv = self._ssh("-M", "-N", "-f", options=options)
        own = None if ask else subprocess.DEVNULL
        try:
            # A file, and no pipe: the master keeps its standard error open.
            process = subprocess.Popen(
                argv, stdin=own, stdout=own, stderr=None if ask else errors,
                start_new_session=not ask,
            )  # fmt: skip
        except OSError as error:
            raise self._not_started(error) from error
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TransportTimeout(
                f"{self.name}: no answer in time ({timeout_s:g} s) while connecting",
                hint="Check host and network, or raise connect_timeout_s in the site's file.",
            ) from None
        finally:
            if process.poll() is None:  # by SIGTERM, as it may hide what is typed
                end_child(process, _KILL_GRACE_S)
        if code or not self.is_open():
            errors.seek(0)
            stderr = errors.read()[-_ERROR_BYTES:].decode(errors="replace")
            is_by_proxy = bool({"proxyjump", "proxycommand"} & known.keys())
            if not stderr.strip() or (is_by_proxy and "exchange_identification" in stderr):
                stderr = self._reason_by_another_try(ask=ask) or stderr
            raise self._refused(stderr, ask, known.get("proxyjump", ""))

    def _not_started(self, error: OSError) -> ConnectError:
        return ConnectError(
            f"{self.name}: ssh did not start: {error.strerror}",
            hint="Install OpenSSH's client, or set `kind: ssh` in the site's file.",
        )

    def _configured(self) -> dict[str, str]:
        """Return the options of this connection; none of an old version, which can't tell."""
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            known = subprocess.run(self._ssh("-G"), stdin=subprocess.DEVNULL, capture_output=True,
                                   text=True, timeout=_QUICK_S, check=False).stdout  # fmt: skip
            return dict(line.split(" ", 1) for line in known.splitlines() if " " in line)
        return {}

    def _reason_by_another_try(self, *, ask: bool) -> str:
        """Return why ssh fails, where it went to the terminal, or was dropped.

        A connection that stays drops the words of a jump host, and LogLevel=ERROR that the two
        sides have no algorithm in common.
        """
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "LogLevel=INFO"]
        options += ["PreferredAuthentications=none"] if ask else []  # no second wrong password
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            words = subprocess.run(
                self._ssh("-S", "none", "-T", options=options, command="true"), check=False,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=self._settings.connect_timeout_s + _QUICK_S, start_new_session=True,
            ).stderr  # fmt: skip
            if not (ask and "Permission denied" in words):
                return words.partition("kex_exchange")[0].strip() or words
        return ""

    def _refused(self, stderr: str, ask: bool, jump: str) -> TransportError:
        lines = [line.strip(" \r@") for line in stderr.splitlines()]
        silent = "it said why above" if ask else "ssh said nothing"
        last = next((line for line in reversed(lines) if line), silent)
        if wrong := re.search(r"^.* line \d+: .*$", stderr, re.MULTILINE):
            return ConnectError(
                f"ssh can't read its configuration: {wrong.group().strip()}",
                hint="Correct the line in the ssh config file.",
            )
        config = self._where[1] if self._where[:1] == ["-F"] else "~/.ssh/config"
        is_behind = "with UNKNOWN" in stderr  # which has the address of a jump host alone
        host = self._settings.host if is_behind or not jump else jump.rpartition("@")[2]
        if hint := algorithm_hint(stderr, str(host), config):
            return ConnectError(f"{self.name}: while connecting: {last}", hint=hint)
        if "host key" in stderr.lower():
            return self._wrong_host_key(stderr, last)
        if "Permission denied" in stderr:
            return AuthError(
                f"{self.name}: there is no open connection, and it takes more than your keys to "
                f"make one: {last}",
                hint=self._connect,
            )
        if "Too many authentication failures" in stderr:
            return AuthError(
                f"{self.name}: the server ended the login: {last}",
                hint="It may have seen too many keys: set IdentityFile and `IdentitiesOnly yes` "
                "for this host in ~/.ssh/config.",
            )
        if "exchange_identification" in stderr:
            return ConnectError(
                f"{self.name}: the server hung up before the log-in: {last}",
                hint="It may limit new connections (MaxStartups, fail2ban): wait some minutes "
                "before you try again.",
            )
        hint = self._connect if last == silent else "Check the address and the network."
        return ConnectError(f"{self.name}: while connecting: {last}", hint=hint)

    def _wrong_host_key(self, stderr: str, last: str) -> HostKeyError:
        """Return the error with the key's fingerprint, for which ssh has to try once more."""
        shows = ""
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            options = ["BatchMode=yes", "StrictHostKeyChecking=yes"]
            argv = self._ssh("-S", "none", "-v", "-T", options=options, command="true")
            end = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self._settings.connect_timeout_s,
                check=False,
            )
            keys = re.findall(r"Server host key: (\S+ SHA256:\S+)", end.stderr)
            shows = f": it shows {keys[-1]}" if keys else ""
        if "revoked" in stderr.lower():
            return HostKeyError(
                f"{self.name}: its host key is marked as revoked{shows}: {last}",
                hint="Ask the administrators of the host.",
            )
        if "CHANGED" in stderr:
            file = re.search(r"(?m)^Offending .* in (.*):\d+", stderr)
            forget = re.search(r"ssh-keygen .*", stderr)
            return HostKeyError(
                f"{self.name}: the host key has CHANGED{shows}, and "
                f"{file[1] if file else 'known_hosts'} has another one: someone may be listening, "
                "or the host is a new one",
                hint="Ask its administrators. If the new key is right: "
                f"{forget[0].strip() if forget else 'ssh-keygen -R HOST'} ; then {self._connect}",
            )
        return HostKeyError(
            f"{self.name}: the host key is unknown{shows}: {last}",
            hint="Compare it with what the site publishes, then accept it by logging in once: "
            f"{self._connect}",
        )

    def disconnect(self) -> bool:
        """End the connection, for all commands; return whether there was one."""
        was_open = self._socket.exists() and self._control("exit") == 0
        deadline = time.monotonic() + _QUICK_S
        # The master answers before it goes: the next command would meet its socket.
        while was_open and self.is_open() and time.monotonic() < deadline:
            time.sleep(0.01)
        return was_open

    def close(self) -> None:
        """Leave the connection to the next command."""

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Hold a lock: a second master would not be one, and its connection stay for ever."""
        import fcntl  # which only systems have whose ssh shares connections

        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(self._socket.with_suffix(".lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                raise ConnectError(
                    f"{self.name}: the folder of its connection, {self._socket.parent}, can't be "
                    f"used: {error.strerror}",
                    hint="Make room there, or set XDG_RUNTIME_DIR to another folder of yours.",
                ) from error
            yield

    def _control(self, order: str) -> int:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            return subprocess.run(
                self._ssh("-O", order), stdin=subprocess.DEVNULL, capture_output=True,
                timeout=_QUICK_S, check=False,
            ).returncode  # fmt: skip
        return _FAILED

    def _ssh(self, *words: str, options: list[str] | None = None, command: str = "") -> list[str]:
        given = [word for option in (*_PLAIN, *(options or [])) for word in ("-o", option)]
        assert self._settings.host is not None
        socket_ = str(self._socket).replace("%", "%%")  # by -S, as -o would split it at a space
        argv = ["ssh", *given, *self._where, "-S", socket_, *words, "--", self._settings.host]
        return [*argv, command] if command else argv

    # A channel ----------------------------------------------------------------------------------

    def _is_dead(self) -> bool:
        """Return whether the host does not answer by a connection that nobody used for a while.

        After a sleep, or in another network, ssh itself takes two minutes to notice. The connection
        is left to the commands that use it.
        """
        with contextlib.suppress(OSError):
            lock, before = self._socket.with_suffix(".lock"), self._socket.stat().st_ino
            idle_s = time.time() - lock.stat().st_mtime
            os.utime(lock)
            if 0 <= idle_s < _IDLE_S:
                return False
            argv = self._ssh("-T", options=[*_CHANNEL], command=":")
            try:  # no pipes: the connection would keep them open
                subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, check=False,
                               timeout=self._settings.connect_timeout_s)  # fmt: skip
                return not self.is_open()
            except subprocess.TimeoutExpired:
                pass
            with self._one_at_a_time():
                if self._socket.stat().st_ino == before:  # else another command was faster
                    self._control("stop")
                    self._socket.unlink(missing_ok=True)
        return not self.is_open()

    def _open(self, command: str) -> OpensshStreams:
        if not self.is_open() or self._is_dead():
            try:
                self.open(ask=False)
            except AuthError as error:
                if not self._may_ask or error.hint != self._connect:  # asking would not help
                    raise
                with _ASKING:
                    self.open(ask=True)
        return OpensshStreams(self, self.channel(command))

    def channel(self, command: str) -> subprocess.Popen[bytes]:
        """Start a command of the login shell; where the connection is gone it ends with 255."""
        try:
            return subprocess.Popen(
                self._ssh("-T", options=[*_CHANNEL], command=command),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise self._not_started(error) from error

    def broken(self, stderr: bytes) -> TransportError | None:
        """Return why ssh failed; None if the code is the command's own.

        Args:
            stderr: The first bytes of ssh's standard error, which are also the command's.
        """
        if self._control("check"):
            return ConnectionLost(
                f"{self.name}: the connection was lost while a command ran", hint="Try again."
            )
        if _REFUSED_SESSION not in stderr:
            return None
        return session_refused(self.name)


class OpensshStreams(LocalStreams):
    """The pipes of an ssh that runs one command by the open connection."""

    def __init__(self, transport: OpensshTransport, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process, transport.name)
        self._transport = transport
        self._errors, self._errors_ended = b"", threading.Event()
        self._has_begun = False

    def read_error(self, timeout_s: float) -> bytes:
        """Return some bytes of standard error; b"" at its end."""
        chunk = super().read_error(timeout_s)
        self._errors += chunk[: _ERROR_BYTES - len(self._errors)]
        if not chunk:
            self._errors_ended.set()
        return chunk

    def read(self, timeout_s: float) -> bytes:
        """Return some bytes of standard output; b"" at its end."""
        chunk = super().read(timeout_s)
        self._has_begun = self._has_begun or bool(chunk)
        if not chunk:
            with contextlib.suppress(TransportTimeout):
                self.exit_code(_QUICK_S)
        return chunk

    def exit_code(self, timeout_s: float) -> int:
        """Wait for the exit code; 128 + n after signal n.

        Raises:
            ConnectionLost, ConnectError
        """
        code = super().exit_code(timeout_s)
        if code == _FAILED:
            self._errors_ended.wait(_SAY_S)  # another thread reads it
            # Scripts print first that they have begun: what comes later is no refusal of ssh's.
            if error := self._transport.broken(b"" if self._has_begun else self._errors):
                raise error
        return code

    def kill(self, pid: int | None = None) -> None:
        """End ssh, and the script's process group at the site: SIGTERM, then SIGKILL."""
        was_running = self._process.poll() is None
        super().kill()
        if was_running and pid:
            with contextlib.suppress(ConnectError):
                ending = self._transport.channel(end_group(pid))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    ending.communicate(timeout=_KILL_GRACE_S)
                ending.kill()
                ending.wait()


_LONGEST_BYTES = 104
"""The longest path of a socket on macOS; Linux allows 108."""
_OPENING_BYTES = 18
"""While ssh opens the connection, it appends a dot and 16 letters; and a path ends with a NUL."""
_DIGEST_LETTERS = 16


def control_path(*words: str) -> Path:
    """Return the path for the connection that these words name; its folder is there.

    Raises:
        ConnectError: there is no folder that is ours alone and has a short path.
    """
    name = hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGEST_LETTERS]
    tried = []
    for folder in _folders():
        path = folder / name
        if len(os.fsencode(path)) + _OPENING_BYTES > _LONGEST_BYTES:
            tried.append(f"{folder} has too long a path")
        elif problem := _problem(folder):
            tried.append(f"{folder} {problem}")
        else:
            return path
    raise ConnectError(
        f"this machine: no folder can hold the connection's socket: {'; '.join(tried)}",
        hint="Set XDG_RUNTIME_DIR to a folder of yours with a short path.",
    )


def _folders() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = [Path(runtime, "dlctl")] if runtime else []
    return [*own, Path("/tmp", f"dlctl-{os.getuid()}")]  # noqa: S108 - checked to be ours


def _problem(folder: Path) -> str:
    """Return why a folder can't be used, after having made it; empty: it can."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        return f"can't be made: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return "belongs to somebody else"
    if found.st_mode & 0o077:
        return "is open to other users"
    return ""
