"""The peers of the search's benchmark."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.peer_environment import PeerEnvironment

PEERS = PeerEnvironment("search")
PROGRAM = Path(__file__).with_name("search_peer_program.py")
_LASTS_S = 300.0


def peer(name: str, kind: str, count: int) -> Callable[[], float]:
    """Return what runs a peer by itself, from its start to its end, and returns its number."""
    argv = [str(PEERS.python), "-I", str(PROGRAM), name, kind, str(count)]

    def run() -> float:
        done = subprocess.run(argv, env=PEERS.env, capture_output=True, text=True, timeout=_LASTS_S)
        if done.returncode != 0:
            raise RuntimeError(f"{name} {kind}: {done.stderr[-2000:]}")
        return float(done.stdout.split()[-1])

    return run
