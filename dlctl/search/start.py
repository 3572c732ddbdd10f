"""Start a search: its hub as a training, and its first workers."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.errors import ManifestError, RecordError
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree
from dlctl.lifecycle import make_environment, refresh, submit
from dlctl.lifecycle import resume as go_on
from dlctl.lifecycle.submit import send
from dlctl.request.build import new_training_id, prepare_made
from dlctl.search.certificates import make_certificates
from dlctl.search.load import Loaded, hub_manifest, worker_manifest
from dlctl.search.sent import sent_search
from dlctl.search.workers import end_workers, read_pools, set_pool

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.manifest.model import Manifest
    from dlctl.record import Record, RecordStore
    from dlctl.request.request import Request


def start(
    session: Session, loaded: Loaded, store: RecordStore,
    say: Callable[[str], None] = lambda _: None,
) -> Record:  # fmt: skip
    """Submit a search, once, and return the record of its hub.

    The hub is a training: `dlctl status`, `logs`, `halt`, `resume`, `cancel` and `fetch` know it.

    Raises:
        ManifestError, PlanError, SiteError, SchedulerError, TransportError
    """
    search_id = new_training_id(loaded.file.name)
    spec = replace(loaded.spec, network=session.site.network)
    prepare_made(worker_manifest(loaded), loaded.path, session.site, search_id)  # or it raises now
    files = {names.SPEC: contract.to_json(spec)}
    if (manifest := loaded.manifest) is not None:
        plan = _trial_plan(session, loaded, manifest, search_id)
        files[names.TRIAL_PLAN] = contract.to_json(plan)
    request = prepare_made(hub_manifest(loaded), loaded.path, session.site, search_id, files)
    make_environment(session, request.plan, say)
    keys = [Entry(name, pem.encode(), mode=0o600) for name, pem in make_certificates().items()]

    def bring_keys() -> None:
        target = f"jobs/{search_id}/{names.KEYS}"
        send(session, request.plan.root, [Tree(target, keys, if_exists="repair")])

    record = submit(session, request, store, before=bring_keys)
    set_pool(session, loaded, record, *loaded.file.workers.jobs)
    return record


def _trial_plan(
    session: Session, loaded: Loaded, manifest: Manifest, search_id: str
) -> contract.Plan:
    """Return the plan of a trial, which runs inside a worker's job, on its node."""
    on_one = manifest.model_copy(update={"nodes": 1, "learners_per_node": manifest.learners})
    plan = _plan(session, loaded, on_one, search_id)
    if names.JOB in loaded.file.space and not plan.framework.has_loop:
        raise ManifestError(
            f"{loaded.path}: space.{names.JOB}: only the built-in loop takes another file for each "
            f"trial, and {plan.framework.name} has its own",
            hint=f"let the program choose, by a parameter {names.ARGUMENTS}<name>",
        )
    searched = [name.removeprefix(names.ARGUMENTS) for name in loaded.file.space
                if name.startswith(names.ARGUMENTS)]  # fmt: skip
    section = on_one.framework
    marks = section.arguments | {name: names.mark_of(name) for name in searched}
    marked = on_one.model_copy(
        update={"framework": section.model_copy(update={"arguments": marks})}
    )
    recipe = _plan(session, loaded, marked, search_id).framework.recipe
    launch = plan.launch
    if launch.kind == "srun" and launch.argv:
        # Trials of one worker share its allocation, and neither CPUs nor memory in it.
        memory = plan.resources.memory_bytes_per_node
        share = [] if memory is None else [f"--mem={memory >> 20}M"]
        launch = replace(launch, argv=[*launch.argv, "--exact", *share])
    return replace(
        plan, batch=contract.Batch("local"), launch=launch, lifecycle=None,
        framework=replace(plan.framework, recipe=recipe),
        resources=replace(plan.resources, time_s=None),
    )  # fmt: skip


def _plan(session: Session, loaded: Loaded, manifest: Manifest, search_id: str) -> contract.Plan:
    data = manifest.to_yaml().encode()
    return prepare_made(data, loaded.path, session.site, search_id).plan


def resume(
    session: Session, record: Record, store: RecordStore,
    say: Callable[[str], None] = lambda _: None,
) -> Record:  # fmt: skip
    """Start the hub again, with as many workers as it had been given last.

    Raises:
        ManifestError, PlanError, SiteError, SchedulerError, TransportError
    """
    record = refresh(session, [record], store)[0]
    if record.state.final and record.state is not State.COMPLETED:
        end_workers(session, record)
        # The hub removes it, too; workers that begin before the hub would leave at once.
        session.transport.run(f"rm -f {shlex.quote(f'{record.job_dir}/{names.ENDED}')}")
    pools = read_pools(session, record)
    with sent_search(session, record) as loaded:
        known = go_on(session, record, store, _no_interrupted_submission, on_line=say)
        first = names.Pool("", *loaded.file.workers.jobs)
        for pool in pools or [first]:
            set_pool(session, loaded, known, pool.least, pool.most, pool.partition)
    return known


def _no_interrupted_submission(record: Record) -> Request:
    raise RecordError(
        f"{record.training_id}: the search was never sent whole",
        hint=f"dlctl search cancel {record.training_id}, and start it again",
    )
