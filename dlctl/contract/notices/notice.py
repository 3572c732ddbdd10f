"""Notices: their text, their receivers, and mail. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from dataclasses import dataclass, field

from dlctl.contract.ground.hinted import HintedError
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
    """Return the file that claims a notice.

    The way is `email`, `webhook`, `command`, or `webhook-ID` for an endpoint of that id.
    `started` is told once for a training, whatever the attempt, and so is `plateau-<step>`, a
    plateau since that step at which the training goes on. It begins with `claimed`, `sent`, or
    `gone`: the receiver wants no more. With `.unsent` at its end, nobody could send it yet, and it
    may say `not before` which time, in Unix seconds, it is worth a try.
    """
    return f"{NOTICES}/{_occasion(attempt, event)}.{way}"


def _occasion(attempt: int | str, event: str) -> str:
    return f"{'0' if event.startswith(_ONCE) else attempt}-{event}"


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
    """A reference, `file:PATH`."""


@dataclass(frozen=True)
class Notify:
    """The receivers of notices, and their events."""

    on: list[str] = field(default_factory=lambda: list(BY_DEFAULT))
    """Some of `started`, `failed`, `plateau`, `finished`."""
    email: str | None = None
    """Without `smtp` Slurm sends the mails."""
    smtp: Smtp | None = None
    """The server for mails; None: Slurm sends them."""
    webhook: str | None = None
    """A reference to its URL, `file:PATH`."""
    webhook_secret: str | None = None
    """A reference to what signs it, `file:PATH`."""
    command: str | None = None
    """Shell text, run on the first node."""

    @property
    def ways(self) -> list[str]:
        """Return the ways in which dlctl itself tells."""
        ways = {"email": self.email and self.smtp, "webhook": self.webhook, "command": self.command}
        return [way for way, used in ways.items() if used]


@dataclass(frozen=True)
class Notice:
    """One notice: what webhooks and commands get as JSON, with its `id`."""

    event: str
    """`started`, `failed`, `plateau` or `finished`."""
    training_id: str
    name: str
    site: str
    attempt: int
    state: str
    text: str
    """All of it in words."""
    kind: str = ""
    reason: str = ""
    hint: str = ""
    action: str = ""
    """Why no other attempt follows."""
    time: float = 0.0
    """Unix seconds."""
    since_step: int | None = None
    """Where a plateau began at which the training goes on."""

    @property
    def claimed_as(self) -> str:
        """Return the event in the name of the file that claims the notice."""
        return self.event if self.since_step is None else f"{self.event}-{self.since_step}"

    @property
    def id(self) -> str:
        """Return what tells it apart, no matter who sends it and how often.

        Standard Webhooks forbids a dot in it.
        """
        return f"{self.training_id}-{_occasion(self.attempt, self.claimed_as)}"

    def to_json(self) -> str:
        """Return what webhooks and commands get."""
        return json.dumps({"id": self.id, **dataclasses.asdict(self)})

    @property
    def title(self) -> str:
        """Return the subject of a mail."""
        what = self.state.lower() if self.event == "failed" else self.event  # it may be halted
        return " ".join(f"{self.training_id} {what}: {self.reason}".split())[:200]


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


class NotSent(HintedError):
    """A notice could not be sent; the message holds no secret.

    One with a hint will not succeed before somebody has followed it.
    """

    def __init__(self, message: str, *, hint: str = "", wait_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.wait_s = wait_s
        """How long the receiver wants to be left alone; infinite: it is gone for good."""


def shortened(pause_s: float) -> float:
    """Return a pause shortened by up to half at random: thousands may have failed at once."""
    return pause_s * random.uniform(0.5, 1.0)  # noqa: S311 (no secret)


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
        raise NotSent(
            f"the mail server refused the password ({error.smtp_code})",
            hint="see smtp.user and smtp.password in the manifest",
        ) from None
    except smtplib.SMTPException as error:
        raise NotSent(f"the mail server refused it: {type(error).__name__}") from None
    except UnicodeError as error:  # smtplib encodes a password in ASCII
        raise NotSent(f"the mail can't be written: {type(error).__name__}") from None
    except OSError as error:
        raise NotSent(f"the mail server can't be reached: {error.strerror or error}") from None
