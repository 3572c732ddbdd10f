"""Submit the trainings of one command, each once, and take up those of one that was broken off.

This is the only road of a submission: that of one training, of many, of a search and a rehearsal.
Files go in one stream, and the scheduler is asked for each training, once, in one call.
"""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import DlctlError, RecordError, RemoteCommandError, SubmitRejected, TransportError
from dlctl.lifecycle.end import Answer, interrupted
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.staging import bring, make_environment
from dlctl.lifecycle.submit import (
    NOT_ASKED,
    NOT_NOW,
    answer_lost,
    ask_script,
    judge,
    lacking,
    new_record,
    note_interrupted,
    noted,
    send,
    wait_for_room,
)
from dlctl.record import Record, RecordStore
from dlctl.record.batches import Batch, Key, begin, broken_off, earlier_request, finish, let_go
from dlctl.request.left_out import not_sent, summary
from dlctl.script_templates import render_script
from dlctl.tell import SILENT, Tell
from dlctl.transport.base import Completed
from dlctl.transport.several import answers, framed

if TYPE_CHECKING:
    from dlctl.contract import Plan
    from dlctl.files.upload import Tree
    from dlctl.request.request import Request

LookOver = Callable[[Sequence["Request"]], None]
Build = Callable[[str | None, Sequence[str]], "Request"]
"""Takes the id of one training, or None for a new one, and its tags."""


@dataclass
class Sent:
    """The fate of one command's trainings."""

    store: RecordStore
    batch: Batch
    answers: dict[int, Answer] = field(default_factory=dict)
    """By the position of those that were asked for now."""

    @property
    def is_batch(self) -> bool:
        """Return whether the command was about several."""
        return len(self.batch.records) > 1

    @property
    def before(self) -> int:
        """Return how many an earlier command had submitted."""
        return len(self.batch.records) - len(self.answers)

    @property
    def tag(self) -> str:
        """Return the word that all of them have, unless the user has taken it from them."""
        return next(iter(self.batch.records[0].tags[-1:]), "")

    def rows(self) -> list[tuple[Record, DlctlError | None]]:
        """Return each training, and why it has no job."""
        known = {record.training_id: record for record in self.store.all()}
        found: list[tuple[Record, DlctlError | None]] = []
        for number, before in enumerate(self.batch.records):
            answer = self.answers.get(number)
            if answer is None or isinstance(answer, DlctlError):
                found.append((known.get(before.training_id, before), answer))
            else:  # which may not have been written down
                found.append((answer, None))
        return found

    def one(self) -> Record:
        """Return the only training.

        Raises:
            DlctlError: why it has no job.
        """
        if not self.batch.records:
            raise RecordError("the training that this request has made was deleted",
                              hint="a new request needs a new token")  # fmt: skip
        ((record, error),) = self.rows()
        if error:
            raise error
        return record

    def finish(self) -> None:
        """Forget the command: the user has seen what became of its trainings."""
        finish(self.store, self.batch)

    def settled(self) -> Record:
        """Return what `one` does, and forget the command; or leave it to the next one.

        It is for a process that lives on, whose lock would keep others from taking it up.

        Raises:
            DlctlError: why it has no job.
        """
        try:
            record = self.one()
        except SubmitRejected:
            self.finish()
            raise
        except DlctlError:
            let_go(self.store, self.batch)
            raise
        self.finish()
        return record


def submit(session: Session, request: Request, store: RecordStore, tell: Tell = SILENT) -> Record:
    """Submit one request, which no later command takes up, and return its record.

    Raises:
        SubmitRejected: nothing runs; the record says FAILED.
        SubmitUnknown: the job may exist; the record says QUEUED, and dlctl looks for the job later.
        TransportError: nothing was asked of the scheduler; `resume` sends it.
    """
    sent = submit_all(session, store, "", [lambda *_: request], tell=tell)
    sent.finish()
    return sent.one()


def submit_all(
    session: Session, store: RecordStore, command: str, wanted: Sequence[Build],
    tags: Sequence[str] = (), tell: Tell = SILENT, look_over: LookOver = lambda _: None,
    key: Key | None = None,
) -> Sent:  # fmt: skip
    """Submit each training once; what the same command has submitted before stays as it is.

    Args:
        command: What tells a command from others: the digest of all that it would send; empty: no
            command takes it up.
        key: What a program calls this request; then it takes the place of `command`.
        look_over: Called with what is to be sent, before anything is.

    Raises:
        KeyTaken: the key is another request's.
        ManifestError, PlanError, SiteError, TransferError, TransportError
    """
    if key:
        command = f"{key.name} {key.body}"
    if command and (batch := broken_off(store, command)):
        tell.note(_taken_up(batch))
        with _given_up(store, batch):
            return _go_on(session, Sent(store, batch), wanted, tell, look_over)
    if key and (first := earlier_request(store, key)):
        return Sent(store, first)
    if len(wanted) > 1:
        tags = [*tags, f"batch-{secrets.token_hex(3)}"]
    requests = [build(None, tags) for build in wanted]
    _prepare(session, requests, tell, look_over)
    trees = lacking(session, requests)  # if the site can't be reached, no record is kept
    records = list(map(new_record, requests))
    sent = Sent(store, begin(store, command, records, key))
    if sent.batch.lock or not key:  # else another process was faster with this key
        with _given_up(store, sent.batch):
            _send(session, sent, dict(enumerate(requests)), trees, tell)
    return sent


@contextmanager
def _given_up(store: RecordStore, batch: Batch) -> Iterator[None]:
    """Let the next command take up what this one can't send."""
    try:
        yield
    except BaseException:
        let_go(store, batch)
        raise


def _taken_up(batch: Batch) -> str:
    count, left = len(batch.records), len(to_ask(batch.records))
    name = batch.records[0].training_id if count == 1 else f"{count} trainings"
    done = f"; {count - left} of them were submitted" if 0 < left < count else ""
    return f"takes up the submission of {name}, which was broken off{done}"


def _go_on(
    session: Session, sent: Sent, wanted: Sequence[Build], tell: Tell, look_over: LookOver
) -> Sent:
    known = sent.batch.records
    requests = {
        number: wanted[number](known[number].training_id, known[number].tags)
        for number in to_ask(known)
    }
    if requests:
        _prepare(session, list(requests.values()), tell, look_over)
        absent = not_arrived(session, list(requests.values()))
        _send(session, sent, requests, lacking(session, absent) if absent else [], tell)
    return sent


def _prepare(
    session: Session, requests: Sequence[Request], tell: Tell, look_over: LookOver
) -> None:
    """Make the environments that the site lacks, each once."""
    session.expect_jobs()
    look_over(requests)
    for request in distinct(requests, lambda r: repr(r.plan.made_environment)):
        make_environment(session, request.plan, tell.note)


def distinct(requests: Sequence[Request], key: Callable[[Request], str]) -> list[Request]:
    """Return the first request of each key."""
    return list({key(request): request for request in reversed(requests)}.values())


def _send(
    session: Session, sent: Sent, requests: dict[int, Request], trees: list[Tree], tell: Tell
) -> None:
    """Bring the files, then ask the scheduler."""
    numbers = list(requests)
    known = [sent.batch.records[number] for number in numbers]
    if trees:
        with tell.progress("sending") as on_progress, noted(known, sent.store):
            send(session, requests[numbers[0]].plan.root, trees, on_progress)
    for code in {request.code.digest: request.code for request in requests.values()}.values():
        if not code.at_site and (code.files or not_sent(code)):
            tell.note(f"sent {summary(code)}")
    with noted(known, sent.store):
        for request in requests.values():
            bring(session, request.plan, tell.note)
    with tell.counting("submitting", len(numbers)) as count:
        answers = ask_all(session, [each.plan for each in requests.values()], known, sent.store,
                          size_bytes=max(each.code.size_bytes for each in requests.values()),
                          on_answer=count)  # fmt: skip
    sent.answers = dict(zip(numbers, answers, strict=True))


_WRITE_EVERY_S = 0.3
_SUBMIT_TIMEOUT_S = 120.0
_COPY_BYTES_PER_S = 20e6
"""A slow shared file system's rate."""


def to_ask(records: Sequence[Record]) -> list[int]:
    """Return the positions of those that no scheduler is known to have."""
    return [number for number, record in enumerate(records) if interrupted(record)]


def not_arrived(session: Session, requests: Sequence[Request]) -> list[Request]:
    """Return those whose files an interrupted submission has not brought, in one query."""
    names = {f"{request.plan.job_dir}/{contract.PLAN}": request for request in requests}
    words = " ".join(map(shlex.quote, names))
    end = session.transport.run(
        f'for f in {words}; do [ ! -s "$f" ] || printf "%s\\n" "$f"; done; exit 0'
    )
    there = set(end.text.split("\n"))
    return [request for name, request in names.items() if name not in there]


class _Together(RecordStore):
    """Writes what is known about many trainings a few times a second, not once for each."""

    def __init__(self, store: RecordStore) -> None:
        super().__init__(store.path, store.tell)
        self._waiting: list[Record] = []
        self._written_s = time.monotonic()

    def update(self, *records: Record, new_overrides: bool = False) -> None:
        assert not new_overrides, "a submission changes no overrides"
        self._waiting += records
        if time.monotonic() - self._written_s > _WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        super().update(*self._waiting)
        self._waiting, self._written_s = [], time.monotonic()


def ask_all(
    session: Session, plans: Sequence[Plan], records: Sequence[Record], store: RecordStore, *,
    size_bytes: int = 0, folder: str = "", renews: bool = False,
    on_answer: Callable[[], None] = lambda: None,
) -> list[Answer]:  # fmt: skip
    """Ask the scheduler for each training, in one call; return the answers in the same order.

    A lost connection stops none of them. Where a limit of the site is reached, or its controller
    can't be, the rest stays as it was: the same command submits it later.

    Args:
        size_bytes: How large the code is that the site copies for one of them.
        folder: In each attempt's directory, with the files of the attempt; empty: the job directory
            has them.
        renews: Make the code what was sent, even what a program has changed in it since.
        on_answer: Called after each.
    """
    together = _Together(store)
    try:
        token = secrets.token_hex(8)
        scripts = [ask_script(session.scheduler, plan, record, folder, renews)
                   for plan, record in zip(plans, records, strict=True)]  # fmt: skip
        whole = render_script(
            "login/submit_many.sh.j2",
            scripts=[framed(number, script, token) for number, script in enumerate(scripts)],
            prologue=session.scheduler.prologue(), umask=plans[0].umask, not_now_code=NOT_NOW,
        )  # fmt: skip
        timeout_s = _SUBMIT_TIMEOUT_S + size_bytes / _COPY_BYTES_PER_S
        return _ask_all(session, whole, token, records, together, timeout_s, on_answer)
    finally:
        together.write()


def _ask_all(
    session: Session, script: str, token: str, records: Sequence[Record], store: RecordStore,
    timeout_s: float, on_answer: Callable[[], None],
) -> list[Answer]:  # fmt: skip
    found: dict[int, Answer] = {}
    refused: Answer | None = None
    """The answer after which the script asked for no other training."""
    try:
        process = session.transport.start(script, idle_timeout_s=timeout_s)
    except NOT_ASKED as error:
        note_interrupted(records, error, store)
        return [error for _ in records]
    except TransportError as error:
        return [answer_lost(record, error, store) for record in records]
    try:
        for number, end in answers(process.stdout, token.encode()):
            try:
                found[number] = judge(session, end, records[number], store)
            except DlctlError as error:
                found[number] = error
            on_answer()
            if end.exit_code == NOT_NOW:
                refused = found[number]
        end = process.wait(timeout_s)
    except TransportError as error:
        return [answer_lost(record, error, store) if n not in found else found[n]
                for n, record in enumerate(records)]  # fmt: skip
    return [found[n] if n in found else _not_reached(session, end, refused, record, store)
            for n, record in enumerate(records)]  # fmt: skip


def _not_reached(
    session: Session, end: Completed, refused: Answer | None, record: Record, store: RecordStore
) -> Answer:  # fmt: skip
    """Note that the script ended before it came to a training."""
    if isinstance(refused, DlctlError):
        note_interrupted([record], refused, store)
        return refused
    if refused is not None:
        return wait_for_room(record, store)
    problem = end.last_error_line or f"exit code {end.exit_code}"
    return RemoteCommandError(f"{session.transport.name}: {problem}")
