"""Start the collector beside a learner, and end it after the learner. For the watchdog."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dlctl.contract.ground.processes import end_child
from learner.job.environment import PROGRESS_FILE

LAST_PASS_S = 5.0
"""How long the collector may read what the learner wrote last. On an idle core 0.1 s is enough."""
NICENESS = 5
"""With more, a collector beside learners that keep all cores busy would take seconds to start."""
_OF_THE_LEARNER = (PROGRESS_FILE, "CUDA_VISIBLE_DEVICES", "LOCAL_RANK")


class Companion:
    """The collector's process. If it can't run, the training goes on without it.

    Args:
        learner_env: the learner's environment, of which the collector gets some variables.
    """

    def __init__(
        self, job_dir: Path, attempt: int, rank: int, learner_env: Mapping[str, str]
    ) -> None:
        self._argv = [
            sys.executable, "-m", "learner.collect", str(job_dir), str(attempt), str(rank),
            str(os.getpid()),
        ]  # fmt: skip
        known = {name: learner_env[name] for name in _OF_THE_LEARNER if name in learner_env}
        self._env = {**os.environ, **known}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's id; 0 before the start, or if it failed."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the collector. The end of its standard input asks it to finish."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self._process = subprocess.Popen(
                self._argv, env=self._env, preexec_fn=_stand_back,
                # A launcher waits for the end of its children's output: this one gets none.
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def finish(self) -> None:
        """Ask the collector to read what was written last, and to end."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def end(self) -> None:
        """Wait until the collector has ended, and end it if that takes long."""
        self.finish()
        if self._process is not None:
            end_child(self._process, LAST_PASS_S, ask=False)


def _stand_back() -> None:
    """Leave the watchdog's process group, and let everything else run first."""
    os.setsid()
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    with contextlib.suppress(OSError):  # if memory runs out, the kernel ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
