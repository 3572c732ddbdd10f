"""The manifest's `notify`: who is told what happens to the training, and how."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from dlctl.contract import BY_DEFAULT, EVENTS
from dlctl.manifest.parts import Line, Reference, Section, Text

_ADDRESS = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+")
WEBHOOK, PASSWORD = "notify.webhook", "notify.smtp.password"  # noqa: S105 - names
SERVER = re.compile(r"([A-Za-z0-9._-]+)(?::(\d{1,5}))?")


def _address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"{text!r} is not a mail address; one such as me@example.org is allowed")
    return text


def _server(text: str) -> str:
    if not SERVER.fullmatch(text):
        raise ValueError(f"{text!r} is no mail server; write mail.example.org or HOST:PORT")
    return text


def _events(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Address = Annotated[Line, AfterValidator(_address)]
Events = Annotated[
    list[Literal[EVENTS]],  # type: ignore[valid-type]
    BeforeValidator(_events),
    WithJsonSchema({"type": "array", "items": {"enum": list(EVENTS)}}),
]


class SmtpSection(Section, title="Smtp"):
    """The server that mails are sent through."""

    server: Annotated[Line, AfterValidator(_server)] = Field(description="HOST or HOST:PORT.")
    tls: Literal["starttls", "tls", "none"] = Field("starttls", description="How it is encrypted.")
    sender: Address | None = Field(None, description="Default: the address in `email`.")
    user: Line | None = Field(None, description="To log in as.")
    password: Reference | None = Field(None, description="{from_env: NAME} or {from_file: PATH}.")

    @model_validator(mode="after")
    def _encrypted_password(self) -> SmtpSection:
        if self.password is not None and self.tls == "none":
            raise ValueError("tls: none sends the password readable; starttls or tls is allowed")
        return self


class NotifySection(Section, title="Notify"):
    """Notices to people."""

    email: Address | None = Field(None, description="A mail address; without `smtp` Slurm mails.")
    smtp: SmtpSection | None = Field(None, description="The server that mails are sent through.")
    webhook: Reference | None = Field(
        None, description="A URL that gets JSON by POST; dlctl keeps it as a secret."
    )
    command: Text | None = Field(None, min_length=1, description="Shell text, run on a node.")
    on: Events = Field(default_factory=lambda: list(BY_DEFAULT), description="What is told.")

    @model_validator(mode="after")
    def _a_way_is_set(self) -> NotifySection:
        if not (self.email or self.webhook or self.command):
            raise ValueError("has no way to tell; set email, webhook or command")
        if not self.on:
            raise ValueError(f"on names no event; {', '.join(EVENTS)} are allowed")
        if self.smtp and not self.email:
            raise ValueError("smtp is set without email, the address that mails go to")
        return self

    def references(self) -> dict[str, Reference]:
        """Return the references by name."""
        found = {WEBHOOK: self.webhook, PASSWORD: self.smtp.password if self.smtp else None}
        return {name: reference for name, reference in found.items() if reference is not None}
