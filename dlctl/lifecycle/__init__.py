"""Submit, watch, halt, resume, cancel, delete: the only module with a transport and a scheduler.

A submission happens once. The local record is written first; the job directory appears whole; one
shell script over there writes a receipt, asks the scheduler and writes its answer, so that a dlctl
killed at any moment finds out later what happened. The job's first act is to claim its attempt:
a claim made here first (`_fence`) keeps a job that was lost from ever running beside its successor.
"""

from dlctl.lifecycle.end import cancel, delete, halt, resume
from dlctl.lifecycle.session import Session, open_session
from dlctl.lifecycle.submit import submit
from dlctl.lifecycle.watch import check_learner, details, read_plan, read_script, refresh, stale

__all__ = [
    "Session", "cancel", "check_learner", "delete", "details", "halt", "open_session",
    "read_plan", "read_script", "refresh", "resume", "stale", "submit",
]  # fmt: skip
