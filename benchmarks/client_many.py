"""Submissions over an open connection, many at once, and a link far away (`client_many`).

Over SSH to a real Slurm, that of the tests. The partition is down meanwhile: jobs queue and never
start, so no job takes time from the measurement.

    submit_warm      `dlctl submit` over the open connection of the transport `openssh`; floor:
                     `ssh -S … sbatch` over an open connection; peers: slurmdeck, whose connection
                     is open, too, and nemo-run, which opens one
    submit_200       `dlctl submit --repeat 200`: trainings a second; floor: 200 bare calls of
                     sbatch in one call of ssh; peers: an array of slurmdeck's, and 20 jobs of
                     nemo-run's
    link_submit, link_status, link_fetch_2000
                     commands over a link of 100 ms and 20 Mbit/s: how many times its delay they
                     wait; floor: the log-in and one bare script
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.client import Client, on_cluster
from benchmarks.client_peers import ClientPeers
from benchmarks.fetching import Fetching, put_aside
from benchmarks.report import Command, Load, Result, compare, main, rounds
from benchmarks.slow_link import slow_link
from benchmarks.start_up import dlctl_argv

_MANY, _OF_NEMO, _SMALL = (200, 200, 2), (20, 20, 2), (2000, 2000, 2)
_SMALL_BYTES = 4096
_WARM_ROUNDS, _MANY_ROUNDS, _LINK_ROUNDS = rounds(15), rounds(3, 1), rounds(5, 0)
_ROUND_TRIP_S, _BYTES_PER_S = 0.1, 20e6 / 8
_SBATCH_MANY = """\
printf '#!/bin/sh\\nsrun true\\n' >bare.sh
i=0; while [ $i -lt COUNT ]; do sbatch --parsable bare.sh >/dev/null || exit; i=$((i + 1)); done
"""


@contextmanager
def _open_connection(client: Client) -> Iterator[list[str]]:
    """Keep one connection open for dlctl, and one for ssh; yield the options of the latter."""
    client.env["XDG_RUNTIME_DIR"] = str(client.folder / "run")
    Path(client.env["XDG_RUNTIME_DIR"]).mkdir(mode=0o700, exist_ok=True)
    control = ["ssh", "-F", str(client.cluster.ssh_config), "-S", str(client.folder / "shared")]
    client.use_kind("openssh")
    subprocess.run([*control, "-MNf", client.cluster.host], check=True)
    try:
        client.dlctl("sites", "connect", "testbed")
        yield control
    finally:
        client.dlctl("sites", "disconnect", "testbed")
        subprocess.run([*control, "-O", "exit", client.cluster.host], check=True,
                       capture_output=True)  # fmt: skip
        client.use_kind("ssh")


def _warm(client: Client, peers: ClientPeers, load: Load) -> Result:
    with _open_connection(client) as control:
        argv = [*control, client.cluster.host, "sbatch", "--parsable"]
        script = b"#!/bin/sh\n#SBATCH --ntasks=2 --time=10\nsrun true\n"
        sbatch = Command(argv, client.env, client.work, stdin=script)
        return compare("submit_warm", client.submit, sbatch.time_s, peers.submit_one(),
                       rounds=_WARM_ROUNDS[load])  # fmt: skip


def _many(client: Client, peers: ClientPeers, load: Load) -> Result:
    count = _MANY[load]
    script = _SBATCH_MANY.replace("COUNT", str(count)).encode()

    def ours() -> float:
        taken_s = client.dlctl("submit", "manifest.yml", "--site", "testbed", "--repeat",
                               str(count))  # fmt: skip
        client.cluster.cancel_all()
        return round(count / taken_s, 1)

    def floor() -> float:
        taken_s = client.ssh("sh", stdin=script)
        client.cluster.cancel_all()
        return round(count / taken_s, 1)

    return compare("submit_200", ours, floor, peers.submit_many(count, _OF_NEMO[load]),
                   rounds=_MANY_ROUNDS[load], unit="trainings/s")  # fmt: skip


class _Links:
    """The same commands over a link far away, and over one as narrow that is near."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._plain = Path(client.cluster.ssh_config).read_text()

    @contextmanager
    def _over(self, delay_s: float) -> Iterator[dict[str, str]]:
        cluster = self._client.cluster
        with slow_link(cluster.port, delay_s, _BYTES_PER_S) as port:
            config = self._client.folder / f"ssh-{delay_s}"
            text = rf"\g<1>{port}\n  HostKeyAlias [127.0.0.1]:{cluster.port}"
            config.write_text(re.sub(r"(?m)^(\s*Port )\d+$", text, self._plain))
            yield self._client.env | {"DLCTL_SSH_CONFIG": str(config)}

    def round_trips(self, argv: list[str], target: Path) -> float:
        """Return how many times the delay a command waits that may fill a folder."""
        times = []
        for delay_s in (0.0, _ROUND_TRIP_S / 2):
            put_aside(target)
            with self._over(delay_s) as env:
                times.append(Command(argv, env, self._client.work).time_s())
        return round((times[1] - times[0]) / _ROUND_TRIP_S, 1)


_LOG_IN = """
from dlctl.lifecycle import open_session
from dlctl.sites.files import load_site
session = open_session(load_site("testbed"))
session.transport.run("true")
session.close()
"""
"""What every command needs: the log-in, and one script."""


def _links(client: Client, load: Load) -> Iterator[Result]:
    links = _Links(client)
    fetching = Fetching(client)
    fetching.make("many", {f"{number}.bin": _SMALL_BYTES for number in range(_SMALL[load])})
    log_in = [sys.executable, "-c", _LOG_IN]
    commands = {
        "link_submit": dlctl_argv("submit", "manifest.yml", "--site", "testbed"),
        "link_status": dlctl_argv("status", "@latest"),
        "link_fetch_2000": fetching.dlctl("many"),
    }

    def trips(argv: list[str]) -> float:
        return links.round_trips(argv, fetching.target)

    for name, argv in commands.items():
        yield compare(name, lambda argv=argv: trips(argv), lambda: trips(log_in),
                      rounds=_LINK_ROUNDS[load], unit="round trips")  # fmt: skip


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; nothing if the cluster's programs are missing."""
    with on_cluster("submit_", "link_") as client:
        if client is None:
            return
        client.use_root("dl")
        client.submit()
        peers = ClientPeers(client, load)
        yield _warm(client, peers, load)
        client.cluster.cancel_all()
        yield _many(client, peers, load)
        peers.close()
        yield from _links(client, load)


if __name__ == "__main__":
    main(measure)
