"""Peers in environments of their own, never in the project's: `.venv/peers/<group>`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.learners import REPOSITORY
from benchmarks.report import Load, leave_out


class PeerEnvironment:
    """The peers of one benchmark, which `<group>_peers.txt` names.

    Args:
        group: The benchmark's name.
    """

    def __init__(self, group: str) -> None:
        self.requirements = Path(__file__).with_name(f"{group}_peers.txt")
        self._folder = REPOSITORY / ".venv/peers" / group
        self.python = self._folder / "bin/python"

    @property
    def versions(self) -> tuple[str, ...]:
        """Return a command that prints the peers' versions, if they are installed."""
        program = "import sys; print(*open(sys.argv[1]).read().split(), sep=', ')"
        return str(self.python), "-c", program, str(self.requirements)

    @property
    def env(self) -> dict[str, str]:
        """Return the environment's variables: peers must not see those of the project."""
        return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}

    def program(self, name: str) -> str:
        """Return the path of a program that the peers' packages install."""
        return str(self.python.with_name(name))

    def install(self, load: Load) -> bool:
        """Install the peers, if they are not there; return whether they are.

        The smallest load installs nothing.
        """
        wanted, made = self.requirements.read_text(), self._folder / ".requirements"
        if made.exists() and made.read_text() == wanted:
            return True
        names = [name.replace("_", "-") for name in re.findall(r"(?m)^([\w-]+)", wanted)]
        if load is Load.SMOKE:
            leave_out(*names, why=f"not in {self._folder.relative_to(REPOSITORY)}")
            return False
        base = Path(sys.executable).resolve()
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-qq",
               "--only-binary", ":all:", "-r", str(self.requirements)]  # fmt: skip
        try:
            venv = [base, "-m", "venv", "--clear", "--without-pip", self._folder]
            subprocess.run(venv, check=True)
            subprocess.run(pip, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            leave_out(*names, why=f"they can't be installed: {error}")
            return False
        made.write_text(wanted)
        return True
