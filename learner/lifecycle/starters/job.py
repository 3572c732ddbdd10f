"""The ending job submits the next attempt: 0.1 to 1 s where the nodes may submit jobs."""

from __future__ import annotations

import os
import re
import subprocess

from dlctl import contract
from dlctl.contract import StarterKind
from learner.job.directives import is_there
from learner.lifecycle.starters.base import CanNotStart, Situation

_TIMEOUT_S = 120.0
"""As `dlctl submit` waits."""
_OURS = ("DLCTL_", "OMP_", "PYTHON")
"""Variables of this job that the next one sets by itself."""
_LOST = re.compile(
    r"timed out|timeout|connection (reset|lost)|broken pipe|send/recv", re.IGNORECASE
)
"""Slurm's words if the job may exist all the same."""


class Job:
    """Runs the submit command that dlctl has left in the job directory."""

    kind = StarterKind.JOB
    runs_here = False
    begins = True

    def objection(self, situation: Situation) -> str:
        """Return why the node can't submit."""
        if not is_there(situation.job_dir / contract.SUBMIT_NEXT):
            return f"there is no {contract.SUBMIT_NEXT} in the job directory"
        return ""

    def start(self, situation: Situation) -> str:
        """Submit the attempt, and keep the scheduler's answer as `dlctl resume` does."""
        number = situation.attempt + 1
        text = (situation.job_dir / contract.SUBMIT_NEXT).read_text()
        command = ["/bin/sh", "-c", text.replace(contract.NEXT, str(number))]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        try:
            done = subprocess.run(
                command, cwd=situation.job_dir, env=kept, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # The job may exist: the login side looks for it by name, and never submits it again.
            return ""
        error = done.stderr.decode(errors="replace").strip()
        words = done.stdout.decode(errors="replace").split()
        if done.returncode and not _LOST.search(error):
            said = error or "it printed nothing"
            raise CanNotStart(f"the submission failed with exit code {done.returncode}: {said}")
        head = f"{done.returncode}\n{len(done.stdout)}\n".encode()
        answer = situation.job_dir / contract.submit_answer(number)
        contract.write_whole(answer, (head + done.stdout + done.stderr).decode(errors="replace"))
        return words[-1].split(";")[0] if words and not done.returncode else ""
