"""Which learner of which attempt this process is, and its plan. No torch here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from learner.faults import UserFault

JOB_VARIABLE = "DLCTL_JOB_DIR"
ATTEMPT_VARIABLE = "DLCTL_ATTEMPT"


@dataclass(frozen=True)
class Seat:
    """What this process was started for."""

    directory: Path
    """The job directory."""
    attempt: int
    plan: contract.Plan
    rank: int


def read_plan(directory: Path, attempt: int) -> contract.Plan:
    """Return the plan of an attempt.

    Raises:
        UserFault: it is not there or can't be understood.
    """
    name = contract.plan_file(attempt)
    try:
        plan = contract.read_record(contract.Plan, directory / name)
    except contract.ContractError as error:
        raise UserFault(f"{directory / name} can't be understood: {error}") from error
    if plan is None:
        raise UserFault(f"there is no {name} in {directory}")
    return plan


def find_seat(env: Mapping[str, str] = os.environ) -> Seat | None:
    """Return the seat that the launcher has given this process; None outside of a dlctl job."""
    directory, attempt = env.get(JOB_VARIABLE), env.get(ATTEMPT_VARIABLE, "")
    if not directory or not attempt.isdecimal():
        return None
    path = Path(directory)
    return Seat(path, int(attempt), read_plan(path, int(attempt)), int(env.get("RANK", "0")))
