"""All about a training that never was, for the faces that show it."""

import time

from login_side import make_record
from scheduler_plan import make_plan

from dlctl.contract import State, Status
from dlctl.outputs.insight import TrainingFiles
from dlctl.service.describe import Details


def make_details(*, insight=None, next_command="", stored_as=(), record=None, **known):
    """Return details of a training; without anything that its files tell, nothing is told."""
    files = None
    if known:
        files = TrainingFiles(**{
            "plan": make_plan(), "attempts": [], "verdict": None, "learners": [], "servers": [],
            "homes": None, "job_output": [], "orders": [], **known,
        })  # fmt: skip
    record = {"state": State.TRAINING, **(record or {})}
    return Details(make_record(**record), files, insight, next_command, list(stored_as))


def process(role, rank, host, state=State.TRAINING, reason="", exit_code=None, **metrics):
    """Return what a process tells of itself."""
    return Status(role, rank, 1, state, reason, host, heartbeat_at=time.time() - 2, step=1200,
                  epoch=3, metrics=metrics, exit_code=exit_code)  # fmt: skip
