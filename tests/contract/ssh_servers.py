"""A real sshd on 127.0.0.1 with keys, configuration and known_hosts of its own, for tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SSHD = shutil.which("sshd") or next(
    (p for p in ("/usr/sbin/sshd", "/usr/lib/openssh/sshd") if Path(p).exists()), None
)


@dataclass
class Sshd:
    folder: Path
    port: int
    process: subprocess.Popen

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def public_host_key(self) -> str:
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def known_by(self, file: Path) -> Path:
        """Write a file of known hosts that has this server alone."""
        file.write_text(f"[127.0.0.1]:{self.port} {self.public_host_key}\n")
        return file

    def connections(self) -> list[int]:
        """The processes that serve connections."""
        parents: dict[int, int] = {}
        for task in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                fields = task.read_text().rpartition(")")[2].split()
                parents[int(task.parent.name)] = int(fields[1])
        found = {self.process.pid}
        for _ in range(3):
            found |= {pid for pid, parent in parents.items() if parent in found}
        return sorted(found - {self.process.pid})

    def stop(self) -> None:
        for pid in self.connections():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_key(path: Path, passphrase: str = "", kind: str = "ed25519") -> Path:
    argv = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path), "-C", path.name]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


def start_sshd(
    folder: Path, authorized: list[Path], options: str = "", program: str | None = SSHD,
    within: Sequence[str] = (),
) -> Sshd:  # fmt: skip
    folder.mkdir(mode=0o700)
    make_key(folder / "host_key")
    keys = "".join(Path(f"{key}.pub").read_text() for key in authorized)
    (folder / "authorized_keys").write_text(keys)
    port = free_port()
    config = folder / "sshd_config"
    config.write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nStrictModes no\n{options}\n"
        "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"PermitRootLogin yes\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*within, program, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return Sshd(folder, port, process)
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.02)
    process.kill()
    process.wait()
    raise RuntimeError((folder / "log").read_text())


@contextlib.contextmanager
def running_sshd(*what: Any, **how: Any) -> Iterator[Sshd]:
    """Start a server as `start_sshd` does, and stop it."""
    server = start_sshd(*what, **how)
    try:
        yield server
    finally:
        server.stop()


def fingerprint(server: Sshd) -> str:
    """The fingerprint of its host key, as `ssh-keygen` shows it."""
    argv = ["ssh-keygen", "-lf", f"{server.host_key}.pub"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()[1]


def served(server: Sshd) -> int:
    """Return the number of connections that the server has had."""
    return (server.folder / "log").read_text().count("Accepted ")


def block(
    setup: Any, name: str, server: Any, extra: str = "", known: Path | None = None,
    key: str | Path = "",
) -> str:  # fmt: skip
    """A host of an ssh config: a server, or what stands before it on a port of its own."""
    return (
        f"Host {name}\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"  IdentityFile {key or setup.key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known or setup.known_hosts}\n{extra}\n"
    )


def block_behind(setup: Any, name: str, proxy: Any) -> str:
    """A host of an ssh config: the server `plain`, behind a proxy."""
    alias = f"  HostKeyAlias [127.0.0.1]:{setup.servers['plain'].port}"
    return block(setup, name, proxy, alias)
