"""Notices to people: what is told, how it is sent, and how each is sent once.

Both sides send: the node that knows first, or else the next dlctl command that looks. Each claims a
notice by creating its file exclusively; a claim whose sending failed is given back by a rename.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass, field

from dlctl.contract.lifecycle import Next
from dlctl.contract.records import Verdict
from dlctl.contract.states import State, VerdictKind

NOTICES = "notices"
"""Which notices were sent: a file for each, named after attempt, event and way."""
EVENTS = ("started", "failed", "plateau", "finished")
BY_DEFAULT = ("failed", "plateau", "finished")
NOTICE_TIMEOUT_S = 5.0
_ONCE = ("started", "plateau-")


def notice_file(attempt: int | str, event: str, way: str) -> str:
    """Return the file that claims a notice; way is `email`, `webhook` or `command`.

    `started` is told once for a training, whatever the attempt, and so is `plateau-<step>`, a
    plateau since that step at which the training goes on. With `.unsent` at its end, nobody could
    send it yet.
    """
    return f"{NOTICES}/{'0' if event.startswith(_ONCE) else attempt}-{event}.{way}"


@dataclass(frozen=True)
class Smtp:
    """A mail server."""

    server: str
    port: int
    sender: str
    tls: str = "starttls"
    """`starttls`, `tls` or `none`."""
    user: str | None = None
    password: str | None = None
    """A reference: `file:PATH`."""


@dataclass(frozen=True)
class Notify:
    """Who is told what, and how."""

    on: list[str] = field(default_factory=lambda: list(BY_DEFAULT))
    """Of `EVENTS`."""
    email: str | None = None
    """Without `smtp` Slurm sends the mails."""
    smtp: Smtp | None = None
    webhook: str | None = None
    """A reference to its URL: `file:PATH`."""
    command: str | None = None
    """Shell text, run on the first node."""

    @property
    def ways(self) -> list[str]:
        """Return the ways in which dlctl itself tells."""
        ways = {"email": self.email and self.smtp, "webhook": self.webhook, "command": self.command}
        return [way for way, used in ways.items() if used]


@dataclass(frozen=True)
class Notice:
    """One notice: what a webhook gets as JSON."""

    event: str
    training_id: str
    name: str
    site: str
    attempt: int
    state: str
    text: str
    """All of it in words."""
    kind: str = ""
    """The verdict's."""
    reason: str = ""
    hint: str = ""
    action: str = ""
    """Why no other attempt follows."""
    time: float = 0.0
    """Unix seconds."""
    since_step: int | None = None
    """Of a plateau at which the training goes on: where it began."""

    @property
    def claimed_as(self) -> str:
        """Return the event in the name of the file that claims the notice."""
        return self.event if self.since_step is None else f"{self.event}-{self.since_step}"

    @property
    def title(self) -> str:
        """Return the subject of a mail."""
        return " ".join(f"{self.training_id} {self.event}: {self.reason}".split())[:200]


def event_of(verdict: Verdict) -> str:
    """Return what is told about the end of an attempt; empty if another follows or a person did it.

    A training that is retried has not failed yet.
    """
    if verdict.action is not None and verdict.action.goes_on:
        return ""
    if verdict.kind == VerdictKind.PLATEAU:
        return "plateau"
    if verdict.state is State.COMPLETED:
        return "finished"
    if verdict.state is State.FAILED:
        return "failed"
    stopped = verdict.action is not None and verdict.action.kind is Next.STOP
    return "failed" if verdict.state is State.HALTED and stopped else ""


def notice_of_start(training_id: str, name: str, site: str, attempt: int, learners: int) -> Notice:
    """Return the notice of the start of a training."""
    reason = "the learner has started" if learners == 1 else f"{learners} learners have started"
    return Notice(
        "started", training_id, name, site, attempt, str(State.TRAINING),
        f"{training_id} started: {reason}", reason=reason, time=time.time(),
    )  # fmt: skip


def notice_of_plateau(
    training_id: str, name: str, site: str, attempt: int, reason: str, since_step: int
) -> Notice:
    """Return the notice of a plateau at which the training goes on."""
    return Notice(
        "plateau", training_id, name, site, attempt, str(State.TRAINING),
        f"{training_id} is still running: {reason}.", reason=f"still running; {reason}",
        hint=f"To end it with a checkpoint: dlctl halt {training_id}",
        time=time.time(), since_step=since_step,
    )  # fmt: skip


def notice_of_end(verdict: Verdict, training_id: str, name: str, site: str) -> Notice:
    """Return the notice of the end of a training."""
    why = verdict.action.why if verdict.action is not None else ""
    lines = [f"{training_id} {verdict.state}: {verdict.reason}", verdict.hint]
    return Notice(
        event_of(verdict), training_id, name, site, verdict.attempt, str(verdict.state),
        "\n".join(line for line in lines if line), verdict.kind, verdict.reason, verdict.hint, why,
        verdict.finished_at or time.time(),
    )  # fmt: skip


class NotSent(Exception):
    """A notice could not be sent; the message holds no secret."""


def send_webhook(url: str, notice: Notice, timeout_s: float = NOTICE_TIMEOUT_S) -> None:
    """Send a notice to a webhook.

    Raises:
        NotSent
    """
    import http.client
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise NotSent("the webhook is no http or https URL")
    content = json.dumps(dataclasses.asdict(notice)).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "dlctl"}
    try:
        request = urllib.request.Request(url, content, headers)  # noqa: S310 - checked above
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            answer.read(1024)
    except urllib.error.HTTPError as error:
        raise NotSent(f"the webhook answered with {error.code}") from None
    except urllib.error.URLError as error:
        raise NotSent(f"the webhook can't be reached: {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotSent(f"the webhook can't be reached: {type(error).__name__}") from None


def send_mail(
    smtp: Smtp, password: str | None, to: str, notice: Notice, timeout_s: float = NOTICE_TIMEOUT_S
) -> None:
    """Send a notice by mail.

    Raises:
        NotSent
    """
    import smtplib
    import ssl
    from email.message import EmailMessage
    from email.utils import formatdate, make_msgid

    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = smtp.sender, to, notice.title
    message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="dlctl")
    shown = {"site": notice.site, "attempt": notice.attempt, "kind": notice.kind,
             "no further attempt": notice.action}  # fmt: skip
    rows = [f"{key}: {value}" for key, value in shown.items() if value]
    message.set_content("\n".join([notice.text, "", *rows, ""]))
    context = ssl.create_default_context()

    def connect() -> smtplib.SMTP:
        if smtp.tls == "tls":
            return smtplib.SMTP_SSL(smtp.server, smtp.port, timeout=timeout_s, context=context)
        return smtplib.SMTP(smtp.server, smtp.port, timeout=timeout_s)

    try:
        with connect() as connection:
            if smtp.tls == "starttls":
                connection.starttls(context=context)
            if smtp.user is not None:
                connection.login(smtp.user, password or "")
            connection.send_message(message)
    except smtplib.SMTPAuthenticationError as error:
        raise NotSent(f"the mail server refused the password ({error.smtp_code})") from None
    except smtplib.SMTPException as error:
        raise NotSent(f"the mail server refused it: {type(error).__name__}") from None
    except UnicodeError as error:  # smtplib encodes a password in ASCII
        raise NotSent(f"the mail can't be written: {type(error).__name__}") from None
    except OSError as error:
        raise NotSent(f"the mail server can't be reached: {error.strerror or error}") from None
