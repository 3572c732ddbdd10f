"""Halt, cancel and delete trainings: any number in as many calls as one."""

from __future__ import annotations

import contextlib
import secrets
import shlex
from collections.abc import Iterator, Sequence

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import DlctlError, HasEnded, RecordError, RemoteCommandError, TransportError
from dlctl.files.site_folders import explained
from dlctl.lifecycle.observe import INTERRUPTED
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import refresh
from dlctl.record import Record, RecordStore
from dlctl.script_templates import render_script
from dlctl.transport.base import Completed, Transport
from dlctl.transport.several import run_each

_TIMEOUT_S, _REMOVAL_S = 120.0, 600.0
_EACH_S = 2.0
"""How much longer many calls to the scheduler may take than one, for each."""
_CLAIM_LATE_S = 5
"""How long a file system may show a claim before its content."""


Answer = Record | DlctlError
"""A training as it is afterwards, or why nothing was done about it."""


def halt_all(session: Session, records: Sequence[Record], store: RecordStore) -> list[Answer]:
    """Ask trainings to save and stop; those that have not started yet leave the queue."""
    found, running = _running(session, records, store, "halt")
    unwritten = _request(session, running, contract.HALT_REQUEST)
    waiting = [each for each in running if each.state in (State.QUEUED, State.PENDING)]
    found |= _leave_for_good(session, waiting, store)
    for record in running:
        if record.training_id in unwritten and record.training_id not in found:
            script = session.scheduler.halt_script(record.job_id, session.site.root)
            if script is None:
                found[record.training_id] = unwritten[record.training_id]
            else:
                _parse_cancel(session, session.transport.run(script, timeout_s=90.0))
    rest = [each for each in running if each.training_id not in found]
    found |= {each.training_id: each for each in refresh(session, rest, store)}
    return [found[each.training_id] for each in records]


def cancel_all(session: Session, records: Sequence[Record], store: RecordStore) -> list[Answer]:
    """End trainings without saving."""
    found, running = _running(session, records, store, "cancel")
    _request(session, running, contract.CANCEL_REQUEST)  # the jobs end even without
    found |= _leave_for_good(session, running, store)
    return [found[each.training_id] for each in records]


def only(answers: list[Answer]) -> Record:
    """Return the only answer; raise it if it is an error."""
    (answer,) = answers
    if isinstance(answer, DlctlError):
        raise answer
    return answer


def _running(
    session: Session, records: Sequence[Record], store: RecordStore, verb: str
) -> tuple[dict[str, Answer], list[Record]]:
    """Return what to say of those that have ended, and the others as they are now."""
    known = refresh(session, records, store)
    ended: dict[str, Answer] = {
        each.training_id: HasEnded(
            f"there is nothing to {verb}: {each.training_id} is {each.state}",
            hint=each.show_command,
        ) for each in known if each.state.final
    }  # fmt: skip
    return ended, [each for each in known if not each.state.final]


def _request(session: Session, records: Sequence[Record], name: str) -> dict[str, TransportError]:
    """Write requests; return why even an empty file, which needs no block, can't be written."""
    folder, _, file = name.rpartition("/")
    # A submission that was interrupted may have no folder yet; nothing else gets one anew.
    scripts = [f"""\
umask 077
{f"mkdir -p {shlex.quote(each.job_dir)}" if interrupted(each) else ":"}
cd {shlex.quote(each.job_dir)} && mkdir -p {folder} && cd {folder} || exit 71
echo {name} >.{file}.part && mv -f .{file}.part {file} && exit
rm -f .{file}.part
true >{file}""" for each in records]  # fmt: skip
    ends = run_each(session.transport, scripts)
    return {
        record.training_id: explained(session.transport, record.job_dir, end)
        for record, end in zip(records, ends, strict=True) if end.exit_code
    }  # fmt: skip


def _parse_cancel(session: Session, end: Completed) -> None:
    session.scheduler.parse_cancel(end.exit_code, end.text, end.error_text)


def _leave_for_good(
    session: Session, records: Sequence[Record], store: RecordStore
) -> dict[str, Answer]:
    """End the jobs, and those that were submitted meanwhile for later attempts."""
    found: dict[str, Answer] = {}
    while records:
        for record in records:
            if record.state is State.QUEUED and record.job_id:
                _bar_next(session, record)
        failed = _leave_queue(session, records, store)
        newest = refresh(session, [r for r in records if r.training_id not in failed], store)
        before = {each.training_id: each.attempt for each in records}
        found |= failed
        found |= {each.training_id: each for each in newest}
        # One that a job has begun meanwhile has a new attempt.
        records = [
            each for each in newest
            if not each.state.final and each.attempt != before[each.training_id]
        ]  # fmt: skip
    return found


def _leave_queue(
    session: Session, records: Sequence[Record], store: RecordStore
) -> dict[str, Answer]:
    """Cancel jobs; return the trainings whose scheduler did not do it."""
    without_job = [each for each in records if not each.job_id and not fence(session, each)]
    # A job has claimed these in between: its id is known.
    claimed = {each.training_id: each for each in refresh(session, without_job, store)}
    jobs = [claimed.get(each.training_id, each) for each in records]
    scheduler = session.scheduler
    scripts = [(each.training_id, scheduler.cancel_script(each.job_id, session.site.root))
               for each in jobs if each.job_id]  # fmt: skip
    timeout_s = _TIMEOUT_S + _EACH_S * len(scripts)
    ends = run_each(session.transport, [script for _, script in scripts], timeout_s)
    failed: dict[str, Answer] = {}
    for (training_id, _), end in zip(scripts, ends, strict=True):
        try:
            _parse_cancel(session, end)
        except DlctlError as error:
            failed.setdefault(training_id, error)
    return failed


def _bar_next(session: Session, record: Record) -> None:
    """Begin and claim the attempt that a job is about to begin, so that nobody runs it."""
    number = record.attempt + 1
    begin, claim = contract.submit_begin(number), contract.claim(number)
    session.transport.run(
        f"cd {shlex.quote(record.job_dir)} && mkdir -p {contract.attempt_dir(number)} && "
        f"(set -C; echo {contract.NOBODY} >{begin}) 2>/dev/null && "
        f"(set -C; echo {contract.NOBODY} >{claim})"
    )


def fence(session: Session, record: Record) -> bool:
    """Claim the attempt, so that a job of it ends at once; return False if a job was faster."""
    claim = contract.claim(record.attempt)
    script = f"""\
cd {shlex.quote(record.job_dir)} 2>/dev/null || exit 0
mkdir -p {contract.attempt_dir(record.attempt)} || exit 71
own() {{ echo {contract.NOBODY} >{claim}; }} 2>/dev/null
(set -C; true >{claim}) 2>/dev/null && {{ own && exit 0; rm -f {claim}; exit 71; }}
[ -e {claim} ] || exit 71
n=0
until [ -s {claim} ] || [ $n -ge {_CLAIM_LATE_S} ]; do sleep 1; n=$((n + 1)); done
# Still empty: a job that met a full disk has made it, and ended.
[ -s {claim} ] || own || exit 71
[ "$(cat {claim})" = {contract.NOBODY} ] || exit 73"""
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
    only(delete_all(session, [record], store))


def delete_all(session: Session, records: Sequence[Record], store: RecordStore) -> list[Answer]:
    """Do what `delete` does with each, in as many calls as for one."""
    found: dict[str, Answer] = {}
    for known in refresh(session, records, store):
        found[known.training_id] = known
        if not (known.state.final or interrupted(known)):
            found[known.training_id] = RecordError(
                f"{known.training_id} is {known.state}: it can't be deleted while it runs",
                hint=f"dlctl cancel {known.training_id}",
            )
    ended = [each for each in found.values() if isinstance(each, Record)]
    ends = run_each(session.transport, [_removal(session, each) for each in ended], _REMOVAL_S)
    for record, end in zip(ended, ends, strict=True):
        if end.text.endswith(f"has begun attempt {_next_attempt(record)}\n"):
            found[record.training_id] = RecordError(
                f"{record.training_id} was submitted meanwhile: it can't be deleted while it runs",
                hint=f"dlctl cancel {record.training_id}",
            )
        elif end.exit_code or end.text.startswith("stays "):
            why = end.error_text.strip()[-300:] or end.text.partition(f"{record.training_id} ")[2]
            found[record.training_id] = RemoteCommandError(
                f"{session.transport.name}: {record.job_dir} could not be removed: {why}",
                hint="check the permissions there; the record is kept",
            )
    store.remove(*(key for key, answer in found.items() if isinstance(answer, Record)))
    return [found[each.training_id] for each in records]


def _next_attempt(record: Record) -> int:
    """Return the attempt that a submission at this moment would begin."""
    return record.attempt if interrupted(record) else record.attempt + 1


def _removal(session: Session, record: Record) -> str:
    functions = render_script("login/remove_training.sh.j2", token=secrets.token_hex(6))
    words = f"{shlex.quote(record.training_id)} {_next_attempt(record)}"
    return f"{functions}\ncd {shlex.quote(session.site.root)} || exit 0\nremove_training {words}"


def is_deleted(transport: Transport, record: Record) -> bool:
    """Return whether the site answers that there is no job directory any more, not even a part."""
    with contextlib.suppress(TransportError):
        script = f"[ -d {shlex.quote(record.job_dir)} ] || echo gone"
        return transport.run(script).text.strip() == "gone"
    return False


@contextlib.contextmanager
def unless_deleted(transport: Transport, record: Record) -> Iterator[None]:
    """Say that a training was deleted, instead of an error that only follows from that.

    Raises:
        RecordError: inside the `with` block an error occurred, and the job directory is gone.
    """
    try:
        yield
    except DlctlError as error:
        if record.is_gone or not is_deleted(transport, record):
            raise
        if interrupted(record) and record.reason.startswith(INTERRUPTED):
            raise RecordError(
                f"{record.training_id} was never sent: {record.reason}",
                hint=f"`dlctl resume {record.training_id}` sends it, `dlctl delete "
                f"{record.training_id}` forgets it",
            ) from error
        raise RecordError(
            f"{record.training_id} was deleted meanwhile: {transport.name} has no "
            f"{record.job_dir} any more",
            hint="`dlctl list` shows what there is",
        ) from error
