"""Submit, watch, halt, resume, cancel, delete: the only module with a transport and a scheduler.

A training is submitted once. The local record is written first, and the job directory appears
whole. One shell script at the site writes a receipt, asks the scheduler and writes its answer. So
if dlctl is killed at any moment, it finds out later what happened. A job first claims its attempt.
If dlctl claims it before (`fence`), a lost job can never run beside its successor.
"""

from dlctl.lifecycle.end import cancel_all, delete, delete_all, halt_all
from dlctl.lifecycle.many import submit, submit_all
from dlctl.lifecycle.resumption import changed_since_sent, repeats_error, resume
from dlctl.lifecycle.session import Session, open_session
from dlctl.lifecycle.staging import make_environment
from dlctl.lifecycle.waiting import QueuePace
from dlctl.lifecycle.watch import (
    check_learner,
    learner_statuses,
    read_plan,
    read_queue,
    refresh,
    stale,
)

__all__ = [
    "QueuePace", "Session", "cancel_all", "changed_since_sent", "check_learner", "delete",
    "delete_all", "halt_all", "learner_statuses",
    "make_environment", "open_session", "read_plan", "read_queue", "refresh",
    "repeats_error", "resume", "stale", "submit", "submit_all",
]  # fmt: skip
