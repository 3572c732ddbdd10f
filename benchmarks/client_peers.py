"""The peers of the client's benchmarks: slurmdeck and nemo-run, as their users call them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.client import Client
from benchmarks.peer_environment import PeerEnvironment
from benchmarks.report import Load

PEERS = PeerEnvironment("client")
NEMO_PROGRAM = Path(__file__).with_name("nemo_program.py")
_LASTS_S = 600.0


class ClientPeers:
    """Both peers with a user's folders on a test cluster, or none where they can't be installed.

    `ssh` and `scp` on their PATH take the cluster's settings. slurmdeck keeps its connection open
    between commands; nemo-run opens one for each.
    """

    def __init__(self, client: Client, load: Load) -> None:
        self.installed = PEERS.install(load)
        self._client = client
        self._home = client.folder / "peers"
        if self.installed:
            self._prepare()

    def submit_one(self) -> dict[str, Callable[[], float]]:
        """Return what times the submission of one training, by peer."""
        if not self.installed:
            return {}
        return {"slurmdeck": lambda: self._deck("submit", "--", "true"),
                "nemo-run": lambda: self._nemo(1)}  # fmt: skip

    def submit_many(self, deck: int, nemo: int) -> dict[str, Callable[[], float]]:
        """Return what measures trainings a second: slurmdeck's are one Slurm array."""
        if not self.installed:
            return {}
        self._write_sweep(deck)

        def arrays() -> float:
            taken_s = self._deck("submit", "--sweep", "sweep.yaml", "--", "true", "{args}")
            self._client.cluster.cancel_all()
            return round(deck / taken_s, 1)

        def jobs() -> float:
            taken_s = self._nemo(nemo)
            self._client.cluster.cancel_all()
            return round(nemo / taken_s, 1)

        return {"slurmdeck, an array": arrays, "nemo-run": jobs}

    def status(self, tasks: int) -> dict[str, Callable[[], float]]:
        """Return what times the states of one array of so many tasks, which it submits."""
        if not self.installed:
            return {}
        self._write_sweep(tasks)
        self._deck("submit", "--sweep", "sweep.yaml", "--", "true", "{args}")
        return {"slurmdeck": lambda: self._deck("run", "status")}

    def close(self) -> None:
        """Close the connection that slurmdeck keeps open."""
        if self.installed:
            self._deck("remote", "disconnect", "hpc")

    def _prepare(self) -> None:
        programs = self._home / "bin"
        programs.mkdir(parents=True)
        cluster = self._client.cluster
        config = self._home / "ssh_config"  # nemo-run calls rsync with the address, not the alias
        text = cluster.ssh_config.read_text()
        config.write_text(text.replace(f"Host {cluster.host}", f"Host {cluster.host} 127.0.0.1", 1))
        for name in ("ssh", "scp"):
            program = programs / name
            argv = f"{shutil.which(name)} -F {config}"
            program.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
            program.chmod(0o755)
        env = PEERS.env
        self._env = env | {
            "HOME": str(self._home), "XDG_RUNTIME_DIR": str(self._home), "NO_COLOR": "1",
            "PATH": f"{programs}:{env['PATH']}", "NEMORUN_HOME": str(self._home / "nemo"),
        }  # fmt: skip
        (self._home / "train.py").write_text("print()\n")
        self._deck("remote", "add", "hpc", "--ssh-alias", cluster.host,
                   "--base", str(cluster.home / "deck"), "--use")  # fmt: skip
        self._deck("remote", "connect", "hpc")
        self._deck("init", "--remote", "hpc")
        project = self._home / ".slurmdeck/project.yaml"
        project.write_text(re.sub(r"mem: \S+", "mem: 100M", project.read_text()))

    def _write_sweep(self, tasks: int) -> None:
        numbers = ", ".join(map(str, range(tasks)))
        (self._home / "sweep.yaml").write_text(f"version: 1\nparameters:\n  n: [{numbers}]\n")

    def _deck(self, *argv: str) -> float:
        return self._time([PEERS.program("slurmdeck"), *argv])

    def _nemo(self, count: int) -> float:
        cluster = self._client.cluster
        words = cluster.ssh_config.read_text().split()
        user, key = (words[words.index(name) + 1] for name in ("User", "IdentityFile"))
        return self._time([
            str(PEERS.python), "-I", str(NEMO_PROGRAM), "127.0.0.1", str(cluster.port), user, key,
            str(cluster.home / "nemo"), "dl", str(count),
        ])  # fmt: skip

    def _time(self, argv: list[str]) -> float:
        begin = time.monotonic()
        done = subprocess.run(argv, env=self._env, cwd=self._home, capture_output=True, text=True,
                              timeout=_LASTS_S)  # fmt: skip
        if done.returncode != 0:
            raise RuntimeError(f"{argv}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return time.monotonic() - begin
