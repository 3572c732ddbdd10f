"""The nodes of a job in the plan's order, and which of them the job has lost."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable

from dlctl.contract.ground.processes import end_child

ASK_EVERY_S = 5.0
ASK_TIMEOUT_S = 20.0


class Nodes:
    """The job's hosts; asks in the background which of them it still has.

    Args:
        question: the command that prints the hosts that are left; empty: none can be lost.
    """

    def __init__(
        self, hosts: list[str], question: list[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.hosts = hosts
        self._clock = clock
        self._argv = question
        self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._question: subprocess.Popen[bytes] | None = None
        self._asked_at = -ASK_EVERY_S
        self._gone: set[int] = set()

    def ask(self) -> None:
        """Ask now, unless the last question is less than `ASK_EVERY_S` old."""
        if not self._argv or self._question or self._clock() - self._asked_at < ASK_EVERY_S:
            return
        self._asked_at = self._clock()
        self._answer.seek(0)
        self._answer.truncate()
        try:
            self._question = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=self._answer,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except OSError:
            self._question = None

    def gone(self) -> set[int]:
        """Return the nodes that the job has lost, by the answers so far."""
        if self._question is not None and self._question.poll() is not None:
            if self._question.returncode == 0:
                self._read()
            self._question = None
        elif self._question is not None and self._clock() - self._asked_at > ASK_TIMEOUT_S:
            self._question.kill()
        return self._gone

    def _read(self) -> None:
        self._answer.seek(0)
        left = self._answer.read().decode(errors="replace").split()
        # The script runs on this host: an answer that leaves the host out can't be right.
        if self.hosts[0] in left:
            self._gone |= {node for node, host in enumerate(self.hosts) if host not in left}

    def close(self) -> None:
        """Stop asking, and end a question that is still open."""
        if self._question is not None:
            end_child(self._question)
            self._question = None
        self._answer.close()
