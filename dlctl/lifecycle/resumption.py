"""Resume a training: from its newest checkpoint, with other resources or new code if asked."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.files.small_files import read_files
from dlctl.files.upload import Tree
from dlctl.lifecycle.end import fence, interrupted, is_deleted, only, unless_deleted
from dlctl.lifecycle.many import ask_all
from dlctl.lifecycle.observe import JOB_HAS_ENDED
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.staging import OnLine, bring, make_environment
from dlctl.lifecycle.submit import (
    lacking,
    lacking_code,
    lacking_runtime,
    noted,
    renew_credentials,
    runs_as_sent,
    send,
)
from dlctl.lifecycle.watch import refresh
from dlctl.manifest.overrides import Overrides
from dlctl.record import Record, RecordStore
from dlctl.record.batches import forget
from dlctl.request import attempts
from dlctl.request.attempts import AttemptFiles
from dlctl.request.bundle import differences
from dlctl.request.left_out import not_sent
from dlctl.request.request import is_code_pending, merged, pending, remember

if TYPE_CHECKING:
    from dlctl.request.request import Request

_SETTLED_S = 20.0
"""How long to wait until it is known how a job ended."""


def resume(
    session: Session, record: Record, store: RecordStore, rebuild: Callable[[Record], Request],
    overrides: Overrides | None = None, *, new_code: bool = False, on_line: OnLine = lambda _: None,
) -> Record:  # fmt: skip
    """Resume from the newest checkpoint, or finish a submission that was interrupted.

    Args:
        rebuild: builds the request again from the user's folder.
        overrides: changes to the resources of the previous attempt.
        new_code: send the user's folder as it is now, and train with that.
        on_line: called with a sentence about what takes minutes.

    Raises:
        RecordError: it is running or has completed.
        PlanError: the request fits no partition; nothing has changed.
        SiteError: the manifest's requirements can't be installed; nothing was queued.
        ResultsError: the login node can't load the training data; nothing was queued.
    """
    has_folder = record.attempt > 1 or record.job_id  # else it may not be at the site yet
    with unless_deleted(session.transport, record) if has_folder else contextlib.nullcontext():
        changes = overrides or Overrides()
        known = _resume(session, record, store, rebuild, changes, new_code, on_line)
        if has_folder and known.is_gone:  # seen by the look at what became of it
            raise RecordError(known.reason, hint=known.hint)
    forget(store, record.training_id, interrupted)
    return known


def _resume(
    session: Session, record: Record, store: RecordStore, rebuild: Callable[[Record], Request],
    changes: Overrides, new_code: bool, on_line: OnLine,
) -> Record:  # fmt: skip
    record = _resumable(session, record, store, changes)
    used_up: bool = False
    code: list[Tree] | None = None
    # A rebuilt request has the overrides of all resumptions so far.
    with_changes = remember(record, merged(pending(record, 0), changes))
    if _never_arrived(session, record):
        request = rebuild(with_changes)
        store.update(record := with_changes, new_overrides=True)  # in case sending fails
        send(session, request.plan.root, lacking(session, [request]))
        files = attempts.of_request(request)
    else:
        files, changes, renewed = _files_for(
            session, record, changes, lambda: rebuild(with_changes), new_code, on_line
        )
        new_code = renewed is not None
        code = lacking_code(session, renewed) if renewed else None
        renew_credentials(session, files.plan, files.manifest, Path(record.folder))
        used_up = files.attempt == 0 and record.attempt == 1  # the files of attempt 1 are final
    wants_changes = new_code or changes != Overrides()
    make_environment(session, files.plan, on_line)
    bring(session, files.plan, on_line)
    if used_up or _was_begun(session, record):
        if not fence(session, record) and not record.state.final:  # its job has started meanwhile
            if wants_changes:
                _check_whose(session, files, record)
            return refresh(session, [record], store)[0]
        record = replace(record, attempt=record.attempt + 1)
    record = replace(record, state=State.QUEUED, job_id="", reason="is being submitted",
                     hint=f"dlctl resume {record.training_id}",
                     epochs=record.epochs and files.plan.training.epochs)  # fmt: skip
    store.update(record := remember(record, changes, new_code=new_code), new_overrides=True)
    with unless_deleted(session.transport, record):
        if record.attempt == 1:
            send(session, files.plan.root, lacking_runtime(session, files.plan))
            return _ask(session, files.plan, record, store)
        sent = _ask_again(session, files, record, store, code)
    if wants_changes:
        _check_whose(session, files, sent)
    return sent


def _ask_again(
    session: Session, files: AttemptFiles, record: Record, store: RecordStore,
    code: Sequence[Tree] | None = None,
) -> Record:  # fmt: skip
    """Send the files of a later attempt, and submit it to the scheduler.

    The files arrive beside their final place. The dlctl that writes the receipt moves its own
    files there, so that two concurrent resumptions never mix their plans and scripts.

    Args:
        code: New code: its folder, if the site lacks it; None: the code stays.
    """
    plan, folder = files.plan, f".sent.{secrets.token_hex(8)}"
    target = f"jobs/{record.training_id}/{contract.attempt_dir(record.attempt)}/{folder}"
    trees = [*(code or ()), *lacking_runtime(session, plan), Tree(target, files.entries())]
    with noted([record], store):
        send(session, plan.root, trees)
    return _ask(session, plan, record, store, folder, renews=code is not None)


def _ask(
    session: Session, plan: contract.Plan, record: Record, store: RecordStore, folder: str = "",
    *, renews: bool = False,
) -> Record:  # fmt: skip
    """Submit the record's attempt to the scheduler, as `ask_all`; raise why it has no job."""
    return only(ask_all(session, [plan], [record], store, folder=folder, renews=renews))


EPOCHS = "training.epochs"
"""The one setting of a training, besides resources, that a resumption may change."""


def _resumable(session: Session, record: Record, store: RecordStore, changes: Overrides) -> Record:
    """Return the record as it is now; raise RecordError if there is nothing to resume."""
    if not record.folder:
        raise RecordError(
            f"{record.training_id} is a rehearsal, which can't be resumed",
            hint="dlctl rehearse manifest.yml",
        )
    until = time.monotonic() + _SETTLED_S
    record = refresh(session, [record], store)[0]
    while record.reason.startswith(JOB_HAS_ENDED) and time.monotonic() < until:
        time.sleep(1.0)  # its files may come late: nothing tells when there are no more
        record = refresh(session, [record], store)[0]
    is_done = record.state is State.COMPLETED and not any(
        pair.startswith(f"{EPOCHS}=") for pair in changes.set
    )
    if is_done or not (record.state.final or interrupted(record)):
        why = "" if record.state.final or not record.reason else f": {record.reason}"
        raise RecordError(
            f"there is nothing to resume: {record.training_id} is {record.state}{why}",
            hint=record.show_command,
        )
    if record.is_gone and is_deleted(session.transport, record):
        raise RecordError(
            f"there is nothing to resume: {record.training_id} is {record.state}: {record.reason}",
            hint=f"submit it again; `dlctl delete {record.training_id}` forgets this one",
        )
    return record


def _check_whose(session: Session, files: AttemptFiles, record: Record) -> None:
    """Raise RecordError if the attempt runs with what another `dlctl resume` asked for."""
    newest = attempts.read_newest(session.transport, record)
    ours, theirs = files.plan, newest.plan
    same_code = replace(theirs, runtime_dir=ours.runtime_dir, dlctl_version=ours.dlctl_version)
    if newest.attempt < record.attempt or same_code == ours:
        return
    raise RecordError(
        f"another submission of {record.training_id} was first: attempt {record.attempt} runs "
        "with its resources and its code",
        hint=f"{record.show_command}; to change them, halt it and resume it",
    )


def _files_for(
    session: Session, record: Record, changes: Overrides, rebuild: Callable[[], Request],
    new_code: bool, on_line: OnLine,
) -> tuple[AttemptFiles, Overrides, Request | None]:  # fmt: skip
    """Return the next attempt's files, and all its changes to the previous attempt.

    This includes the changes of a resumption that was interrupted. With new code it also returns
    the request that was rebuilt from the user's folder, for its code and requirements.
    """
    try:
        before = attempts.read_newest(session.transport, record)
    except RecordError:
        if not new_code:
            raise
        request = rebuild()
        return attempts.of_request(request), changes, request  # the site has lost the files
    changes = merged(pending(record, before.attempt), changes)
    if not new_code and is_code_pending(record, before.attempt):
        new_code = True
        on_line("`dlctl resume --code` was interrupted before: sends your folder as it is now")
    if new_code:
        request = rebuild()
        if left_out := not_sent(request.code):
            on_line(left_out)
        first = attempts.read_all(session.transport, record)[0]
        if first.attempt == 1 and first.manifest.decode() != request.manifest:
            on_line(
                f"{request.manifest_path.name} differs from the one that was submitted: resume "
                "takes only its requirements; `dlctl submit` trains with all of it"
            )
        again = attempts.decide_again(before, changes, session.site)
        return attempts.with_code(again, request, _sent_index(session, record)), changes, request
    again = attempts.decide_again(before, changes, session.site)
    # A hint may have been to change the site's file.
    is_same = changes == Overrides() and attempts.runs_alike(before.plan, again.plan)
    if is_same and runs_as_sent(session, before.plan):
        return before, changes, None
    return again, changes, None


def _sent_index(session: Session, record: Record) -> bytes | None:
    """Return the index of the code that the training has; None if it is missing or damaged."""
    path = f"{record.job_dir}/{contract.CODE}/{contract.SENT_INDEX}"
    index = read_files(session.transport, [path])[path]
    try:
        contract.parse_index(index or b"")
    except ValueError:
        return None
    return index


def changed_since_sent(session: Session, record: Record) -> list[str]:
    """Return the files in which the user's folder differs from the code of the training."""
    from dlctl.request.build import folder_index

    sent, here = _sent_index(session, record), folder_index(record, session.site)
    return [] if sent is None or here is None else differences(sent, here)


def repeats_error(session: Session, record: Record) -> bool:
    """Return whether an error of the program has ended the attempt before the newest one."""
    path = f"{record.job_dir}/{contract.verdict_file(record.attempt - 1)}"
    content = read_files(session.transport, [path])[path]
    with contextlib.suppress(contract.ContractError):
        kind = content and contract.from_json(contract.Verdict, content).kind
        return kind == contract.VerdictKind.USER_ERROR
    return False


def _was_begun(session: Session, record: Record) -> bool:
    """Return whether the record's attempt is used up: submitted, or claimed."""
    names = (contract.submit_begin(record.attempt), contract.claim(record.attempt))
    found = read_files(session.transport, [f"{record.job_dir}/{name}" for name in names])
    return any(content is not None for content in found.values())


def _never_arrived(session: Session, record: Record) -> bool:
    """Return whether the files of an interrupted submission are missing at the site.

    Those of a resumption are missing only if somebody removed them: the first attempt's arrived.
    """
    if record.job_id or record.attempt > 1:
        return False
    path = f"{record.job_dir}/{contract.PLAN}"
    return read_files(session.transport, [path])[path] is None
