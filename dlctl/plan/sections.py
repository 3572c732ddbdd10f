"""Turn the manifest's sections into those of the plan. Pure; independent of the site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract.measured.judged_series import is_better_lower
from dlctl.contract.measured.parsers import LINE_LOOKAHEAD, ParserType
from dlctl.contract.stores import MOUNTED_STORES
from dlctl.manifest.intervals import AUTO, parse_every, parse_steps
from dlctl.manifest.running import PASSWORD, SERVER, WEBHOOK, WEBHOOK_SECRET, parse_factor
from dlctl.units import parse_duration

if TYPE_CHECKING:
    from dlctl.manifest.evaluation_metrics import EvaluationMetricsSection, GroupSection
    from dlctl.manifest.model import Manifest
    from dlctl.manifest.running import (
        HangSection,
        NotifySection,
        PlateauSection,
        RetrySection,
        StopSection,
    )

FLOOR_S = 600.0
OWN_PROGRAMS_FLOOR_S = 1800.0
"""The built-in loop reports its validation; a program of the user's own may not."""
_PORTS = {"starttls": 587, "tls": 465, "none": 25}


def training_settings(manifest: Manifest) -> contract.Training:
    """Return the built-in loop's settings for the plan."""
    values = manifest.training.model_dump()
    schedule = contract.LearningRateSchedule(**values.pop("learning_rate_schedule"))
    return contract.Training(**values, learning_rate_schedule=schedule)


def checkpoint_policy(manifest: Manifest) -> contract.CheckpointPolicy:
    """Return when to save, for the plan."""
    unit, count = parse_every(manifest.checkpoint.every)
    every: dict[str, Any] = {AUTO: True} if unit == AUTO else {f"every_{unit}": count}
    keep_every = manifest.checkpoint.keep_every
    return contract.CheckpointPolicy(
        **every,
        keep=manifest.checkpoint.keep,
        keep_every_steps=None if keep_every is None else parse_steps(keep_every),
    )


def plan_stores(manifest: Manifest) -> list[contract.DataStore]:
    """Return the data stores that nodes read and write, without credentials."""
    return [
        contract.DataStore(
            id=store.id,
            type=store.type,
            path=str(store.connection["path"]) if store.type in MOUNTED_STORES else None,
            training_data=store.training_data.container if store.training_data else None,
            training_results=store.training_results.container if store.training_results else None,
            takes_checkpoints=bool(store.training_results and store.training_results.checkpoints),
            connection={k: v for k, v in store.connection.items() if isinstance(v, str)},
            position=position,
        )
        for position, store in enumerate(manifest.data_stores)
    ]


def plain_env(manifest: Manifest) -> dict[str, str]:
    """Return the environment variables that are not credentials."""
    return {name: value for name, value in manifest.env.items() if isinstance(value, str)}


def lifecycle(retries: int | None, retry: RetrySection) -> contract.Lifecycle:
    """Return what a manifest decides about the attempts after the first."""
    return contract.Lifecycle(
        retries=retries,
        memory_factor=None if retry.memory is None else parse_factor(retry.memory),
        backoff_s=None if retry.backoff is None else float(parse_duration(retry.backoff)),
        min_learners=retry.min_learners,
    )


def stop_rules(section: StopSection | None) -> contract.StopRules | None:
    """Return the guards for the plan."""
    if section is None:
        return None
    plateau, spike = section.plateau, section.loss_spike
    return contract.StopRules(
        not_a_number=section.not_a_number,
        plateau=_plateau(plateau) if plateau else None,
        loss_spike=spike.factor if spike else None,
        skip_batches=spike is not None and spike.action == "skip",
        max_node_hours=section.max_node_hours,
        max_gpu_hours=section.max_gpu_hours,
    )


def _plateau(section: PlateauSection) -> contract.Plateau:
    """Return the guard for the plan."""
    by_name = section.patience is None and is_better_lower(section.metric or "") is False
    better = section.better or ("higher" if by_name else "lower")
    metric = section.metric or ("validation_loss" if section.patience else "")
    return contract.Plateau(metric, section.patience or 0, better)


def hang_policy(hang: HangSection, *, own_program: bool) -> contract.HangPolicy | None:
    """Return when learners are taken for hung, for the plan; None: never."""
    if hang.watch == "off":
        return None
    floor_s = OWN_PROGRAMS_FLOOR_S if own_program else FLOOR_S
    if hang.floor is not None:
        floor_s = float(parse_duration(hang.floor))
    return contract.HangPolicy(floor_s=floor_s, factor=hang.factor)


def notify_plan(section: NotifySection | None, secrets: str) -> contract.Notify | None:
    """Return who is told what, for the plan.

    Args:
        secrets: the folder with the values of references, at the site.
    """
    if section is None:
        return None
    known = {name: f"file:{secrets}/{name}" for name in section.references()}
    smtp = None
    if section.smtp is not None:
        mail = section.smtp
        match = SERVER.fullmatch(mail.server)
        assert match is not None and section.email is not None
        smtp = contract.Smtp(
            match[1], int(match[2] or _PORTS[mail.tls]), mail.sender or section.email, mail.tls,
            mail.user, known.get(PASSWORD),
        )  # fmt: skip
    return contract.Notify(
        list(section.on), section.email, smtp, known.get(WEBHOOK), known.get(WEBHOOK_SECRET),
        section.command,
    )  # fmt: skip


def metrics_plan(
    section: EvaluationMetricsSection | None, *, prints: bool
) -> dict[str, Any] | None:
    """Return how metrics are parsed, for the plan: dlctl's words, and only what is used.

    Args:
        prints: Whether a program of the user's own may print some, so that a manifest which says
            nothing has the log read by dlctl's rules.
    """
    if section is None:
        return {"type": ParserType.AUTO.value, "default": True} if prints else None
    found: dict[str, Any] = {"type": section.kind.value}
    if section.in_ is not None:
        found["in"] = section.in_
    if section.kind is ParserType.REGEX and section.groups:
        found["line_lookahead"] = section.line_lookahead or section.linelookahead or LINE_LOOKAHEAD
        found["groups"] = {name: _group(group) for name, group in section.groups.items()}
    if section.parser is not None:
        found["parser"] = section.parser
    return found


def _group(section: GroupSection) -> dict[str, Any]:
    """Return the group for the plan."""
    parts = {"scalars": section.scalars or section.values, "etimes": section.etimes}
    found: dict[str, Any] = {"regex": section.regex}
    if section.meta:
        found["meta"] = dict(section.meta)
    for key, items in parts.items():
        found[key] = {name: item.model_dump() for name, item in items.items()}
    return found
