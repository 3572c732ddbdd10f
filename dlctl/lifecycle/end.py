"""Halt, cancel and delete a training."""

from __future__ import annotations

import shlex

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import RecordError, RemoteCommandError, TransferError
from dlctl.files.upload import write_file
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import refresh
from dlctl.record import Record, RecordStore


def halt(session: Session, record: Record, store: RecordStore) -> Record:
    """Ask a training to save and stop; one that has not started yet leaves the queue.

    Raises:
        RecordError: it has ended already.
    """
    record = _running_or_error(session, record, store, "halt")
    unwritten = _request(session, record, contract.HALT_REQUEST)
    if record.state in (State.QUEUED, State.PENDING):
        return _leave_for_good(session, record, store)
    if unwritten is not None:
        script = session.scheduler.halt_script(record.job_id, session.site.root)
        if script is None:
            raise unwritten
        _tell_scheduler(session, script)
    return refresh(session, [record], store)[0]


def cancel(session: Session, record: Record, store: RecordStore) -> Record:
    """End a training without saving.

    Raises:
        RecordError: it has ended already.
    """
    record = _running_or_error(session, record, store, "cancel")
    _request(session, record, contract.CANCEL_REQUEST)  # if it can't be written, the job still ends
    return _leave_for_good(session, record, store)


def _request(session: Session, record: Record, name: str) -> TransferError | None:
    """Write a request; return why even an empty file, which needs no block, can't be written."""
    path = f"{record.job_dir}/{name}"
    try:
        write_file(session.transport, path, f"{name}\n".encode())
    except TransferError as error:
        return error if session.transport.run(f": >{shlex.quote(path)}").exit_code else None
    return None


def _tell_scheduler(session: Session, script: str) -> None:
    end = session.transport.run(script, timeout_s=90.0)
    stderr = end.stderr.decode(errors="replace")
    session.scheduler.parse_cancel(end.exit_code, end.text, stderr)


def _running_or_error(session: Session, record: Record, store: RecordStore, verb: str) -> Record:
    record = refresh(session, [record], store)[0]
    if record.state.final:
        raise RecordError(
            f"there is nothing to {verb}: {record.training_id} is {record.state}",
            hint=record.show_command,
        )
    return record


def _leave_queue(session: Session, record: Record, store: RecordStore) -> None:
    if not record.job_id:
        if fence(session, record):
            return
        record = refresh(session, [record], store)[0]  # a job has claimed it: its id is known
    _tell_scheduler(session, session.scheduler.cancel_script(record.job_id, session.site.root))


def _leave_for_good(session: Session, record: Record, store: RecordStore) -> Record:
    """End the job, and those that were submitted meanwhile for later attempts."""
    while True:
        if record.state is State.QUEUED and record.job_id:
            _bar_next(session, record)
        _leave_queue(session, record, store)
        if dismiss := session.scheduler.dismiss_script(record.job_dir):
            _tell_scheduler(session, dismiss)
        newest = refresh(session, [record], store)[0]
        if newest.state.final or newest.attempt == record.attempt:
            return newest
        record = newest


def _bar_next(session: Session, record: Record) -> None:
    """Begin and claim the attempt that a job is about to begin, so that nobody runs it."""
    number = record.attempt + 1
    here = shlex.quote(f"{record.job_dir}/{contract.attempt_dir(number)}")
    begin, claim = (
        shlex.quote(f"{record.job_dir}/{name}")
        for name in (contract.submit_begin(number), contract.claim(number))
    )
    session.transport.run(
        f"mkdir -p {here} && (set -C; echo {contract.NOBODY} >{begin}) 2>/dev/null && "
        f"(set -C; echo {contract.NOBODY} >{claim})"
    )


def fence(session: Session, record: Record) -> bool:
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


def interrupted(record: Record) -> bool:
    """Return whether a submission has not asked the scheduler, as far as is known."""
    return record.state is State.QUEUED and not record.job_id


def delete(session: Session, record: Record, store: RecordStore) -> None:
    """Remove a training that has ended: its job directory, its secrets and its record.

    If its processes were all killed, this also removes what they left in the shared memory of the
    site's host.

    Raises:
        RecordError: it is still running.
    """
    known = refresh(session, [record], store)[0]
    if not (known.state.final or interrupted(known)):
        raise RecordError(
            f"{record.training_id} is {known.state}: it can't be deleted while it runs",
            hint=f"dlctl cancel {record.training_id}",
        )
    if interrupted(known):
        fence(session, known)
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
