"""Followed logs, and a list of a thousand trainings (`python -m benchmarks.client_logs`).

Over SSH to a real Slurm, that of the tests. Each reader has a connection of its own, whose bytes a
ProxyCommand counts.

    log_lag      20 lines a second: from a line's writing to its arrival in the output of
                 `dlctl logs --follow`, median; floor and peer: `ssh tail -F`
    log_bytes    20 MB of log at once, followed: bytes on the wire in both directions, as a share of
                 the log; floor: the log as `gzip -6` packs it; peer: `ssh tail -F`
    status_1000  `dlctl list` of 1,000 trainings in the queue, cold; floor: `ssh squeue`; peer:
                 `slurmdeck run status` of one array of 1,000, over its open connection
"""

from __future__ import annotations

import dataclasses
import random
import re
import statistics
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.client import Client, on_cluster
from benchmarks.client_peers import ClientPeers
from benchmarks.report import Load, Result, compare, main, rounds
from benchmarks.start_up import dlctl_argv
from dlctl import contract
from dlctl.record import Record, RecordStore

_LINES_PER_S = 20
_LOG_S, _LOG_MB, _TRAININGS = (10.0, 2.0, 0.5), (20, 20, 1), (1000, 1000, 10)
_LOG_ROUNDS, _LIST_ROUNDS = rounds(5), rounds(7, 1)
_PROXY = """\
import os, selectors, socket, sys
host, port, count = sys.argv[1:]
peer, total = socket.create_connection((host, int(port))), 0
file = os.open(count, os.O_WRONLY | os.O_CREAT)
chooser = selectors.DefaultSelector()
chooser.register(0, selectors.EVENT_READ)
chooser.register(peer, selectors.EVENT_READ)
while True:
    for key, _ in chooser.select():
        data = os.read(0, 1 << 16) if key.fd == 0 else peer.recv(1 << 16)
        if not data:
            sys.exit()
        total += len(data)
        os.pwrite(file, b"%20d" % total, 0)
        if key.fd == 0:
            peer.sendall(data)
        else:
            while data:
                data = data[os.write(1, data):]
"""


class Followed:
    """A training whose log this benchmark writes, and readers of it whose bytes are counted."""

    def __init__(self, client: Client) -> None:
        self._client = client
        client.use_root("dl-logs")
        client.submit()
        (self.job_dir,) = (client.cluster.home / "dl-logs/jobs").iterdir()
        self.log = self.job_dir / "attempts/1/learner-0.log"
        self._count = client.folder / "count"
        proxy = client.folder / "proxy.py"
        proxy.write_text(_PROXY)
        config = client.folder / "ssh_config"
        text = client.cluster.ssh_config.read_text().rstrip()
        command = f"{sys.executable} {proxy} %h %p {self._count}"
        config.write_text(f"{text}\n  ProxyCommand {command}\n")
        self._env = client.env | {"DLCTL_SSH_CONFIG": str(config), "PYTHONUNBUFFERED": "1"}
        self._ssh = ["ssh", "-F", str(config), client.cluster.host]

    @property
    def dlctl(self) -> list[str]:
        """Return the command that follows."""
        return dlctl_argv("logs", "--follow", self.job_dir.name, "--no-prefix")

    @property
    def tail(self) -> list[str]:
        """Return the peer's."""
        return [*self._ssh, "tail", "-n", "+1", "-F", str(self.log)]

    def moved_bytes(self) -> int:
        """Return how many bytes the last reader's connection has moved so far."""
        return int(self._count.read_text() or 0)

    def reader(self, argv: list[str]) -> subprocess.Popen[str]:
        """Write a log of one line, start a reader of it, and wait until the line arrives."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_text("begins\n")
        reader = subprocess.Popen(argv, env=self._env, cwd=self._client.work, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        assert reader.stdout is not None
        for line in reader.stdout:
            if line.strip() == "begins":
                return reader
        raise RuntimeError(f"{argv} ended")

    def lag_s(self, argv: list[str], seconds: float) -> float:
        """Return the median age of lines when they arrive."""
        reader, count = self.reader(argv), round(seconds * _LINES_PER_S)

        def write() -> None:
            with self.log.open("a") as log:
                for number in range(count):
                    log.write(f"step {number} loss 0.5 {time.time():.6f}\n")
                    log.flush()
                    time.sleep(1 / _LINES_PER_S)

        writer = threading.Thread(target=write)
        writer.start()
        ages = []
        assert reader.stdout is not None
        for line in reader.stdout:
            if found := re.fullmatch(r"step \d+ loss 0.5 (\d+\.\d+)", line.strip()):
                ages.append(time.time() - float(found[1]))
                if len(ages) == count:
                    break
        writer.join()
        _end(reader)
        return statistics.median(ages)

    def share(self, argv: list[str], text: str) -> float:
        """Return what a log of this text moves when it comes at once, as a share of its bytes."""
        reader = self.reader(argv)
        before = self.moved_bytes()
        with self.log.open("a") as log:
            log.write(text)
        assert reader.stdout is not None
        for line in reader.stdout:
            if line.strip() == "ends":
                break
        moved = self.moved_bytes() - before
        _end(reader)
        return moved / len(text)


def _end(reader: subprocess.Popen[str]) -> None:
    reader.terminate()
    reader.communicate()


def log_text(size_mb: int) -> str:
    """Return a log as a training writes it."""
    chance = random.Random(1)
    lines, size = [], 0
    while size < size_mb * 1_000_000:
        step = len(lines)
        lines.append(
            f"12:{step // 60 % 60:02d}:{step % 60:02d} epoch {step // 9000} step {step} "
            f"loss {chance.random():.6f} accuracy {chance.random():.4f} "
            f"{chance.gauss(1200, 40):.1f} samples/s\n"
        )
        size += len(lines[-1])
    return "".join([*lines, "ends\n"])


def list_many(client: Client, count: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Queue so many trainings; return what times ours and the floor."""
    client.use_root("dl-list")
    client.submit()
    (job_dir,) = (client.cluster.home / "dl-list/jobs").iterdir()
    store = RecordStore(Path(client.env["XDG_STATE_HOME"], "dlctl/record.db"))
    record = store.find(job_dir.name)
    for other in store.all():
        if other.training_id != record.training_id:
            store.remove(other.training_id)
    names = [f"{record.name}-{number:08d}" for number in range(count - 1)]
    script = "cd dl-list/jobs\n" + "\n".join(
        f"cp -r {job_dir.name} {name}; sbatch -Q --job-name={contract.token(name, 1)}"
        f" --comment=dlctl:{contract.token(name, 1)} --ntasks=2 --time=10 -o /dev/null --wrap true"
        for name in names
    )
    code, _, errors = client.cluster.run(script)
    if code:
        raise RuntimeError(errors)
    for name in names:
        store.add(_copy(record, name))
    return lambda: client.dlctl("list"), lambda: client.ssh("squeue")


def _copy(record: Record, name: str) -> Record:
    folder = record.job_dir.rpartition("/")[0]
    changes: dict[str, Any] = {"training_id": name, "job_dir": f"{folder}/{name}", "job_id": ""}
    return dataclasses.replace(record, **changes)


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("log_", "status_") as client:
        if client is None:
            return
        job, seconds = Followed(client), _LOG_S[load]
        yield compare("log_lag", lambda: job.lag_s(job.dlctl, seconds),
                      lambda: job.lag_s(job.tail, seconds), rounds=_LOG_ROUNDS[load])  # fmt: skip
        text = log_text(_LOG_MB[load])
        ours, tail = job.share(job.dlctl, text), job.share(job.tail, text)
        floor = len(zlib.compress(text.encode())) / len(text)
        yield Result("log_bytes", "× the log", round(ours, 3), round(floor, 3),
                     {"ssh tail -F": round(tail, 3)})  # fmt: skip
        client.cluster.cancel_all()
        ours_s, floor_s = list_many(client, _TRAININGS[load])
        peers = ClientPeers(client, load)
        yield compare("status_1000", ours_s, floor_s, peers.status(_TRAININGS[load]),
                      rounds=_LIST_ROUNDS[load])  # fmt: skip
        peers.close()
        client.cluster.cancel_all()


if __name__ == "__main__":
    main(measure)
