"""Inspect a site: a script that asks, and a parser of its answer.

The script frames each answer, so that a login shell's own output is never taken for one. What is
asked about a scheduler, and how it is read, is the scheduler's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract.ground.safe_text import lines_of
from dlctl.errors import SiteError
from dlctl.scheduler import SCHEDULERS, Scheduler, make_scheduler
from dlctl.scheduler.offer import Answer, Answers, Offer, leading_number
from dlctl.site_admin.setup import site_template

if TYPE_CHECKING:
    from dlctl.transport.base import Transport

_TIMEOUT_S = 180.0
_MARK = "==dlctl== "


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
    end = transport.run(discovery_script(wanted), timeout_s=_TIMEOUT_S)
    return parse_discovery(end.text, wanted)


def discovery_script(schedulers: Sequence[Scheduler]) -> str:
    """Return the questions, as POSIX shell. Pure."""
    asked = [site_template("environment.sh"), site_template("discover.sh")]
    asked += [scheduler.questions() for scheduler in schedulers]
    return "\n".join([*asked, f"echo '{_MARK}end'\n"])


def parse_discovery(text: str, schedulers: Sequence[Scheduler]) -> Discovered:
    """Return what the answers say; a question without an answer is a problem, not a failure. Pure.

    Raises:
        SiteError: the answer is cut off, or does not come from the script.
    """
    answers = _frames(text)
    account = answers["account"].pairs
    if "home" not in account:
        raise SiteError("the site's answer holds no account", hint="run the same command again")
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


def _frames(text: str) -> Answers:
    answers = Answers()
    name, body, errors, code = "", list[str](), list[str](), -1
    for line in lines_of(text):
        if not line.startswith(_MARK):
            (errors if line.startswith("! ") else body).append(line.removeprefix("! "))
            continue
        word = line[len(_MARK) :].strip()
        if word.startswith("rc "):
            code = leading_number(word[3:]) or 0
            continue
        if name:
            answers[name] = Answer("\n".join(body).strip("\n"), code, errors)
        if word == "end":
            return answers
        name, body, errors, code = word, [], [], -1
    raise SiteError(
        "the site's answer was cut off" if answers else "the site did not run the questions",
        hint="run the same command again; see whether `ssh HOST /bin/sh -c true` works",
    )
