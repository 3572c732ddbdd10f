"""The plan of a training that is a trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlctl.contract.plan import Plan
from dlctl.contract.search.spec import ENV


def trial_plan(plan: Plan, point: Mapping[str, Any], generation: int, job_dir: str) -> Plan:
    """Return the plan of one trial.

    Args:
        plan: What all trials of the search have in common.
        point: A key of the plan, such as `training.batch_size` or `framework.arguments.lr`, and the
            value that it has in this trial.
        generation: How many trials this one goes on from, one after the other. Each adds what the
            plan says of epochs and steps.
        job_dir: The trial's own.

    Raises:
        AttributeError, TypeError: the plan has no such key.
    """
    for key, value in point.items():
        section, *_ = path = key.split(".")
        is_text = section != ENV or isinstance(value, str)
        plan = _with(plan, path, value if is_text else json.dumps(value))
    training = plan.training
    training = replace(
        training, epochs=training.epochs * (1 + generation),
        steps=None if training.steps is None else training.steps * (1 + generation),
        settings_of_build=generation > 0,
    )  # fmt: skip
    return replace(plan, training=training, job_dir=job_dir)


def _with(part: Any, path: Sequence[str], value: Any) -> Any:
    """Return a part of a plan with another value at a path of keys."""
    key, *rest = path
    if isinstance(part, Mapping):
        return {**part, key: _with(part[key], rest, value) if rest else value}
    return replace(part, **{key: _with(getattr(part, key), rest, value) if rest else value})
