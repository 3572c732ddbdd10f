"""The manifest's sections about a training that runs: `hang`, `retry`, `stop` and `notify`."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from dlctl.contract import BY_DEFAULT, EVENTS
from dlctl.manifest.parts import (
    Count,
    Duration,
    Line,
    Real,
    Reference,
    Section,
    Text,
    as_written,
    checked,
)
from dlctl.units import parse_duration

LEAST_FLOOR_S = 15.0
"""Learners report every 5 s."""

_FACTOR = re.compile(r"(\d+(?:\.\d+)?)x", re.ASCII)
MOST = 16.0

_ADDRESS = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+")
WEBHOOK, WEBHOOK_SECRET = "notify.webhook", "notify.webhook_secret"  # noqa: S105 - names
PASSWORD = "notify.smtp.password"  # noqa: S105 - a name
SERVER = re.compile(r"([A-Za-z0-9._-]+)(?::(\d{1,5}))?")


def _long_enough(text: str) -> str:
    if parse_duration(text) < LEAST_FLOOR_S:
        raise ValueError(f"{text!r} is too short; {LEAST_FLOOR_S:g}s or more is allowed")
    return text


class HangSection(Section, title="HangSettings"):
    """When learners that make no step are ended, and their attempt retried."""

    watch: Literal["on", "off"] = Field("on", description="Whether to look for hangs.")
    floor: Annotated[Duration, AfterValidator(_long_enough)] | None = Field(
        None, description="The least time without a step; default: 10m, with a command 30m."
    )
    factor: Real = Field(
        10.0, ge=2, description="Or this many times the median step, if that is longer."
    )


def parse_factor(text: str) -> float:
    """Return the number of a factor such as 1.5x.

    Raises:
        ValueError: the text is no factor between 1x and 16x.
    """
    match = _FACTOR.fullmatch(text.strip())
    factor = float(match[1]) if match else 0.0
    if not 1.0 < factor <= MOST:
        raise ValueError(f"{text!r} is not a factor; write one between 1x and {MOST:g}x, as 1.5x")
    return factor


Factor = Annotated[
    str,
    BeforeValidator(as_written),
    checked(parse_factor),
    WithJsonSchema({"type": "string", "pattern": r"^\d+(\.\d+)?x$"}),
]


class RetrySection(Section, title="RetrySettings"):
    """Changes of the next attempt after one that failed."""

    memory: Factor | None = Field(
        None, description="Once, if the host's memory ran out: how much more, as in 1.5x."
    )
    backoff: Duration | None = Field(
        None, description="The first delay; it grows fourfold with each retry in vain."
    )
    min_learners: Count | None = Field(
        None, ge=1, description="With how few learners to go on if nodes are lost."
    )


def _named(value: Any) -> Any:
    return True if value is None else value


class PlateauSection(Section, title="Plateau"):
    """A metric that has to improve."""

    metric: Line | None = Field(
        None,
        description="A metric that the training reports; default: the one that dlctl judges it by,"
        " with `patience` validation_loss.",
    )
    patience: Count | None = Field(
        None, ge=1, description="Epochs (or reports) without improvement; default: a test decides."
    )
    better: Literal["lower", "higher"] | None = Field(
        None, description="Which values are better; default: lower, without `patience` by the name."
    )


def _automatic(value: Any) -> Any:
    if value is None or value == "auto":
        return {}
    if not isinstance(value, (dict, PlateauSection)):
        allowed = "auto, or metric, patience and better"
        raise ValueError(f"{value} is no guard; {allowed} are allowed")
    return value


class LossSpikeSection(Section, title="LossSpike"):
    """A loss that jumps."""

    factor: Real = Field(gt=1, description="How many times the median of the last 50 losses.")
    action: Literal["roll_back", "skip"] = Field(
        "roll_back",
        description="Go on from the newest checkpoint before; skip: without the batches between.",
    )


class StopSection(Section, title="Stop"):
    """Guards that end the training, or the attempt, by themselves."""

    not_a_number: Annotated[
        bool, BeforeValidator(_named), WithJsonSchema({"type": ["boolean", "null"]})
    ] = Field(False, description="End at the first step whose loss is NaN or infinite.")
    plateau: Annotated[
        PlateauSection | None,
        BeforeValidator(_automatic, json_schema_input_type=PlateauSection | Literal["auto"] | None),
    ] = Field(None, description="End when a metric stays as it is; auto: by dlctl's own test.")
    loss_spike: LossSpikeSection | None = Field(None, description="Roll back when the loss jumps.")
    max_node_hours: Real | None = Field(None, gt=0, description="Node-hours of all attempts.")
    max_gpu_hours: Real | None = Field(None, gt=0, description="GPU-hours of all attempts.")

    @model_validator(mode="after")
    def _something_is_set(self) -> StopSection:
        if not self.model_fields_set:
            raise ValueError("is empty; leave it out, or set a guard such as not_a_number: true")
        return self


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
    tls: Literal["starttls", "tls", "none"] = Field(
        "starttls", description="How it is encrypted: starttls, tls or none."
    )
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

    email: Address | None = Field(
        None,
        description="A mail address; without `smtp` Slurm sends the mails, for each job of the "
        "training.",
    )
    smtp: SmtpSection | None = Field(None, description="The server that mails are sent through.")
    webhook: Reference | None = Field(
        None, description="A URL that gets each notice as JSON by POST; dlctl keeps it as a secret."
    )
    webhook_secret: Reference | None = Field(
        None, description="Signs what the webhook gets: `whsec_` and 24 to 64 bytes in base64."
    )
    command: Text | None = Field(
        None,
        min_length=1,
        description="Shell text, run on the first node in the code folder, with the notice as JSON "
        "on its standard input and DLCTL_EVENT, DLCTL_TRAINING_ID, DLCTL_STATE and "
        "DLCTL_REASON.",
    )
    on: Events = Field(
        default_factory=lambda: list(BY_DEFAULT),
        description="What is told; default: failed, plateau, finished.",
    )

    @model_validator(mode="after")
    def _a_way_is_set(self) -> NotifySection:
        if not (self.email or self.webhook or self.command):
            raise ValueError("has no way to tell; set email, webhook or command")
        if not self.on:
            raise ValueError(f"on names no event; {', '.join(EVENTS)} are allowed")
        if self.smtp and not self.email:
            raise ValueError("smtp is set without email, the address that mails go to")
        if self.webhook_secret and not self.webhook:
            raise ValueError("webhook_secret is set without webhook, whose notices it signs")
        return self

    def references(self) -> dict[str, Reference]:
        """Return the references by name."""
        found = {WEBHOOK: self.webhook, WEBHOOK_SECRET: self.webhook_secret,
                 PASSWORD: self.smtp.password if self.smtp else None}  # fmt: skip
        return {name: reference for name, reference in found.items() if reference is not None}
