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
SCRIPTS = ("environment.sh", "modules.sh", "discover.sh")
"""In `templates/sites/`: the functions that the questions use."""
QUESTIONS = {
    "account": r"""printf 'home=%s\nuser=%s\nhost=%s\n' "$HOME" "$(id -un)" "$(uname -n)" """,
    "pythons": "pythons", "modules": "modules", "mpirun": "command -v mpirun",
    "df": 'limit 10 df -Pk "$HOME"',
}  # fmt: skip


@dataclass(frozen=True)
class Discovered:
    """A site's answer about itself."""

    home: str
    user: str
    host: str
    kind: str
    """The kind of the first scheduler that is there."""
    offer: Offer
    """What that scheduler offers."""
    pythons: list[str]
    """The Pythons that start, as `3.11.2 (/usr/bin/python3)`."""
    modules: list[str]
    """The kind (`Lmod`, `Environment Modules`) first, then modules that may be useful."""
    mpirun: str
    free_bytes: int | None
    """On the home directory's file system."""


def discover(transport: Transport) -> Discovered:
    """Inspect a site, for its file.

    Raises:
        TransportError, SiteError
    """
    schedulers = [make_scheduler(kind) for kind in SCHEDULERS]
    return read_answers(ask(transport, schedulers, **QUESTIONS), schedulers)


def ask(transport: Transport, schedulers: Sequence[Scheduler], **commands: str) -> Answers:
    """Ask a login node what schedulers want to know, and by further commands.

    Raises:
        TransportError
    """
    before = [site_template(name) for name in SCRIPTS]
    for scheduler in schedulers:
        functions, own = scheduler.questions()
        before.append(functions)
        commands |= own
    ends = run_each(transport, list(commands.values()), _TIMEOUT_S, "\n".join(before))
    answers = (Answer(end.text, end.exit_code, end.error_text) for end in ends)
    return Answers(zip(commands, answers, strict=True))


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
    kind, offer = next((kind, offer) for kind, offer in offers if offer)  # the local one is
    modules = answers["modules"].output.removeprefix("kind=")
    free = re.search(r"\s(\d+)\s+\d+%\s", answers["df"].output)
    return Discovered(
        home=account["home"],
        user=account.get("user", ""),
        host=account.get("host", ""),
        kind=kind,
        offer=offer,
        pythons=[f"{row[0]} ({row[1]})" for row in answers["pythons"].rows
                 if re.fullmatch(r"\d+(\.\d+)+", row[0])],
        modules=[line.strip() for line in lines_of(modules) if line.strip()],
        mpirun=answers["mpirun"].output.split("\n")[0],
        free_bytes=int(free[1]) * 1024 if free else None,
    )  # fmt: skip
