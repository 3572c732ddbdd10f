"""Start a search: its hub as a training, and its first workers."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.contract.launchers import LAUNCHERS
from dlctl.contract.programs.lone_program import saves_beside_itself
from dlctl.errors import ManifestError, RecordError
from dlctl.files.small_files import read_files, write_file
from dlctl.lifecycle import refresh
from dlctl.lifecycle import resume as go_on
from dlctl.lifecycle.many import Sent, submit_all
from dlctl.record.batches import Key
from dlctl.request.build import new_training_id, prepare_made
from dlctl.request.bundle import collect
from dlctl.search.certificates import make_certificates
from dlctl.search.load import Loaded, hub_manifest, load_search, worker_manifest
from dlctl.search.sent import sent_search
from dlctl.search.workers import end_workers, read_pools, set_pool
from dlctl.tell import SILENT, Tell

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.manifest.model import Manifest
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record, RecordStore
    from dlctl.request.bundle import Bundle
    from dlctl.request.request import Request

_KEPT = {
    "space": "space", "strategy": "strategy.name", "options": "an option of the strategy",
    "seed": "strategy.seed", "deterministic": "strategy.deterministic",
    "window": "strategy.window", "metric": "metric.name", "maximize": "metric.goal",
}  # fmt: skip
"""The parts of spec.json on which the model's log depends, by key."""


def start(
    session: Session, loaded: Loaded, store: RecordStore, tell: Tell = SILENT,
    key: str | None = None,
) -> Sent:  # fmt: skip
    """Submit a search, once, and its first workers; return what became of its hub.

    The hub is a training: `dlctl status`, `logs`, `halt`, `resume`, `cancel` and `fetch` know it.

    Args:
        key: What a program calls this request; repeated at any time, it means the same search.

    Raises:
        KeyTaken: the key is another request's.
        ManifestError, PlanError, SiteError, SchedulerError, TransportError
    """
    code = collect(loaded.path.resolve().parent, site=session.site)
    trial: dict[str, Any] = {}

    def hub(training_id: str | None, tags: Sequence[str]) -> Request:  # noqa: ARG001
        search_id = training_id or new_training_id(loaded.file.name)
        _made(session, loaded, worker_manifest(loaded), search_id, code)  # or it raises now
        files = _decided(session, loaded, search_id, code)
        trial.update(json.loads(files.get(names.TRIAL_PLAN, "{}")))
        keys = {f"{names.KEYS}/{name}": pem for name, pem in make_certificates().items()}
        request = _made(session, loaded, hub_manifest(loaded), search_id, code)
        return replace(request, scripts={**request.scripts, **files}, private=keys)

    def look_over(requests: Sequence[Request]) -> None:
        own = requests[0].plan.not_in_this_version
        for note in trial.get("not_in_this_version", own):
            tell.warn(note)
        tell.note(_shared_folder(loaded, trial))

    text = loaded.path.read_bytes() + f"\n{session.site.name} {code.digest}".encode()
    request_key = Key(key, hashlib.sha256(text).hexdigest()) if key else None
    command = f"search {hashlib.sha256(text + f' {Path.cwd()}'.encode()).hexdigest()}"
    sent = submit_all(session, store, command, [hub], tell=tell, look_over=look_over,
                      key=request_key)  # fmt: skip
    if not sent.batch.records:
        return sent  # the search that this key has started was deleted
    record = sent.one()
    for pool in read_pools(session, record) or [names.Pool("", *loaded.file.workers.jobs)]:
        set_pool(session, loaded, record, pool.least, pool.most, pool.partition)
    return sent


def _made(
    session: Session, loaded: Loaded, manifest: bytes, search_id: str, code: Bundle | None = None,
    searched: Sequence[str] = (),
) -> Request:  # fmt: skip
    return prepare_made(
        manifest, loaded.path, session.site, search_id, searched=searched, code=code
    )


def _shared_folder(loaded: Loaded, trial: dict[str, Any]) -> str:
    """Return what becomes of files that trials seem to write into the folder they share."""
    framework = trial.get("framework", {})
    command, recipe = framework.get("command"), framework.get("recipe")
    if not command and (not recipe or recipe["loop"]):  # no training, or the built-in loop
        return ""
    texts = [command or "", recipe["script"] if recipe else ""]
    if not saves_beside_itself(texts, loaded.path.parent):
        return ""
    return (
        "the program names neither RESULT_DIR nor CHECKPOINT_DIR: all trials run in one folder, "
        "and what one writes there replaces another's; train the best one again for its files: "
        "dlctl search best --manifest FILE"
    )


def _decided(
    session: Session, loaded: Loaded, search_id: str, code: Bundle | None = None
) -> dict[str, str]:
    """Return the files of what is decided before a search begins, by their paths."""
    spec = replace(loaded.spec, network=session.site.network)
    files = {names.SPEC: contract.to_json(spec)}
    if (manifest := loaded.manifest) is not None:
        plan = _trial_plan(session, loaded, manifest, search_id, code)
        files[names.TRIAL_PLAN] = contract.to_json(plan)
    return files


def _trial_plan(
    session: Session, loaded: Loaded, manifest: Manifest, search_id: str, code: Bundle | None
) -> contract.Plan:
    """Return the plan of a trial, which runs inside a worker's job, on its node."""
    on_one = manifest.model_copy(update={"nodes": 1, "learners_per_node": manifest.learners})
    searched = [name.removeprefix(names.ARGUMENTS) for name in loaded.file.space
                if name.startswith(names.ARGUMENTS)]  # fmt: skip
    data = on_one.to_yaml().encode()
    plan = _made(session, loaded, data, search_id, code, searched).plan
    if names.JOB in loaded.file.space and not plan.framework.has_loop:
        raise ManifestError(
            f"{loaded.path}: space.{names.JOB}: only the built-in loop takes another file for each "
            f"trial, and {plan.framework.name} has its own",
            hint=f"let the program choose, by a parameter {names.ARGUMENTS}<name>",
        )
    _check_values(loaded, plan)
    # Trials of one worker share its allocation, and neither CPUs nor memory in it.
    argv = LAUNCHERS[plan.launch.kind].sharing(
        plan.launch.argv, plan.resources.memory_bytes_per_node
    )
    launch = replace(plan.launch, argv=argv)
    return replace(
        plan, batch=contract.Batch("local"), launch=launch, lifecycle=None,
        resources=replace(plan.resources, time_s=None),
    )  # fmt: skip


def _check_values(loaded: Loaded, plan: contract.Plan) -> None:
    """Refuse a value that the plan of a trial can't hold; otherwise each trial would fail."""
    for parameter in loaded.spec.space:
        kind = int if parameter.kind == "int" else float
        for value in parameter.choices or (kind(parameter.low), kind(parameter.high)):
            trial = names.trial_plan(plan, {parameter.name: value}, 0, plan.job_dir)
            try:
                contract.from_json(contract.Plan, contract.to_json(trial))
            except contract.ContractError:
                raise ManifestError(
                    f"{loaded.path}: space.{parameter.name}: a training can't have {value!r} there",
                    hint="whole numbers are `{int: [LOW, HIGH]}`",
                ) from None


def resume(
    session: Session, record: Record, store: RecordStore,
    say: Callable[[str], None] = lambda _: None, overrides: Overrides | None = None, *,
    new_code: bool = False,
) -> Record:  # fmt: skip
    """Start the hub again, with as many workers as it had been given last.

    Args:
        say: Called with a sentence about what takes minutes.
        overrides: Changes to the hub's resources.
        new_code: Send the user's folder as it is now, and go on with that.

    Raises:
        RecordError: it runs or has completed, or the new search.yml asks for other trials.
        ManifestError, PlanError, SiteError, SchedulerError, TransportError
    """
    record = refresh(session, [record], store)[0]
    here = nullcontext(load_search(Path(record.manifest_path))) if new_code else None
    with here or sent_search(session, record) as loaded:
        if record.state.final and record.state is not State.COMPLETED:
            if new_code:
                _renew(session, loaded, record)
            end_workers(session, record)
            # The hub removes it, too; workers that begin before the hub would leave at once.
            session.transport.run(f"rm -f {shlex.quote(f'{record.job_dir}/{names.ENDED}')}")
        pools = read_pools(session, record)
        rebuild = partial(_rebuilt, session, loaded) if new_code else _no_interrupted_submission
        known = go_on(session, record, store, rebuild, overrides, new_code=new_code, on_line=say)
        first = names.Pool("", *loaded.file.workers.jobs)
        for pool in pools or [first]:
            set_pool(session, loaded, known, pool.least, pool.most, pool.partition)
    return known


def _renew(session: Session, loaded: Loaded, record: Record) -> None:
    """Write what search.yml says now, if the search would have had the same trials with it."""
    files = _decided(session, loaded, record.training_id)
    path = f"{record.job_dir}/{names.SPEC}"
    sent = read_files(session.transport, [path])[path]
    before, now = json.loads(sent or "{}"), json.loads(files[names.SPEC])
    for key, what in _KEPT.items():
        if before.get(key) != now[key]:
            raise RecordError(
                f"{loaded.path}: {what} is another one than that of {record.training_id}, whose "
                "trials come from it",
                hint=f"put it back, or start a new search: dlctl search start {loaded.path}",
            )
    for name, content in files.items():
        write_file(session.transport, f"{record.job_dir}/{name}", content.encode())


def _rebuilt(session: Session, loaded: Loaded, record: Record) -> Request:
    """Return the hub's request, from the user's folder as it is now."""
    return _made(session, loaded, hub_manifest(loaded), record.training_id)


def _no_interrupted_submission(record: Record) -> Request:
    raise RecordError(
        f"{record.training_id}: the search was never sent whole",
        hint=f"`dlctl search start` with the same file takes it up: {record.manifest_path}",
    )
