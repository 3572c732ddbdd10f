"""What a user may call a training: the beginning or end of its id, `@latest`, or the folder."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Protocol, TypeVar

from dlctl.errors import RecordError


class Named(Protocol):
    """What tells one training from others."""

    @property
    def training_id(self) -> str:
        """Return its id."""
        ...

    @property
    def folder(self) -> str:
        """Return the folder that it was submitted from."""
        ...

    @property
    def manifest_path(self) -> str:
        """Return the manifest's path; empty if there was none."""
        ...


T = TypeVar("T", bound=Named)


def _counted_back(wanted: str, records: list[T]) -> T:
    """Return the training that `@latest`, or `@-2` for the one before it, means."""
    number = re.fullmatch(r"@(?:latest|-([1-9][0-9]*))", wanted)
    if number is None:
        raise RecordError(f"{wanted!r} is no training", hint="@latest is the newest, @-2 the one "
                          "before it")  # fmt: skip
    back = int(number[1] or 1)
    if back > len(records):
        raise RecordError(f"{wanted}: there are only {len(records)} in the local record",
                          hint="`dlctl list` shows them all")  # fmt: skip
    return records[-back]


def fitting(wanted: str, records: list[T]) -> T:
    """Return the training with this beginning or end of its id, or so many before the newest.

    Raises:
        RecordError: there is none, or several.
    """
    if wanted.startswith("@"):
        return _counted_back(wanted, records)
    found = [r for r in records if r.training_id.startswith(wanted)] or [
        r for r in records if r.training_id.endswith(wanted)
    ]
    if len(found) > 1:
        names = ", ".join(r.training_id for r in found[-5:])
        raise RecordError(f"{wanted!r} fits {len(found)} trainings", hint=f"such as {names}")
    if not found:
        near = difflib.get_close_matches(wanted, [r.training_id for r in records], 1)
        hint = f"did you mean {near[0]}? " if near else ""
        hint += "`dlctl list` shows them all"
        if not near:
            hint += ", `dlctl adopt SITE` finds what another machine has submitted"
        raise RecordError(f"no training {wanted!r} is known here", hint=hint)
    return found[0]


def latest(records: list[T], folder: Path) -> T:
    """Return the latest training of a folder, or of the nearest folder above it.

    Raises:
        RecordError: there is none.
    """
    newest: dict[str, T] = {}
    for record in records:
        newest[record.folder] = record
        if record.manifest_path:
            newest[str(Path(record.manifest_path).parent)] = record
    here = folder.resolve()
    for place in (here, *here.parents):
        if str(place) in newest:
            return newest[str(place)]
    raise RecordError(
        f"no training was submitted from {here}",
        hint="name one (`dlctl list` shows them), or `dlctl submit manifest.yml`",
    )
