"""A stored model as far as it is known: what a site says, and what the local record remembers."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dlctl import contract
from dlctl.contract import LATEST, ModelVersion
from dlctl.errors import RecordError


@dataclass(frozen=True)
class KnownModel:
    """All versions of a model without their files, its aliases and its tags."""

    model_id: str
    site: str
    heads: dict[str, Any] = field(default_factory=dict)
    """By number: each version's record as it was written, fields of a newer dlctl included."""
    aliases: dict[str, int] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    description: str = ""
    uses: list[str] = field(default_factory=list)
    """`<n>.<training id>` for each training that uses, or has used, a version."""
    seen_at: float = 0.0
    """When the site last answered about it (Unix seconds here)."""
    stale_since: float | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        rest = {name: value for name, value in vars(self).items() if name not in ("heads", "uses")}
        heads = [self.heads[str(number)] for number in self.numbers]
        return rest | {"name": self.name, "versions": heads}

    @property
    def numbers(self) -> list[int]:
        """Return the versions that exist, the oldest first."""
        return sorted(int(number) for number in self.heads)

    @property
    def name(self) -> str:
        """Return the name that the newest version was given."""
        return self.version(self.numbers[-1]).name

    def version(self, number: int) -> ModelVersion:
        """Return a version, without its files."""
        return contract.from_json(ModelVersion, json.dumps(self.heads[str(number)]))

    def aliases_of(self, number: int) -> list[str]:
        """Return the aliases of a version; the newest one is always `latest`."""
        latest = [LATEST] if number == self.numbers[-1] else []
        return [*sorted(a for a, n in self.aliases.items() if n == number), *latest]

    def number_of(self, which: str) -> int:
        """Return the number that a version's number or alias means; empty: the newest.

        Raises:
            RecordError: there is no such version.
        """
        if which in ("", LATEST):
            return self.numbers[-1]
        number = int(which) if which.isdecimal() else self.aliases.get(which)
        if number in self.numbers:
            return number
        kind = "version" if which.isdecimal() else "alias"
        raise RecordError(
            f"the model {self.model_id} has no {kind} {which}",
            hint=f"`dlctl models show {self.model_id}` lists its versions and aliases",
        )


def find_model(models: Sequence[KnownModel], wanted: str, where: str) -> KnownModel:
    """Return the model with this id, or a unique beginning or end of it.

    Raises:
        RecordError: there is none, or several.
    """
    by_id = {model.model_id: model for model in models}
    if wanted in by_id:
        return by_id[wanted]
    found = [each for each in by_id if each.startswith(wanted)] or [
        each for each in by_id if each.endswith(wanted)
    ]
    if len(found) == 1:
        return by_id[found[0]]
    if found:
        raise RecordError(
            f"{wanted!r} fits {len(found)} models", hint=f"such as {', '.join(sorted(found)[-5:])}"
        )
    near = difflib.get_close_matches(wanted, by_id, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise RecordError(
        f"there is no model {wanted!r} {where}", hint=hint + "`dlctl models list` shows them all"
    )
