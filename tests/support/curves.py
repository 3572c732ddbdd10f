"""Read a file of metrics as tests compare it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def measured(path: Path) -> list[dict[str, Any]]:
    """Return the measurements, and the events that a person's orders made."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line.get("kind", "order") == "order"]
