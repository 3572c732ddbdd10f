"""The peers of the search's benchmark, in an environment of their own: never in the project's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.learners import REPOSITORY

REQUIREMENTS = Path(__file__).with_name("search_peers.txt")
PROGRAM = Path(__file__).with_name("search_peer_program.py")
_FOLDER = REPOSITORY / ".venv/peers/search"
PYTHON = _FOLDER / "bin/python"
VERSIONS = (str(PYTHON), "-c", "import sys; print(*open(sys.argv[1]).read().split(), sep=', ')",
            str(REQUIREMENTS))  # fmt: skip
"""A command that prints the peers' versions, if they are installed."""
_LASTS_S = 300.0


def install() -> bool:
    """Install the peers, if they are not there; return whether they are."""
    wanted, made = REQUIREMENTS.read_text(), _FOLDER / ".requirements"
    if made.exists() and made.read_text() == wanted:
        return True
    base = Path(sys.executable).resolve()
    pip = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "-qq",
           "--only-binary", ":all:", "-r", str(REQUIREMENTS)]  # fmt: skip
    try:
        subprocess.run([base, "-m", "venv", "--clear", "--without-pip", _FOLDER], check=True)
        subprocess.run(pip, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no peers: they can't be installed: {error}", file=sys.stderr)
        return False
    made.write_text(wanted)
    return True


def peer(name: str, kind: str, count: int) -> Callable[[], float]:
    """Return what runs a peer by itself, from its start to its end, and returns its number."""
    argv = [str(PYTHON), "-I", str(PROGRAM), name, kind, str(count)]
    # What a peer installs or starts must not see the project's environment.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def run() -> float:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=_LASTS_S)
        if done.returncode != 0:
            raise RuntimeError(f"{name} {kind}: {done.stderr[-2000:]}")
        return float(done.stdout.split()[-1])

    return run
