"""Say what a submission would send and ask for, and where it would start first; send nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.errors import PlanError
from dlctl.models.use import build
from dlctl.record import used
from dlctl.request.build import open_folder
from dlctl.request.left_out import FolderFile, listing, summary
from dlctl.service.describe import asked_in_words
from dlctl.service.submit import refuse_this_python, tell_plan
from dlctl.store_checks import refuse_wrong_stores
from dlctl.suggest import waits
from dlctl.units import counted, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlctl.contract import Plan
    from dlctl.lifecycle import Session
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import RecordStore
    from dlctl.request.build import Folder
    from dlctl.request.variants import Variant
    from dlctl.tell import Tell

_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Forecast:
    """What a submission would do."""

    plan: dict[str, str]
    """In words, by what they are about."""
    files: list[FolderFile]
    """The files that would be sent."""
    starts: list[waits.Start]
    """When the job would start in each partition that fits, the earliest first; none without
    partitions."""


def forecast(
    session: Session, store: RecordStore, wanted: Sequence[Variant], tell: Tell
) -> Forecast:
    """Return what a submission would do; warn and refuse as the submission would.

    Args:
        wanted: One training or more; the plan and the files are the first one's.

    Raises:
        ManifestError, PlanError, SiteError, TransportError
    """
    manifest, overrides = wanted[0].manifest, wanted[0].overrides
    folder = open_folder(manifest, session.site)
    request = build(session, manifest, overrides, read=folder)
    for each in wanted[1:]:  # refuses what the submission would refuse
        build(session, each.manifest, each.overrides,
              read=folder if each.manifest == manifest else None)  # fmt: skip
    session.expect_jobs()
    refuse_this_python(request.plan, session.site)
    tell_plan(request.plan, manifest, None, tell)
    refuse_wrong_stores(session, request, tell)
    here = [past for past in used.known(store) if past.site == session.site.name]
    starts = []
    for plan in _plans(session, manifest, overrides, folder, request.plan):
        in_s, why_not = planned_start(session, plan)
        starts.append(waits.start(here, plan.batch.partition or "", in_s, why_not))
    starts.sort(key=lambda each: (each.planned_in_s is None, each.planned_in_s))
    files = [each for each in listing(request.code) if not each.left_out_by]
    labels = "; ".join(each.label for each in wanted)
    many = {"trainings": f"{len(wanted)}: {labels}"} if len(wanted) > 1 else {}
    words = many | _in_words(request.plan) | {"sends": summary(request.code)}
    return Forecast(words, files, starts)


def planned_start(session: Session, plan: Plan) -> tuple[float | None, str]:
    """Return in how many seconds the scheduler would start a job, or why that is not known."""
    script = session.scheduler.start_script(plan)
    if script is None:
        return None, ""
    end = session.transport.run(script, timeout_s=_TIMEOUT_S)
    in_s, why_not = session.scheduler.parse_start(end.text, end.error_text)
    return in_s, "" if in_s is not None else why_not


def _plans(
    session: Session, manifest: Path, overrides: Overrides, folder: Folder, chosen: Plan
) -> list[Plan]:
    """Return the plan for each partition that fits; the site's choice, if it names none."""
    plans = [chosen] if session.scheduler.allocates else []
    for name in session.site.partitions:
        if name != chosen.batch.partition and overrides.partition is None:
            with contextlib.suppress(PlanError):
                there = replace(overrides, partition=name)
                plans.append(build(session, manifest, there, read=folder).plan)
    return plans


def _in_words(plan: Plan) -> dict[str, str]:
    batch, framework, environment = plan.batch, plan.framework, plan.environment
    places = {"partition": batch.partition, "account": batch.account, "qos": batch.qos,
              "constraint": batch.constraint, "gres": batch.gres}  # fmt: skip
    server = plan.parameter_server
    words = {
        "name": plan.name,
        "site": plan.site,
        "asks for": asked_in_words(plan),
        "scheduler": ", ".join([batch.scheduler, *(f"{k} {v}" for k, v in places.items() if v),
                                *batch.extra]),  # fmt: skip
        "runs": framework.command or f"{framework.job} ({framework.name})",
        "python": environment.python or " ".join([*environment.modules, *environment.container]),
        "packages": ", ".join(plan.requirements),
        "launcher": plan.launch.kind,
        "server": server.solver if server else "",
        "data": ", ".join(f"{store.type} {store.id}" for store in plan.data_stores),
        "checkpoints": _saves(plan),
        "retries": counted(plan.lifecycle.retries, "fault")
        if plan.lifecycle and plan.lifecycle.retries is not None else "",
    }  # fmt: skip
    return {name: text for name, text in words.items() if text}


def _saves(plan: Plan) -> str:
    """Return when checkpoints are taken; "" if the program decides."""
    policy = plan.checkpoint
    if not plan.framework.has_loop:
        return f"those of the program: {policy.files}" if policy.files else ""
    whens = [
        "when it pays" if policy.auto else "",
        f"every {counted(policy.every_steps, 'step')}" if policy.every_steps else "",
        f"every {counted(policy.every_epochs, 'epoch')}" if policy.every_epochs else "",
        f"every {format_duration(policy.every_s)}" if policy.every_s else "",
    ]
    return f"{''.join(whens)}, the newest {policy.keep} are kept"
