"""The ending job submits the next attempt: 0.1 to 1 s where the nodes may submit jobs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

from dlctl import contract
from dlctl.contract import StarterKind
from dlctl.contract.programs.slurm_words import ANSWER_LOST
from learner.job.batch import batch_system
from learner.job.directives import is_there
from learner.lifecycle.starters.base import CanNotStart, Situation

_SPARE_S = 5.0
_TIMEOUT_S = 120.0
"""As `dlctl submit` waits."""
_OURS = ("DLCTL_", "OMP_", "PYTHON")
"""Variables of this job that the next one sets by itself."""


class Job:
    """Runs the submit command that dlctl has left in the job directory."""

    kind = StarterKind.JOB
    runs_here = False
    begins = True

    def objection(self, situation: Situation) -> str:
        """Return why the node can't submit, or not in time."""
        begins_at, ends_at = situation.action.not_before, situation.ends_at
        waits = not batch_system(situation.plan).allocates and begins_at > time.time()
        if waits and ends_at is not None and begins_at > ends_at - _SPARE_S:
            return "the job ends before the attempt may begin"
        if waits and not situation.in_job and begins_at > time.time() + _SPARE_S:
            return "nobody waits here until the attempt may begin"
        if not is_there(situation.job_dir / contract.SUBMIT_NEXT):
            return f"there is no {contract.SUBMIT_NEXT} in the job directory"
        return ""

    def start(self, situation: Situation) -> str:
        """Submit the attempt, and keep the scheduler's answer as `dlctl resume` does."""
        number = situation.attempt + 1
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
        try:
            script = (situation.job_dir / contract.SUBMIT_NEXT).read_text()
            text = batch_system(situation.plan).submission(script)
            done = subprocess.run(
                ["/bin/sh", "-c", text.replace(contract.NEXT, str(number))],
                cwd=situation.job_dir, env=kept, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            # The job may exist: the login side looks for it by name, and never submits it again.
            return ""
        except OSError as error:
            raise CanNotStart(f"the submit command can't be run: {error}") from error
        said = done.stderr.decode(errors="replace").strip()
        words = done.stdout.decode(errors="replace").split()
        killed = done.returncode < 0 or done.returncode in range(128, 255)
        if done.returncode and not killed and not ANSWER_LOST.search(said):
            said = said or "it printed nothing"
            raise CanNotStart(f"the submission failed with exit code {done.returncode}: {said}")
        head = f"{done.returncode}\n{len(done.stdout)}\n".encode()
        answer = situation.job_dir / contract.submit_answer(number)
        with contextlib.suppress(OSError):  # the login side finds the job by its name, too
            contract.write_whole(
                answer, (head + done.stdout + done.stderr).decode(errors="replace")
            )
        return words[-1].split(";")[0] if words and not done.returncode else ""
