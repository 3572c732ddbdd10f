"""The parts of a submission: what the site lacks, the question to the scheduler, its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import State, search
from dlctl.errors import (
    AuthError,
    ConnectError,
    DlctlError,
    HostKeyError,
    RecordError,
    RemoteCommandError,
    SchedulerError,
    SchedulerUnavailable,
    SubmitUnknown,
    TransportError,
)
from dlctl.files.archive import Entry
from dlctl.files.site_folders import damaged
from dlctl.files.upload import Tree, upload
from dlctl.lifecycle.observe import INTERRUPTED, parse_answer
from dlctl.lifecycle.remote_module import SiteRuntime
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import refresh
from dlctl.record import Record, RecordStore
from dlctl.request.attempts import of_request
from dlctl.scheduler import Scheduler
from dlctl.script_templates import render_script

if TYPE_CHECKING:
    from dlctl.request.request import Request
    from dlctl.transport.base import Completed

NOT_ASKED = (AuthError, ConnectError, HostKeyError)
"""What says that no connection, or no session on it, was made: no script has run."""
_BEGUN_ALREADY, _ANSWERED_ALREADY, _MODEL_GONE, NOT_NOW = 73, 74, 75, 76
NO_MORE = "the site takes no more jobs of yours now"
"""What the records of trainings say that a limit keeps from being submitted."""


def new_record(request: Request) -> Record:
    """Return the record of a training that is about to be submitted."""
    plan = request.plan
    rehearses = plan.rehearsal is not None  # then it is not the latest training of any folder
    return Record(
        training_id=plan.training_id, name=plan.name, site=plan.site,
        folder="" if rehearses else str(Path.cwd().resolve()),
        job_dir=plan.job_dir, created_at=plan.created_at,
        manifest_path="" if rehearses or plan.model else str(request.manifest_path),
        model=plan.model,
        is_search=plan.framework.name == search.FRAMEWORK,
        overrides=json.dumps(dataclasses.asdict(request.overrides)),
        reason="is being submitted", hint=f"dlctl resume {plan.training_id}",
        tags=plan.tags, varied=plan.varied,
    )  # fmt: skip


@contextlib.contextmanager
def noted(records: Sequence[Record], store: RecordStore) -> Iterator[None]:
    """Note in the records why their submission was interrupted."""
    try:
        yield
    except DlctlError as error:
        note_interrupted(records, error, store)
        raise


def note_interrupted(records: Sequence[Record], error: DlctlError, store: RecordStore) -> None:
    """Note in the records that the scheduler was not asked, and why."""
    reason, now = f"{INTERRUPTED}{error.message}", time.time()
    store.update(*(replace(record, reason=reason, seen_at=now) for record in records))


def send(
    session: Session, root: str, trees: list[Tree],
    on_progress: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Send folders to a site, readable to those whom its file names."""
    upload(session.transport, root, trees, on_progress=on_progress, umask=session.site.umask)


def lacking(session: Session, requests: Sequence[Request]) -> list[Tree]:
    """Return what the site lacks: code, runtimes, secrets and the job directories.

    Raises:
        RemoteCommandError: the root can't be read, or is not the user's alone.
        TransportError
    """
    codes = {f"store/{request.plan.code_digest}": request.code for request in requests}
    trees: dict[str, Tree] = {}
    for request in requests:
        target = _runtime_folder(request.plan)
        trees[target] = Tree(target, request.runtime, repairs=True)
        if request.secrets:
            tree = _secrets(request.plan, request.secrets)
            trees[tree.target] = tree
    absent = damaged(session.transport, requests[0].plan.root, [*codes, *trees])
    # Code that is not absent may be at the site only: that of a stored model.
    made = [Tree(target, code.entries, repairs=True) for target, code in codes.items()
            if target in absent]  # fmt: skip
    # Always sent, and last: a submission that was cancelled before may have left requests there.
    jobs = [
        Tree(f"jobs/{request.plan.training_id}",
             [*of_request(request).entries(), *_entries(request.scripts, 0o755),
              *_entries(request.private, 0o600)])
        for request in requests
    ]  # fmt: skip
    return [*made, *(tree for target, tree in trees.items() if target in absent), *jobs]


def _secrets(plan: contract.Plan, values: dict[str, str]) -> Tree:
    files = [Entry(name, value.encode(), mode=0o600) for name, value in values.items()]
    return Tree(f"secrets/{plan.training_id}", files)


def renew_credentials(
    session: Session, plan: contract.Plan, manifest: bytes, folder: Path
) -> None:  # fmt: skip
    """Send the credentials that this machine knows now; the site keeps its own of the others.

    Args:
        manifest: The training's, as the site has it: with references.
        folder: The folder to which the references to files are relative.

    Raises:
        ManifestError: the session of a profile has ended: log in first.
    """
    if b"from_" not in manifest:
        return
    from dlctl.manifest.load import parse_manifest
    from dlctl.request.credentials import values_of_now

    parsed, _ = parse_manifest(manifest, contract.MANIFEST, stored=True).extract_secrets()
    if values := values_of_now(parsed, folder, logged_in=True):
        send(session, plan.root, [_secrets(plan, values)])


def _entries(files: dict[str, str], mode: int) -> list[Entry]:
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    made = [Entry(folder, mode=0o755) for folder in sorted(folders - {"."})]
    return [*made, *(Entry(name, text.encode(), mode=mode) for name, text in files.items())]


def _runtime_folder(plan: contract.Plan | SiteRuntime) -> str:
    return f"runtime/{plan.runtime_dir.rpartition('/')[2]}"


def lacking_code(session: Session, request: Request) -> list[Tree]:
    """Return the code of a request if the site lacks it."""
    tree = Tree(f"store/{request.plan.code_digest}", request.code.entries, repairs=True)
    return [tree] if damaged(session.transport, request.plan.root, [tree.target]) else []


def runs_as_sent(session: Session, plan: contract.Plan) -> bool:
    """Return whether the plan's runtime is this version's, or is whole at the site."""
    from dlctl.request.request import runtime_entries

    target = _runtime_folder(plan)
    if target == f"runtime/{runtime_entries()[0]}":
        return True
    return not damaged(session.transport, plan.root, [target])


def lacking_runtime(session: Session, plan: contract.Plan | SiteRuntime) -> list[Tree]:
    """Return the plan's runtime if the site lacks it and it is this version's; else nothing."""
    from dlctl.request.request import runtime_entries

    digest, entries = runtime_entries()
    target = _runtime_folder(plan)
    if target != f"runtime/{digest}" or not damaged(session.transport, plan.root, [target]):
        return []
    return [Tree(target, entries, repairs=True)]


def answer_lost(record: Record, error: TransportError, store: RecordStore) -> SubmitUnknown:
    """Note that nobody knows whether a submission was heard; return that as an error."""
    why = f"the answer to the submission was lost: {error.message}"
    store.update(replace(record, reason=why))
    return _unknown(record, why)


def _unknown(record: Record, why: str) -> SubmitUnknown:
    hint = f"`dlctl status {record.training_id}` looks for it; it is never submitted twice"
    return SubmitUnknown(f"{record.training_id}: {why}", hint=hint)


def _noted(record: Record, store: RecordStore, **known: Any) -> Record:
    """Return the record with what is known of it now, which is written down."""
    record = replace(record, seen_at=time.time(), **known)
    store.update(record)
    return record


def judge(session: Session, end: Completed, record: Record, store: RecordStore) -> Record:
    """Return the record with what the script of a submission has answered.

    Raises:
        SchedulerUnavailable, SubmitRejected, SubmitUnknown
        RecordError: the stored model that it trains was deleted.
        RemoteCommandError: the job directory can't be prepared.
    """
    if end.exit_code == _MODEL_GONE:
        why = f"nothing was queued: {end.last_error_line}"
        hint = ("submit what another version has: `dlctl models list` shows them; "
                f"`dlctl delete {record.training_id}` removes this training")  # fmt: skip
        _noted(record, store, state=State.FAILED, reason=why, hint=hint)
        raise RecordError(f"{session.transport.name}: {why}", hint=hint)
    answer = parse_answer(end.stdout or None)
    if end.exit_code == NOT_NOW and answer is not None:
        return _not_now(session.scheduler, answer, record, store)
    if end.exit_code not in (0, _BEGUN_ALREADY, _ANSWERED_ALREADY):
        raise RemoteCommandError(
            f"{session.transport.name}: can't prepare the job directory {record.job_dir} "
            f"(exit code {end.exit_code}): {end.stderr.decode(errors='replace').strip()[-300:]}",
            hint=f"check the space and permissions, then `dlctl resume {record.training_id}`",
        )
    if answer is None:  # another dlctl has begun and not finished
        return refresh(session, [record], store)[0]
    try:
        accepted = _accept(session.scheduler, answer, record, store)
    except SubmitUnknown:
        found = refresh(session, [record], store)[0]
        if not found.job_id:
            raise
        return found
    # Submitted before, perhaps long ago and by another dlctl: the job may have ended since.
    return accepted if end.exit_code == 0 else refresh(session, [accepted], store)[0]


def _not_now(
    scheduler: Scheduler, answer: tuple[int, str, str], record: Record, store: RecordStore
) -> Record:
    try:
        scheduler.parse_submit(*answer)
    except SchedulerUnavailable as down:
        note_interrupted([record], down, store)
        hint = f"nothing was queued; later: dlctl resume {record.training_id}"
        raise SchedulerUnavailable(down.message, hint=hint) from down
    except SchedulerError:
        pass
    return wait_for_room(record, store)


def wait_for_room(record: Record, store: RecordStore) -> Record:
    """Note that a limit keeps a training from being submitted now."""
    hint = "give the same command again once some of your jobs have ended"
    return _noted(record, store, reason=NO_MORE, hint=hint)


def _accept(
    scheduler: Scheduler, answer: tuple[int, str, str], record: Record, store: RecordStore
) -> Record:
    try:
        job_id = scheduler.parse_submit(*answer)
    except SubmitUnknown as unknown:
        hint = f"dlctl resume {record.training_id}"
        _noted(record, store, reason=unknown.message, hint=hint)
        raise _unknown(record, unknown.message) from unknown
    except SchedulerError as refusal:
        why = f"the scheduler refused it: {refusal.message}"
        _noted(record, store, state=State.FAILED, reason=why, hint=refusal.hint)
        raise
    return _noted(record, store, job_id=job_id, state=State.PENDING, hint="",
                  reason="waiting in the queue")  # fmt: skip


def ask_script(
    scheduler: Scheduler, plan: contract.Plan, record: Record, folder: str, renews: bool
) -> str:
    """Return the script that submits the record's attempt: see `ask_all` in `many.py`."""
    n = record.attempt
    return render_script(
        "login/submit.sh.j2", plan=plan, attempt=n, folder=folder, renews=renews,
        copy=secrets.token_hex(4),
        here=contract.attempt_dir(n), begin=contract.submit_begin(n),
        answer=contract.submit_answer(n), submit_command=scheduler.submit_script(plan, n),
        submit_next=scheduler.submit_script(plan, contract.NEXT),
        begun_already=_BEGUN_ALREADY, answered_already=_ANSWERED_ALREADY, model_gone=_MODEL_GONE,
        not_now=scheduler.not_now, answer_lost=scheduler.answer_lost, not_now_code=NOT_NOW,
    )  # fmt: skip
