"""Halt, cancel, resume and delete a training."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import RecordError, RemoteCommandError
from dlctl.files.upload import read_files, upload, write_file
from dlctl.lifecycle.environment import make_environment
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import ask, ask_again, lacking, lacking_runtime
from dlctl.lifecycle.watch import refresh
from dlctl.manifest.overrides import Overrides
from dlctl.record import Record, RecordStore
from dlctl.request import attempts
from dlctl.request.attempts import AttemptFiles
from dlctl.request.request import merged, pending, remember

if TYPE_CHECKING:
    from dlctl.request.request import Request


def halt(session: Session, record: Record, store: RecordStore) -> Record:
    """Ask a training to save and stop; one that has not started yet leaves the queue.

    Raises:
        RecordError: it has ended already.
    """
    record = _running_or_error(session, record, store, "halt")
    write_file(session.transport, f"{record.job_dir}/{contract.HALT_REQUEST}", b"halt\n")
    if record.state in (State.QUEUED, State.PENDING):
        _leave_queue(session, record, store)
    return refresh(session, [record], store)[0]


def cancel(session: Session, record: Record, store: RecordStore) -> Record:
    """End a training without saving.

    Raises:
        RecordError: it has ended already.
    """
    record = _running_or_error(session, record, store, "cancel")
    write_file(session.transport, f"{record.job_dir}/{contract.CANCEL_REQUEST}", b"cancel\n")
    _leave_queue(session, record, store)
    return refresh(session, [record], store)[0]


def _running_or_error(session: Session, record: Record, store: RecordStore, verb: str) -> Record:
    record = refresh(session, [record], store)[0]
    if record.state.final:
        raise RecordError(
            f"there is nothing to {verb}: {record.training_id} is {record.state}",
            hint=f"dlctl show {record.training_id}",
        )
    return record


def _leave_queue(session: Session, record: Record, store: RecordStore) -> None:
    if not record.job_id:
        if _fence(session, record):
            return
        record = refresh(session, [record], store)[0]  # a job has claimed it: its id is known
    script = session.scheduler.cancel_script(record.job_id, session.site.root)
    end = session.transport.run(script, timeout_s=90.0)
    stderr = end.stderr.decode(errors="replace")
    session.scheduler.parse_cancel(end.exit_code, end.text, stderr)


def _fence(session: Session, record: Record) -> bool:
    """Claim the attempt, so that a job of it ends at once; return False if a job was faster."""
    here = f"{record.job_dir}/{contract.attempt_dir(record.attempt)}"
    claim = shlex.quote(f"{record.job_dir}/{contract.claim(record.attempt)}")
    script = f"""\
[ -d {shlex.quote(record.job_dir)} ] || exit 0
mkdir -p {shlex.quote(here)} || exit 71
(set -C; echo {contract.NOBODY} >{claim}) 2>/dev/null && exit 0
[ -s {claim} ] && [ "$(cat {claim})" = {contract.NOBODY} ] && exit 0
[ -s {claim} ] && exit 73
exit 71"""
    end = session.transport.run(script)
    if end.exit_code in (0, 73):
        return end.exit_code == 0
    raise RemoteCommandError(
        f"{session.transport.name}: {record.job_dir} can't be written (exit code {end.exit_code})",
        hint="check the space and the permissions there",
    )


def resume(
    session: Session,
    record: Record,
    store: RecordStore,
    rebuild: Callable[[Record], Request],
    overrides: Overrides | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Record:
    """Resume from the newest checkpoint, or finish a submission that was interrupted.

    Args:
        rebuild: builds the request again from the user's folder if it never arrived.
        overrides: changes to the resources of the previous attempt.
        on_line: called with a sentence about what takes minutes.

    Raises:
        RecordError: it is running or has completed.
        PlanError: the request fits no partition; nothing has changed.
        SiteError: the manifest's requirements can't be installed; nothing was queued.
    """
    record = refresh(session, [record], store)[0]
    if record.state is State.COMPLETED or not (record.state.final or _interrupted(record)):
        why = "" if record.state.final or not record.reason else f": {record.reason}"
        raise RecordError(
            f"there is nothing to resume: {record.training_id} is {record.state}{why}",
            hint=f"dlctl show {record.training_id}",
        )
    asked = overrides or Overrides()
    used_up = False
    if _never_arrived(session, record):
        record = remember(record, merged(pending(record, 0), asked))
        files = _bring(session, rebuild(record), record, store)
    else:
        files, asked = _files_for(session, record, asked)
        used_up = files.attempt == 0 and record.attempt == 1  # the files of attempt 1 are final
    make_environment(session, files.plan, on_line)
    if used_up or _was_begun(session, record):
        if not _fence(session, record) and not record.state.final:
            return refresh(session, [record], store)[0]  # its job has started meanwhile
        record = replace(record, attempt=record.attempt + 1)
    record = replace(record, state=State.QUEUED, job_id="", reason="is being submitted",
                     hint=f"dlctl resume {record.training_id}")  # fmt: skip
    store.update(record := remember(record, asked))
    if record.attempt > 1:
        sent = ask_again(session, files, record, store)
        if asked != Overrides():
            _check_whose(session, files, sent)
        return sent
    upload(session.transport, files.plan.root, lacking_runtime(session, files.plan))
    return ask(session, files.plan, record, store)


def _check_whose(session: Session, files: AttemptFiles, record: Record) -> None:
    """Raise RecordError if the attempt runs with the resources of another `dlctl resume`."""
    newest = attempts.read_newest(session.transport, record)
    ours, theirs = files.plan, newest.plan
    same_code = replace(theirs, runtime_dir=ours.runtime_dir, dlctl_version=ours.dlctl_version)
    if newest.attempt < record.attempt or same_code == ours:
        return
    raise RecordError(
        f"another `dlctl resume {record.training_id}` was first: attempt {record.attempt} runs "
        "with its resources",
        hint=f"dlctl show {record.training_id}; to change resources, halt it and resume it",
    )


def _bring(session: Session, request: Request, record: Record, store: RecordStore) -> AttemptFiles:
    """Record the overrides, in case sending fails; then send a request that never arrived."""
    store.update(record)
    upload(session.transport, request.plan.root, lacking(session, request))
    return attempts.of_request(request)


def _files_for(
    session: Session, record: Record, asked: Overrides
) -> tuple[AttemptFiles, Overrides]:
    """Return the next attempt's files, and all its changes to the previous attempt.

    This includes the changes of a resumption that was interrupted.
    """
    before = attempts.read_newest(session.transport, record)
    asked = merged(pending(record, before.attempt), asked)
    if asked == Overrides():
        return before, asked
    return attempts.decide_again(before, asked, session.site), asked


def _interrupted(record: Record) -> bool:
    return record.state is State.QUEUED and not record.job_id


def _was_begun(session: Session, record: Record) -> bool:
    """Return whether the record's attempt is used up: submitted, or claimed."""
    names = (contract.submit_begin(record.attempt), contract.claim(record.attempt))
    found = read_files(session.transport, [f"{record.job_dir}/{name}" for name in names])
    return any(content is not None for content in found.values())


def _never_arrived(session: Session, record: Record) -> bool:
    """Return whether the files of an interrupted submission are missing at the site."""
    path = f"{record.job_dir}/{contract.PLAN}"
    return not record.job_id and read_files(session.transport, [path])[path] is None


def delete(session: Session, record: Record, store: RecordStore) -> None:
    """Remove a training that has ended: its job directory, its secrets and its record.

    If its processes were all killed, this also removes what they left in the shared memory of the
    site's host.

    Raises:
        RecordError: it is still running.
    """
    known = refresh(session, [record], store)[0]
    if not (known.state.final or _interrupted(known)):
        raise RecordError(
            f"{record.training_id} is {known.state}: it can't be deleted while it runs",
            hint=f"dlctl cancel {record.training_id}",
        )
    if _interrupted(known):
        _fence(session, known)
    root = shlex.quote(session.site.root)
    name = shlex.quote(record.training_id)
    end = session.transport.run(
        f"rm -rf -- {contract.shared_memory('$(id -u)', name, '*')}\n"
        f"cd {root} || exit 0\nrm -rf -- jobs/{name} secrets/{name}",
        timeout_s=600.0,
    )
    if end.exit_code:
        said = end.stderr.decode(errors="replace").strip()[-300:]
        raise RemoteCommandError(
            f"{session.transport.name}: {record.job_dir} could not be removed: {said}",
            hint="check the permissions there; the record is kept",
        )
    store.remove(record.training_id)
