"""Commands over SSH to a real Slurm, compared with `ssh` and `scp` (`python -m benchmarks.client`).

On the test cluster, cold: every run opens its own connection. The floor reads one batch script
from standard input. dlctl also checks the manifest, plans, renders, sends the job directory and
keeps a record. The partition is down meanwhile: jobs queue and never start, so no job takes time
from the measurement.

    submit_cold       the code has changed since the last submission; the runtime is in place
    submit_unchanged  nothing has changed
    submit_first      the site is still empty: code and runtime are sent
    status_cold       `dlctl status`; floor: `ssh … squeue`; peers: with the system's ssh, with a
                      new connection and with that of the command before
    fetch_300mb       `dlctl fetch results` of one file of 300 MB, verified; floor: scp, unverified
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.learners import REPOSITORY
from benchmarks.report import Command, Load, Result, compare, leave_out, main, rounds
from benchmarks.slurm import Cluster, slurm
from benchmarks.start_up import dlctl_argv, environment

_ROUNDS, _FETCH_ROUNDS = rounds(15), rounds(7, 1)
_FETCHED_MB = 300, 300, 1
_SITE = """\
transport: {{kind: {kind}, host: {host}}}
root: {root}
scheduler: {{kind: slurm}}
partitions:
  debug: {{nodes: 4, cpus_per_node: 2, memory_per_node: 4000MiB, gpus_per_node: 2, default: true}}
  short: {{nodes: 1, cpus_per_node: 2, memory_per_node: 4000MiB, max_time: {short_s}s}}
launcher: {{kind: srun, mpi: pmix}}
environment: {{python: {python}}}
"""
_SCRIPT = b"#!/bin/sh\n#SBATCH --ntasks=2 --time=10\nsrun true\n"


class Client:
    """A user's folders and site, and the commands to time."""

    def __init__(self, cluster: Cluster, folder: Path, short_s: int = 120) -> None:
        self.cluster = cluster
        self._short_s = short_s
        """How long jobs of the partition `short` may run."""
        self.folder = folder
        self.env = environment(folder) | cluster.env
        self.work = folder / "digits"
        shutil.copytree(REPOSITORY / "examples/digits", self.work)
        self._changes = itertools.count()
        self._kind, self._root = "ssh", ""
        self._ssh = ["ssh", "-F", str(cluster.ssh_config), cluster.host]

    def use_root(self, name: str) -> None:
        """Write the site's file with this root folder."""
        self._root = name
        file = self.folder / "config/dlctl/sites/testbed.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_SITE.format(kind=self._kind, host=self.cluster.host,
                                     root=self.cluster.home / name,
                                     python=self.cluster.node_python,
                                     short_s=self._short_s))  # fmt: skip

    def use_kind(self, kind: str) -> None:
        """Write the site's file with this transport."""
        self._kind = kind
        self.use_root(self._root)

    def ssh(self, *argv: str, stdin: bytes = b"") -> float:
        """Time one command through the OpenSSH client."""
        return Command([*self._ssh, *argv], self.env, self.work, stdin=stdin).time_s()

    def dlctl(self, *arguments: str) -> float:
        """Time one dlctl command."""
        return Command(dlctl_argv(*arguments), self.env, self.work).time_s()

    def sbatch(self) -> float:
        """Time the floor of a submission."""
        return self.ssh("sbatch", "--parsable", stdin=_SCRIPT)

    def submit(self) -> float:
        """Time a submission."""
        return self.dlctl("submit", "manifest.yml", "--site", "testbed")

    def submit_changed(self) -> float:
        """Time a submission of changed code."""
        (self.work / "change.txt").write_text(f"{next(self._changes)}\n")
        return self.submit()

    def submit_first(self) -> float:
        """Time a submission to a site where dlctl has never been used."""
        self.use_root(f"dl-first-{next(self._changes)}")
        return self.submit()

    def status(self, kind: str, *, cold: bool = True) -> float:
        """Time `dlctl status` by this transport, after the end of a connection that stays."""
        self.use_kind(kind)
        if cold and kind == "openssh":
            self.dlctl("sites", "disconnect", "testbed")
        return self.dlctl("status")

    def fetch(self, *argv: str) -> float:
        """Time a command that fetches results into the folder `fetched`, emptied first."""
        target = self.folder / "fetched"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        return Command([*argv, str(target)], self.env, self.work).time_s()

    def write_result(self, size_mb: int) -> str:
        """Give the only training below the root set by `use_root` so much of results."""
        (job_dir,) = (self.cluster.home / "dl-status/jobs").iterdir()
        file = job_dir / "results/model.bin"
        file.parent.mkdir()
        with file.open("wb") as stream:
            for _ in range(size_mb):
                stream.write(os.urandom(1_000_000))
        return str(file)


@contextmanager
def on_cluster(*results: str) -> Iterator[Client | None]:
    """Yield a client of a cluster; None if programs are missing, and leave these results out."""
    with slurm(*results) as cluster, tempfile.TemporaryDirectory(prefix="dlctl-bench-") as folder:
        if cluster is None:
            yield None
            return
        cluster.exec("scontrol", "update", "PartitionName=debug", "State=DOWN")
        yield Client(cluster, Path(folder))


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("submit_", "status_", "fetch_") as client:
        if client is None:
            return
        submissions: dict[str, Callable[[], float]] = {
            "submit_cold": client.submit_changed,
            "submit_unchanged": client.submit,
            "submit_first": client.submit_first,
        }
        for what, ours in submissions.items():
            client.use_root("dl")
            yield compare(what, ours, client.sbatch, rounds=_ROUNDS[load])
            client.cluster.cancel_all()
        client.use_root("dl-status")
        client.submit()
        yield compare(
            "status_cold",
            lambda: client.status("ssh"),
            lambda: client.ssh("squeue"),
            {
                "openssh": lambda: client.status("openssh"),
                "openssh_again": lambda: client.status("openssh", cold=False),
            },
            rounds=_ROUNDS[load],
        )
        client.use_kind("openssh")
        client.dlctl("sites", "disconnect", "testbed")
        client.use_kind("ssh")
        yield _compare_fetch(client, load)


def _compare_fetch(client: Client, load: Load) -> Result:
    file = client.write_result(_FETCHED_MB[load])
    config, there = str(client.cluster.ssh_config), f"{client.cluster.host}:{file}"
    peers = {}
    if shutil.which("rsync"):
        peers["rsync"] = lambda: client.fetch("rsync", "-e", f"ssh -F {config}", there)
    else:
        leave_out("rsync", why="it is not installed")
    return compare(
        "fetch_300mb",
        lambda: client.fetch(*dlctl_argv("fetch", "results", "--to")),
        lambda: client.fetch("scp", "-q", "-F", config, there),
        peers, rounds=_FETCH_ROUNDS[load],
    )  # fmt: skip


if __name__ == "__main__":
    main(measure)
