"""Collect beside one learner: `python -m learner.collect <job dir> <attempt> <rank> <watchdog>`.

Standard input is a pipe from the watchdog: its end, also by the watchdog's death, ends the
collector after a last pass. A signal to the job is not meant for it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from dlctl import contract
from learner.collect.complaints import Complaints
from learner.collect.setup import make_collector

_LAST_PASS_S = 6
"""The kernel ends the collector this long after the learner, whatever it does."""


def main(arguments: list[str]) -> int:
    """Collect until standard input ends."""
    job_dir, attempt, rank = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    complaints = Complaints(job_dir / contract.learner_log(attempt, rank))
    try:
        collector = make_collector(
            job_dir, attempt, rank, int(arguments[3]), os.environ, complaints.say
        )
        collector.run(sys.stdin.fileno(), finishing=lambda: signal.alarm(_LAST_PASS_S))
    except Exception as error:  # noqa: BLE001 - the training goes on whatever happens here
        complaints.say(
            "utilisation and parsed metrics are missing from here on: "
            f"{type(error).__name__}: {error}"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
