"""Entry point of the job script: `python -m learner.supervisor <job dir> <attempt>`.

Every attempt leaves a verdict, even if the supervisor itself fails.
"""

from __future__ import annotations

import signal
import sys
import traceback
from functools import partial
from operator import contains
from pathlib import Path

from dlctl import contract
from learner.errors import SiteFault, UserFault
from learner.job.directives import is_there
from learner.job.outcome import fault_outcome
from learner.supervisor.finish import crash_outcome, leave, say
from learner.system.signals import HaltFlag

MINIMUM_PYTHON = (3, 8)
REQUEUED = "requeued"
"""The job script's word for a job that Slurm runs again: the attempt before has ended."""


def main(arguments: list[str]) -> int:
    """Supervise one attempt; return 0 for COMPLETED and HALTED."""
    job_dir, attempt = Path(arguments[0]), int(arguments[1])
    try:
        # This check comes first: an old Python can't even read the plan's types.
        _check_python()
        if arguments[2:] == [REQUEUED]:
            from learner.supervisor.takeover import go_on_in_job

            return go_on_in_job(job_dir, attempt)
        return _supervise(job_dir, attempt)
    except UserFault as fault:
        outcome = fault_outcome(fault)
    except BaseException as error:  # the last resort: no attempt ends without a verdict
        traceback.print_exc()
        outcome = crash_outcome(error, job_dir.name)
    if is_there(job_dir / contract.verdict_file(attempt)):
        say(f"The attempt had ended before; what was to follow it failed: {outcome.reason}")
        return 1
    return leave(job_dir, attempt, outcome)[0]


def _check_python() -> None:
    if sys.version_info < MINIMUM_PYTHON:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SiteFault(
            f"The node's Python {sys.executable!r} is {version}; dlctl needs 3.8 or newer.",
            hint="Set a newer one in the site file (`environment`), or run: dlctl sites setup SITE",
        )


def _supervise(job_dir: Path, attempt: int) -> int:
    from learner.job.context import read_plan
    from learner.job.directives import is_superseded
    from learner.lifecycle.manager import follow
    from learner.lifecycle.starters import run_here
    from learner.supervisor.attempt import Supervisor
    from learner.supervisor.control import Control
    from learner.supervisor.notices import tell_end
    from learner.system.segments import remove_segment_folder

    signals = HaltFlag(signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP).install()
    plan = read_plan(job_dir, attempt)
    with Control(job_dir, plan, signals, attempt=attempt) as control:
        supervisor = Supervisor(job_dir, attempt, plan, control)
        try:
            outcome = supervisor.run()
        except UserFault as fault:
            outcome = supervisor.ended_early() or fault_outcome(fault)
        outcome = control.explain(outcome)
        code, following = leave(job_dir, attempt, outcome, plan, control.left_s())
        if following is None and not is_superseded(job_dir, attempt):
            tell_end(job_dir, plan, attempt, say)
        # After the verdict: a final state without a verdict would look like a crash.
        supervisor.heart.set(state=outcome.state, reason=outcome.reason)
        remove_segment_folder(plan.training_id, attempt)  # an interrupted preflight may leave one
    is_ended = partial(contains, signals.received, signal.SIGTERM)
    if following and follow(following, say, is_ended):
        run_here(following)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
