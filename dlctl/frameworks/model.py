"""`framework.yml` in a framework's folder, as a validated, frozen model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

SIGNALS = ("USR2", "USR1", "TERM", "INT", "HUP")


def _text(value: Any) -> Any:
    """Return a number as it is written: `2.10` is the text "2.10"."""
    return getattr(value, "text", value)


Text = Annotated[str, BeforeValidator(_text)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Job(_Part):
    """The files that `framework.job` may name."""

    suffix: str = ".py"
    example: str = "train.py"
    arguments: Literal["options", "file", "loop"] = "options"
    """`options`: `--name value`; `file`: the path of a JSON file; `loop`: as `build` gets them."""


class Loop(_Part):
    """The built-in loop trains what `job` names."""

    unless: str | None = None
    """A program that trains instead on nodes that have it."""
    module: str | None = None
    """A Python file of the framework's folder, whose functions read what `job` names."""


class Checkpoint(_Part):
    """The entries of CHECKPOINT_DIR that are checkpoints."""

    files: str | None = None
    adapter: str = ""
    """For people: what of the framework writes it."""


class FrameworkSettings(_Part):
    """The content of framework.yml."""

    title: str
    start: Literal["learner", "node", "own"] = "learner"
    """One process for each learner, one for each node, or one that starts all others itself."""
    job: Job | None = None
    loop: Loop | None = None
    modules: list[str] = Field(default_factory=list)
    install: str = ""
    versions: list[Text] = Field(default_factory=list)
    signal: Literal[SIGNALS] = "USR2"  # type: ignore[valid-type]
    checkpoint: Checkpoint = Checkpoint()
    addresses: bool = False
    gone: dict[str, str] = Field(default_factory=dict)
    """Text that no longer works in this framework, and what to use in its place."""
    same_as: str | None = None
    """Another framework's folder, which this name stands for."""


@dataclass(frozen=True)
class FrameworkFolder:
    """A framework as dlctl found it."""

    name: str
    place: str
    """`package`, `user` or `folder`."""
    path: Path
    settings: FrameworkSettings

    @property
    def template(self) -> str:
        """Return the text of train.sh.j2."""
        return (self.path / "train.sh.j2").read_text(encoding="utf-8")

    def knows_version(self, version: str) -> bool:
        """Return whether a version belongs to one that the folder lists, if it lists any."""
        known = self.settings.versions
        return not known or any(re.match(rf"{re.escape(v)}(\.|$)", version) for v in known)
