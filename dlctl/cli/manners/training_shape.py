"""The shape of a training, as every command prints it with `--json`."""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any, get_type_hints

from dlctl.record import Record
from dlctl.service.describe import UNKNOWN_IF_0

_TYPES = get_type_hints(Record)
Training = make_dataclass("Training", [
    ("created_at", float | None),
    ("overrides", dict[str, Any] | None, None),
    *((name, _TYPES[name] | None, None) for name in UNKNOWN_IF_0),
], bases=(Record,), frozen=True)  # fmt: skip
"""What `dlctl.service.describe.plain` makes of a record."""
