"""`dlctl fetch` over SSH, compared with scp and rsync (`python -m benchmarks fetching`).

On the test cluster, the whole command each time, by both transports. With `openssh` the connection
is open before, and the peers go by an open connection, too; with `ssh` each opens its own. All
files are results of a training that stored them: dlctl verifies each against the training's index.

    fetch_1gb            one file of 1 GB; floor: `ssh … cat` into a file
    fetch_2000           2,000 files of 4 kB; floor: `ssh … tar` into a file
    fetch_1gb_openssh, fetch_2000_openssh   the same by the transport `openssh`
    fetch_resumed        of 1 GB, what crosses the link after a kill -9 half-way; the peer is
                         `rsync --partial --append-verify`, interrupted half-way
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from faulty_proxy import faulty_proxy  # type: ignore[import-not-found]

from benchmarks.client import Client, on_cluster
from benchmarks.report import Command, Load, Result, compare, leave_out, main, rounds
from benchmarks.start_up import dlctl_argv
from dlctl.contract import ResultFile, ResultsIndex, to_json

_ROUNDS = rounds(2, 1)
_BIG_BYTES = 1_000_000_000, 1_000_000_000, 10_000_000
_SMALL = 2000, 2000, 5
_SMALL_BYTES = 4096
_STEP_BYTES = 1_000_000
_POLL_S = 0.002


def put_aside(folder: Path) -> None:
    """Rename a folder, and empty its large files, rather than to remove it.

    ext4 does not use an inode again in the first seconds after it was freed, and looks at each of
    those whenever a file is made: what is removed before a command makes the command slow.
    """
    if not folder.exists():
        return
    for file in folder.rglob("*"):
        if file.is_file() and file.stat().st_size > _STEP_BYTES:
            os.truncate(file, 0)
    folder.rename(folder.with_name(f"{folder.name}-{time.monotonic_ns()}"))


class Fetching:
    """A training with large results, or with many, and the commands that bring them here."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.job_dirs: dict[str, Path] = {}
        self.target = client.folder / "fetched"
        self.config = str(client.cluster.ssh_config)
        self.shared = str(client.folder / "peers.sock")

    def make(self, name: str, files: Mapping[str, int]) -> None:
        """Submit a training and give it results, as if it had stored them."""
        self.client.use_root(f"dl-{name}")
        self.client.submit()
        (job_dir,) = (self.client.cluster.home / f"dl-{name}/jobs").iterdir()
        self.job_dirs[name] = job_dir
        known = []
        for path, size_bytes in files.items():
            digest, file = hashlib.sha256(), job_dir / "results" / path
            file.parent.mkdir(exist_ok=True)
            with file.open("wb") as stream:
                for at in range(0, size_bytes, _STEP_BYTES):
                    piece = os.urandom(min(_STEP_BYTES, size_bytes - at))
                    digest.update(piece)
                    stream.write(piece)
            known.append(ResultFile(path, size_bytes, digest.hexdigest()))
        (job_dir / "results.json").write_text(to_json(ResultsIndex(known)))

    def dlctl(self, name: str) -> list[str]:
        """Return the command that fetches the results of a training."""
        return dlctl_argv("fetch", "results", self.job_dirs[name].name, "--to", str(self.target))

    def time_s(self, argv: list[str], into: str = "") -> float:
        """Time a command that fetches into the folder, which is put aside first."""
        put_aside(self.target)
        if "--to" not in argv:
            self.target.mkdir()
        if into:
            argv = ["sh", "-c", 'exec "$@" >"$0"', str(self.target / into), *argv]
        return Command(argv, self.client.env, self.client.work).time_s()

    def ssh_options(self, *, is_open: bool) -> list[str]:
        """Return the options with which a peer calls ssh."""
        return ["-F", self.config, *(["-o", f"ControlPath={self.shared}"] if is_open else [])]

    def peers(self, name: str, *, is_open: bool) -> dict[str, Callable[[], float]]:
        """Return the peers, which copy the same results unverified."""
        options = self.ssh_options(is_open=is_open)
        there = f"{self.client.cluster.host}:{self.job_dirs[name]}/results"
        rsync = ["rsync", "-r", "-e", f"ssh {' '.join(options)}", there, str(self.target)]
        scp = ["scp", "-rq", *options, there, str(self.target)]
        programs = {"rsync": lambda: self.time_s(rsync), "scp": lambda: self.time_s(scp)}
        return {name: time_s for name, time_s in programs.items() if shutil.which(name)}

    def floor(self, name: str, command: str, *, is_open: bool) -> float:
        """Time ssh alone with a command that sends the results."""
        options = self.ssh_options(is_open=is_open)
        argv = ["ssh", *options, self.client.cluster.host, f"cd {self.job_dirs[name]}; {command}"]
        return self.time_s(argv, "stream")

    @contextmanager
    def open_connections(self) -> Iterator[None]:
        """Use the transport `openssh`, and keep one connection open for it and one for peers."""
        env = self.client.env
        env["XDG_RUNTIME_DIR"] = str(self.client.folder / "run")
        Path(env["XDG_RUNTIME_DIR"]).mkdir(mode=0o700)
        self.client.use_kind("openssh")
        host = self.client.cluster.host
        control = ["ssh", *self.ssh_options(is_open=True)]
        subprocess.run([*control, "-MNf", host], check=True)
        try:
            self.client.dlctl("sites", "connect", "testbed")
            yield
        finally:
            self.client.dlctl("sites", "disconnect", "testbed")
            subprocess.run([*control, "-O", "exit", host], check=True, capture_output=True)
            self.client.use_kind("ssh")

    def resumed(
        self, argv: list[str], config: Path, stop: signal.Signals, size_bytes: int
    ) -> float:
        """Return the share of the bytes that cross the link after a command was stopped half-way.

        Args:
            argv: The command, which goes on where it was if it runs again.
            config: The ssh configuration that it uses, which gets a counting port.
            stop: The signal that stops it.
            size_bytes: How much it fetches.
        """
        put_aside(self.target)
        plain = Path(self.config).read_text()
        with faulty_proxy(self.client.cluster.port) as proxy:
            port = rf"\g<1>{proxy.port}\n  HostKeyAlias [127.0.0.1]:{self.client.cluster.port}"
            config.write_text(re.sub(r"(?m)^(\s*Port )\d+$", port, plain))
            env = self.client.env | {"DLCTL_SSH_CONFIG": str(config)}
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            first = subprocess.Popen(argv, env=env, cwd=self.client.work, **quiet)
            while proxy.served_bytes < size_bytes // 2 and first.poll() is None:
                time.sleep(_POLL_S)
            first.send_signal(stop)
            first.wait()
            before = proxy.served_bytes
            Command(argv, env, self.client.work).time_s()
            return 100 * (proxy.served_bytes - before) / size_bytes


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("fetch_") as client:
        if client is None:
            return
        if not shutil.which("rsync"):
            leave_out("rsync", why="it is not installed")
        run = Fetching(client)
        run.make("big", {"model.bin": _BIG_BYTES[load]})
        run.make("many", {f"file-{n}": _SMALL_BYTES for n in range(_SMALL[load])})
        yield from _compare(run, "", load)
        with run.open_connections():
            yield from _compare(run, "_openssh", load)
        yield _compare_resumed(run, _BIG_BYTES[load])


def _compare(run: Fetching, suffix: str, load: Load) -> Iterator[Result]:
    is_open = bool(suffix)
    for what, name, command in (
        ("fetch_1gb", "big", "cat results/model.bin"),
        ("fetch_2000", "many", "tar -cf - results"),
    ):
        run.client.use_root(f"dl-{name}")
        ours, peers = run.dlctl(name), run.peers(name, is_open=is_open)
        yield compare(
            f"{what}{suffix}", lambda ours=ours: run.time_s(ours),  # type: ignore[misc]
            lambda name=name, command=command: run.floor(name, command, is_open=is_open),  # type: ignore[misc]
            peers, rounds=_ROUNDS[load],
        )  # fmt: skip


def _compare_resumed(run: Fetching, size_bytes: int) -> Result:
    run.client.use_root("dl-big")
    folder, ours = run.client.folder, run.dlctl("big")
    config = folder / "counted_config"
    there = f"{run.client.cluster.host}:{run.job_dirs['big']}/results/model.bin"
    rsync = ["rsync", "--partial", "--append-verify", "-e", f"ssh -F {config}", there,
             str(run.target)]  # fmt: skip
    moved = run.resumed(ours, config, signal.SIGKILL, size_bytes)
    peers = {}
    if shutil.which("rsync"):
        peers["rsync"] = round(run.resumed(rsync, config, signal.SIGINT, size_bytes), 1)
    return Result("fetch_resumed", "%", round(moved, 1), 50.0, peers)


if __name__ == "__main__":
    main(measure)
