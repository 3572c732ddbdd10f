"""Takes the commands out of what dlctl prints, as a person does who follows a hint."""

from __future__ import annotations

import re

from dlctl.cli.main import PANELS

NAMES = "|".join(each.rpartition(".")[2].strip("_") for panel in PANELS.values() for each in panel)
CALL = re.compile(rf"(?P<tick>`?)(?<![\w.-])dlctl (?=(?:{NAMES})\b)")
END = re.compile(r"[;`\"'()\n]|[,.:](?: |$)| (?:and|or|then)\b|  |$")
"""The end of a command that does not stand between ` and `."""


def commands_in(text: str) -> list[tuple[str, bool]]:
    """Return each `dlctl` command of a text without its first word, and whether ` are around it."""
    found = []
    for call in CALL.finditer(text):
        rest, is_ticked = text[call.end() :], bool(call["tick"])
        end = END.search(rest)
        assert end is not None
        command = rest.partition("`")[0] if is_ticked else rest[: end.start()]
        found.append((command.strip(), is_ticked))
    return found
