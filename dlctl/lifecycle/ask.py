"""Ask a scheduler for many trainings in one call, and write down each answer."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.errors import DlctlError, RemoteCommandError, TransportError
from dlctl.lifecycle.end import Answer, interrupted
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import (
    NOT_ASKED,
    NOT_NOW,
    answer_lost,
    ask_script,
    judge,
    note_interrupted,
    submit_timeout_s,
    wait_for_room,
)
from dlctl.record import Record, RecordStore
from dlctl.script_templates import render_script
from dlctl.transport.base import Completed
from dlctl.transport.several import answers, framed

if TYPE_CHECKING:
    from dlctl.request.request import Request

_WRITE_EVERY_S = 0.3
OnAnswer = Callable[[int, Answer], None]
"""Called with a training's position and its record, or why it has no job."""


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

    def update(self, *records: Record, asked: bool = False) -> None:
        assert not asked, "a submission changes no overrides"
        self._waiting += records
        if time.monotonic() - self._written_s > _WRITE_EVERY_S:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        super().update(*self._waiting)
        self._waiting, self._written_s = [], time.monotonic()


def ask_all(
    session: Session, requests: Sequence[Request], records: Sequence[Record], store: RecordStore,
    on_answer: OnAnswer = lambda _n, _answer: None,
) -> list[Answer]:  # fmt: skip
    """Ask the scheduler for each training, in one call; return the answers in the same order.

    A lost connection stops none of them. Where a limit of the site is reached, or its controller
    can't be, the rest stays as it was: the same command submits it later.
    """
    together = _Together(store)
    try:
        return _ask_all(session, requests, records, together, on_answer)
    finally:
        together.write()


def _ask_all(
    session: Session, requests: Sequence[Request], records: Sequence[Record], store: RecordStore,
    on_answer: OnAnswer,
) -> list[Answer]:  # fmt: skip
    token = secrets.token_hex(8)
    script = _script(session, requests, records, token)
    found: dict[int, Answer] = {}
    refused: Answer | None = None
    """The answer after which the script asked for no other training."""
    timeout_s = submit_timeout_s(max(each.code.size_bytes for each in requests))
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
            on_answer(number, found[number])
            if end.exit_code == NOT_NOW:
                refused = found[number]
        end = process.wait(timeout_s)
    except TransportError as error:
        return [answer_lost(record, error, store) if n not in found else found[n]
                for n, record in enumerate(records)]  # fmt: skip
    return [found[n] if n in found else _not_asked(session, end, refused, record, store)
            for n, record in enumerate(records)]  # fmt: skip


def _script(
    session: Session, requests: Sequence[Request], records: Sequence[Record], token: str
) -> str:
    scripts = [ask_script(session.scheduler, request.plan, record, "", False)
               for request, record in zip(requests, records, strict=True)]  # fmt: skip
    return render_script(
        "login/submit_many.sh.j2",
        scripts=[framed(number, script, token) for number, script in enumerate(scripts)],
        prologue=session.scheduler.prologue(),
        umask=requests[0].plan.umask,
        not_now_code=NOT_NOW,
    )  # fmt: skip


def _not_asked(
    session: Session, end: Completed, refused: Answer | None, record: Record, store: RecordStore
) -> Answer:  # fmt: skip
    """Note that the script ended before it came to a training."""
    if isinstance(refused, DlctlError):
        note_interrupted([record], refused, store)
        return refused
    if refused is not None:
        return wait_for_room(record, store)
    said = end.last_error_line or f"exit code {end.exit_code}"
    return RemoteCommandError(f"{session.transport.name}: {said}")
