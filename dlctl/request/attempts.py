"""The files of each attempt of a training: manifest, plan and batch script, which belong together.

A resumption may ask for other resources. Only these are planned again. The model, the data and
their order stay as in the first attempt.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl import __version__, contract
from dlctl.errors import RecordError
from dlctl.files.archive import Entry
from dlctl.files.small_files import read_files
from dlctl.manifest.overrides import Overrides
from dlctl.request.bundle import differences

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.request.request import Request
    from dlctl.sites.files import Site
    from dlctl.transport import Transport


@dataclass(frozen=True)
class AttemptFiles:
    """The three files of one attempt, unchanged."""

    attempt: int
    """The attempt's number; 0: not assigned yet."""
    manifest: bytes
    plan_text: bytes
    script: bytes
    plan: contract.Plan

    def entries(self) -> list[Entry]:
        """Return the files as archive entries."""
        return [
            Entry(contract.MANIFEST, self.manifest),
            Entry(contract.PLAN, self.plan_text),
            Entry(contract.SCRIPT, self.script, mode=0o755),
        ]


def of_request(request: Request) -> AttemptFiles:
    """Return the files of a training's first attempt."""
    return _files(request.plan, request.manifest, request.script)


def _files(plan: contract.Plan, manifest: str, script: str) -> AttemptFiles:
    plan_text = contract.to_json(plan).encode()
    return AttemptFiles(0, manifest.encode(), plan_text, script.encode(), plan)


def read_newest(transport: Transport, record: Record) -> AttemptFiles:
    """Return the files of the newest attempt that has its own.

    Raises:
        RecordError: the files are gone, or come from another version of dlctl.
    """
    return read_all(transport, record)[-1]


def read_all(transport: Transport, record: Record) -> list[AttemptFiles]:
    """Return the files of each attempt, in order.

    An attempt that is not submitted yet has none.

    Raises:
        RecordError: the files are gone, or come from another version of dlctl.
    """
    numbers = range(1, record.attempt + 1)
    names = {
        n: [contract.manifest_file(n), contract.plan_file(n), contract.script_file(n)]
        for n in numbers
    }
    paths = [f"{record.job_dir}/{name}" for n in numbers for name in names[n]]
    contents = read_files(transport, paths)
    found = []
    for n in numbers:
        manifest, plan, script = (contents[f"{record.job_dir}/{name}"] for name in names[n])
        if manifest is not None and plan is not None and script is not None:
            understood = _plan(transport, f"{record.job_dir}/{contract.plan_file(n)}", plan)
            found.append(AttemptFiles(n, manifest, plan, script, understood))
    if not found:
        raise _lost(
            transport, record, [n for n in names[1] if contents[f"{record.job_dir}/{n}"] is None]
        )
    return found


def _lost(transport: Transport, record: Record, names: list[str]) -> RecordError:
    """Return the error of a job directory that somebody, or a purge of old files, has emptied."""
    return RecordError(
        f"{transport.name}: {', '.join(names)} of {record.training_id} can't be found any more in "
        f"{record.job_dir}",
        hint=f"`dlctl fetch results {record.training_id}` brings what is still there; "
        f"`dlctl resume --code {record.training_id}` sends your folder again and continues",
    )


def _plan(transport: Transport, path: str, content: bytes) -> contract.Plan:
    try:
        return contract.from_json(contract.Plan, content)
    except contract.ContractError as error:
        raise RecordError(
            f"{transport.name}: {path} can't be understood: {error}",
            hint="it may come from another version of dlctl; use that version",
        ) from error


def with_code(files: AttemptFiles, request: Request, sent_index: bytes | None) -> AttemptFiles:
    """Return the files of an attempt that runs other code, with the requirements of that.

    Args:
        request: Rebuilt from the user's folder.
        sent_index: The index of the code that runs until now; None: unknown.

    Raises:
        RecordError: the manifest selects another environment of the site than the first attempt's.
    """
    from dlctl.manifest.load import parse_manifest
    from dlctl.plan.render import render

    code, requirements = request.code, request.plan.requirements
    before, now = _named(files.plan), _named(request.plan)
    if (before and before.name) != (now and now.name):
        was, to = (each.name if each else "of the nodes" for each in (before, now))
        raise RecordError(
            f"{files.plan.training_id} ran in the environment {was}, and its manifest selects {to}",
            hint="put framework.version, or the site's file, back, or submit a new training",
        )
    changes = [] if sent_index is None else differences(sent_index, code.index)
    plan = replace(
        files.plan, code_digest=code.digest, code_changes=changes, requirements=requirements,
        left_out=request.plan.left_out,
        environment=request.plan.environment,
        learner_environment=request.plan.learner_environment,
    )  # fmt: skip
    manifest, _ = parse_manifest(files.manifest, contract.MANIFEST, stored=True).extract_secrets()
    manifest = manifest.model_copy(update={"requirements": requirements})
    return _files(plan, manifest.to_yaml(), render(plan))


def decide_again(base: AttemptFiles, overrides: Overrides, site: Site) -> AttemptFiles:
    """Return the files of an attempt with other resources: a new placement, launch and batch.

    Raises:
        ManifestError: an override is invalid.
        PlanError: the request fits no partition.
    """
    from dlctl.manifest.checks import not_in_this_version
    from dlctl.manifest.load import parse_manifest
    from dlctl.plan.decide import Identity, make_plan
    from dlctl.plan.render import render
    from dlctl.request.request import runtime_entries, this_machine

    old = base.plan
    name = f"{old.training_id}/{contract.manifest_file(base.attempt)}"
    manifest, _ = parse_manifest(base.manifest, name, overrides, stored=True).extract_secrets()
    runtime_digest, _ = runtime_entries()
    identity = Identity(
        old.training_id, old.created_at, old.code_digest, runtime_digest, sys.executable,
        this_machine(site), recipe=old.framework.recipe, environment=_named(old),
    )  # fmt: skip
    new = make_plan(manifest, site, identity, not_in_this_version(manifest))
    plan = replace(
        old, resources=new.resources, batch=new.batch, launch=new.launch,
        environment=new.environment, learner_environment=new.learner_environment,
        dlctl_version=__version__,
        lifecycle=_longer(old.lifecycle, new),
        parameter_server=new.parameter_server, alone_on_server=new.alone_on_server,
        not_in_this_version=new.not_in_this_version,
        # This version's runtime can continue with another number of learners.
        runtime_dir=f"{old.root}/runtime/{runtime_digest}",
        training=replace(old.training, epochs=new.training.epochs),
        checkpoint=replace(old.checkpoint, mtbf_s=new.checkpoint.mtbf_s),
        umask=new.umask,
        code_changes=[],
    )  # fmt: skip
    return _files(plan, manifest.to_yaml(), render(plan))


def _longer(old: contract.Lifecycle | None, new: contract.Plan) -> contract.Lifecycle | None:
    """Return what follows an attempt whose `--time` may give the whole training more time.

    Less is the limit of a job, not of the training: it goes on in a chain of such jobs.
    """
    from dlctl.plan.decide import link_count

    asked, job_s = new.lifecycle, new.resources.time_s
    if old is None or asked is None or old.total_time_s is None or asked.total_time_s is None:
        return old
    total_s = max(old.total_time_s, asked.total_time_s)
    links = 1 if job_s is None else link_count(total_s, job_s)
    return replace(old, total_time_s=total_s, links=links)


def runs_alike(one: contract.Plan, other: contract.Plan) -> bool:
    """Return whether the site's file says the same to both: where they run, and with what."""

    def parts(plan: contract.Plan) -> tuple[object, ...]:
        batch = plan.batch
        return (plan.environment, plan.learner_environment, plan.launch.kind,
                batch.account, batch.qos, batch.extra)  # fmt: skip

    return parts(one) == parts(other)


def _named(plan: contract.Plan) -> contract.Environment | None:
    """Return the one of the site's environments that the first attempt ran in."""
    used = plan.learner_environment or plan.environment
    if not used.name:
        return None
    return replace(used, python=used.site_python or used.python, site_python=None)
