"""Notices that no node could send: this dlctl, which sees the end, sends them from here.

Slurm's mails and the user's command are left to the site.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dlctl import contract
from dlctl.contract import Notice, NotSent, Plan, State, Verdict
from dlctl.errors import DlctlError
from dlctl.files.small_files import read_files, read_texts
from dlctl.lifecycle.session import Session
from dlctl.record import Record

_SENDER_DIED_MIN = 5
"""After so many minutes a claim of a notice that is not marked as sent is taken over."""
TRIES = 5
"""How many dlctl commands that look try to send a notice: one that can't be sent delays each.

The first tries at once; then it rests for 1, 2, 4 and 8 minutes at most, or as long as the
receiver wants."""
_LONGEST_S = 15.0
"""One look begins to send no more notices after so long: the next goes on."""


def due(old: Record, new: Record) -> Record:
    """Return the new record, with the tries that a notice of its state is worth."""
    if new.state is old.state:
        return new
    notable = new.state is State.TRAINING or new.state.final
    return replace(new, notice_tries=TRIES if notable else 0)


def tell(session: Session, records: Sequence[Record]) -> list[Record]:
    """Tell what nobody has told yet of the trainings that are due; return their records after it.

    What can't be told is no error: the record keeps the tries that are left.
    """
    looked = [each for each in records if each.notice_tries]
    if not looked:
        return []
    noted = []
    with contextlib.suppress(DlctlError):
        of_each = {each.training_id: _paths(session, each) for each in looked}
        files = read_texts(session.transport, [path for each in of_each.values() for path in each])
        until = time.monotonic() + _LONGEST_S
        for record in looked:
            if time.monotonic() > until:
                break
            with contextlib.suppress(DlctlError, contract.ContractError):
                mine = [files[path] for path in of_each[record.training_id]]
                tries = _tell(session, record, mine, until)
                noted.append(replace(record, notice_tries=tries))
    return noted


def _paths(session: Session, record: Record) -> list[str]:
    n = record.attempt
    names = (contract.plan_file(n), contract.verdict_file(n), contract.submit_begin(n + 1))
    endpoints = contract.endpoints_file(session.site.root, record.training_id)
    return [*(f"{record.job_dir}/{name}" for name in names), endpoints]


def _tell(session: Session, record: Record, files: list[bytes | None], until: float) -> int:
    """Tell of one training; return how many more tries its notice is worth."""
    n = record.attempt
    plan_text, verdict_text, next_one, endpoints_text = files
    endpoints = contract.parse_endpoints((endpoints_text or b"").decode(errors="replace"))
    plan = None if plan_text is None else contract.from_json(Plan, plan_text)
    if plan is None or next_one is not None:
        return 0
    if record.state.final:
        known = None if verdict_text is None else contract.from_json(Verdict, verdict_text)
        verdict = known or _without_verdict(record)
        notice = contract.notice_of_end(verdict, record.training_id, plan.name, record.site)
    else:
        notice = contract.notice_of_start(
            record.training_id, plan.name, record.site, n, plan.resources.learners
        )
    ways = contract.ways_of(plan.notify, endpoints, notice.event)
    ways = [way for way in ways if way != "command"]
    if not ways:
        return 0
    claimed, of_others = _claim(session, record, notice, ways)
    left = record.notice_tries if of_others else 0  # its sender may fail yet
    for way in claimed:
        try:
            if time.monotonic() > until:
                raise NotSent("others have taken the time")
            contract.send_notice(way, plan.notify, endpoints, notice, session.site.webhook_hosts,
                                 partial(_secret, session))  # fmt: skip
        except (NotSent, DlctlError) as error:
            wait_s = error.wait_s if isinstance(error, NotSent) else 0.0
            if math.isinf(wait_s):
                _mark(session, record, notice, way, "gone: the receiver wants no more")
                continue
            pause_s = contract.shortened(60.0 * 2 ** (TRIES - record.notice_tries))
            _give_back(session, record, notice, way, math.ceil(max(pause_s, wait_s)))
            left = record.notice_tries - 1
        else:
            _mark(session, record, notice, way, "sent by dlctl")
    return left


def _without_verdict(record: Record) -> Verdict:
    """Return a verdict on an attempt that left none; its nodes may be gone."""
    state = record.state if record.state is not State.HALTED else State.CANCELLED
    return Verdict(record.attempt, record.job_id, state, record.reason, record.hint)


def _claim(
    session: Session, record: Record, notice: Notice, ways: list[str]
) -> tuple[list[str], list[str]]:
    """Claim a notice in each way.

    Returns the ways in which this dlctl has to send it, and those in which somebody else is at it.
    """
    lines = [f"cd {shlex.quote(record.job_dir)} && mkdir -p {contract.NOTICES} || exit 0"]
    lines.append("umask 077")
    for way in ways:
        file = contract.notice_file(notice.attempt, notice.event, way)
        lines.append(
            f'[ -z "$(find {file} -mmin +{_SENDER_DIED_MIN} 2>/dev/null)" ] || '
            f"! grep -q ^claimed {file} || mv {file} {file}.unsent 2>/dev/null\n"
            f"at=$(sed -n 's/^not before //p' {file}.unsent 2>/dev/null)\n"
            f'if [ "${{at:-0}}" -gt "$(date +%s)" ]; then echo -{way}\n'
            f"elif {'grep -qs ^gone notices/*.webhook' if way == 'webhook' else 'false'}; then :\n"
            f"else mv {file}.unsent {file} 2>/dev/null && echo 'claimed by dlctl' >{file} "
            f"&& echo {way} "
            f"|| {{ (set -C; echo 'claimed by dlctl' >{file}) 2>/dev/null && echo {way}; }} "
            f"|| grep -q -e ^sent -e ^gone {file} || echo -{way}; fi"
        )
    words = session.transport.run("\n".join([*lines, ":"])).text.split()
    return [way for way in ways if way in words], [way for way in ways if f"-{way}" in words]


def _mark(session: Session, record: Record, notice: Notice, way: str, words: str) -> None:
    file = contract.notice_file(notice.attempt, notice.event, way)
    session.transport.run(f"cd {shlex.quote(record.job_dir)} && echo '{words}' >{file}")


def _give_back(
    session: Session, record: Record, notice: Notice, way: str, wait_s: int
) -> None:  # fmt: skip
    """Leave a notice to a later look, by the site's clock: other dlctls see it there."""
    file = contract.notice_file(notice.attempt, notice.event, way)
    session.transport.run(
        f"cd {shlex.quote(record.job_dir)} && "
        f'echo "not before $(($(date +%s) + {wait_s}))" >{file} && mv {file} {file}.unsent'
    )


def _secret(session: Session, reference: str) -> str:
    path = reference.removeprefix("file:")
    content = read_files(session.transport, [path])[path]
    if content is None:
        raise NotSent("its secret is gone from the site")
    return content.decode(errors="replace").rstrip("\n")
