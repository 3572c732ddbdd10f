from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from ssh_servers import SSHD, Sshd, make_key, running_sshd

from dlctl.sites.files import TransportSettings
from dlctl.transport import Transport, open_transport
from dlctl.transport.openssh import OpensshTransport
from dlctl.transport.ssh import SshTransport

CSH = shutil.which("csh") or shutil.which("tcsh")
CONNECT_TIMEOUT_S = 60.0


@dataclass
class SshSetup:
    """Servers, a key, and a config file with a host for each server."""

    folder: Path
    key: Path
    config: Path
    known_hosts: Path
    servers: dict[str, Sshd]

    def open(self, host: str, prompt=None, config: str = "", timeout_s=CONNECT_TIMEOUT_S, **more):
        file = self.folder / "own_config"
        file.write_text(config + "\n" + self.config.read_text())
        settings = TransportSettings(kind="ssh", host=host, connect_timeout_s=timeout_s, **more)
        return SshTransport(settings, prompt, file)

    def open_lasting(self, host: str, config: Path | None = None, **more):
        settings = TransportSettings(
            kind="openssh", host=host, connect_timeout_s=CONNECT_TIMEOUT_S, **more
        )
        return OpensshTransport(settings, "dlctl sites connect it", config or self.config)


@pytest.fixture(scope="session")
def ssh_setup(tmp_path_factory):
    if SSHD is None:
        pytest.skip("no sshd: apt-get install openssh-server")
    folder = tmp_path_factory.mktemp("ssh")
    key = make_key(folder / "id")
    noisy, quiet = folder / "noisy", folder / "quiet"
    noisy.mkdir()
    quiet.mkdir()
    for name in (".bashrc", ".profile", ".cshrc", ".zshenv"):
        (noisy / name).write_text("echo Welcome; echo 'dear  user' >&2\nprintf 'no newline'\n")
    (folder / "banner").write_text("*** Authorised use only ***\n")
    csh = f'ForceCommand {CSH} -c "$SSH_ORIGINAL_COMMAND"' if CSH else ""
    options = {
        "plain": f"SetEnv HOME={quiet}",
        "odd": f"SetEnv HOME={noisy}\nBanner {folder}/banner\n{csh}",
    }
    with ExitStack() as ends:
        servers = {
            name: ends.enter_context(running_sshd(folder / f"srv-{name}", [key], text))
            for name, text in options.items()
        }
        known, config = folder / "known_hosts", folder / "config"
        known.write_text(
            "".join(f"[127.0.0.1]:{s.port} {s.public_host_key}\n" for s in servers.values())
        )
        common = f"  IdentityFile {key}\n  IdentitiesOnly yes\n  UserKnownHostsFile {known}\n"
        config.write_text(
            "".join(
                f"Host {n}\n  HostName 127.0.0.1\n  Port {s.port}\n{common}"
                for n, s in servers.items()
            )
        )
        yield SshSetup(folder, key, config, known, servers)


@pytest.fixture
def lasting(ssh_setup, monkeypatch, tmp_path_factory):
    """Makes transports whose connections end with the test."""
    folder = Path(tempfile.mkdtemp(prefix="dlctl-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    made: list[OpensshTransport] = []

    def make(host: str, config: str = "", **more) -> OpensshTransport:
        file = tmp_path_factory.mktemp("own") / "config"
        file.write_text(config + "\n" + ssh_setup.config.read_text())
        made.append(ssh_setup.open_lasting(host, file, **more))
        return made[-1]

    yield make
    for transport in made:
        transport.disconnect()
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def shared_transports(ssh_setup):
    opened: dict[str, Transport] = {"local": open_transport(TransportSettings(kind="local"))}
    opened["ssh"] = ssh_setup.open("plain")
    runtime = tempfile.mkdtemp(prefix="dlctl-")  # pytest's own is too long for a socket
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", runtime)
        opened["openssh"] = lasting = ssh_setup.open_lasting("odd")
    yield opened
    for transport in opened.values():
        transport.close()
    lasting.disconnect()
    shutil.rmtree(runtime)


@pytest.fixture(params=["local", "openssh", "ssh"])
def transport(request, shared_transports):
    """Each kind; `openssh` reaches a csh that prints before each command."""
    return shared_transports[request.param]
