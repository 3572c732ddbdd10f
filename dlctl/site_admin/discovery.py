"""Inspect a site: what is asked of it, and how the answers are read.

What is asked about a scheduler, and how it is read, is the scheduler's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SiteError
from dlctl.scheduler import SCHEDULERS, Scheduler, make_scheduler
from dlctl.scheduler.offer import Answer, Answers, Offer
from dlctl.site_admin.setup import site_template
from dlctl.transport.several import run_each

if TYPE_CHECKING:
    from dlctl.transport.base import Transport

_TIMEOUT_S = 180.0
_QUESTIONS = {
    "account": "account_facts", "pythons": "pythons", "modules": "modules",
    "mpirun": "command -v mpirun", "df": 'limit 10 df -Pk "$HOME"',
}  # fmt: skip


@dataclass(frozen=True)
class Discovered:
    """What a site answered about itself."""

    home: str
    user: str
    host: str
    kind: str
    """Of the first scheduler that is there; empty: none of those that were looked for."""
    offer: Offer
    """What that scheduler offers."""
    pythons: list[str]
    """Those that start, as `3.11.2 (/usr/bin/python3)`."""
    modules: list[str]
    """The kind (`Lmod`, `Environment Modules`) first, then modules that may be useful."""
    mpirun: str
    free_bytes: int | None
    """On the home directory's file system."""


def discover(transport: Transport, schedulers: Sequence[Scheduler] = ()) -> Discovered:
    """Inspect a site.

    Args:
        schedulers: those to look for; all by default.

    Raises:
        TransportError, SiteError
    """
    wanted = schedulers or [make_scheduler(kind) for kind in SCHEDULERS]
    before, commands = questions(wanted)
    ends = run_each(transport, list(commands.values()), _TIMEOUT_S, before)
    answers = (Answer(end.text, end.exit_code, end.error_text) for end in ends)
    return read_answers(Answers(zip(commands, answers, strict=True)), wanted)


def questions(schedulers: Sequence[Scheduler]) -> tuple[str, dict[str, str]]:
    """Return what to run first, and question → command, in POSIX shell. Pure."""
    before, commands = [site_template("environment.sh"), site_template("discover.sh")], _QUESTIONS
    for scheduler in schedulers:
        functions, own = scheduler.questions()
        before, commands = [*before, functions], commands | own
    return "\n".join(before), commands


def read_answers(answers: Answers, schedulers: Sequence[Scheduler]) -> Discovered:
    """Return what the answers say; a question without an answer is a problem, not a failure. Pure.

    Raises:
        SiteError: not even the first one was answered.
    """
    account = answers["account"].pairs
    if "home" not in account:
        raise SiteError("the site's answer was cut off, or it did not run the questions",
                        hint="run the same command again; see whether `ssh HOST /bin/sh -c true` "
                        "works")  # fmt: skip
    offers = ((each.kind, each.read_offer(answers)) for each in schedulers)
    kind, offer = next(((kind, offer) for kind, offer in offers if offer), ("", Offer()))
    modules = answers["modules"].said.removeprefix("kind=")
    free = re.search(r"\s(\d+)\s+\d+%\s", answers["df"].said)
    return Discovered(
        home=account["home"],
        user=account.get("user", ""),
        host=account.get("host", ""),
        kind=kind,
        offer=offer,
        pythons=[f"{row[0]} ({row[1]})" for row in answers["pythons"].rows
                 if re.fullmatch(r"\d+(\.\d+)+", row[0])],
        modules=[line.strip() for line in lines_of(modules) if line.strip()],
        mpirun=answers["mpirun"].said.split("\n")[0],
        free_bytes=int(free[1]) * 1024 if free else None,
    )  # fmt: skip
