"""Ask data stores from where this runs: `python -m learner.supervisor.check_stores FILE`.

FILE is JSON: for each question the implementation, the variables, and how long it may take. It
holds credentials, so its folder is removed before anything else happens.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from dlctl.contract.programs import answers
from dlctl.contract.stores import EXIT_TRY_LATER


def main(arguments: list[str]) -> list[tuple[int, str]]:
    """Return for each question the exit code and what was said."""
    file = Path(arguments[0])
    questions = json.loads(file.read_text())
    shutil.rmtree(file.parent)
    return [_ask(each["uses"], each["variables"], each["limit_s"]) for each in questions]


def _ask(uses: str, variables: dict[str, str], limit_s: float) -> tuple[int, str]:
    argv = [sys.executable, "-m", "learner.storage", "check", uses]
    try:
        done = subprocess.run(
            argv, env={**os.environ, **variables}, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return EXIT_TRY_LATER, f"it does not answer within {limit_s:.0f} s"
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(answers.run(main))
