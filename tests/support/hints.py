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


PROGRAM = re.compile(
    r"""(?:^|(?<=[\ `("]))(?P<kind>chmod \ (?:[ugo]*[+-][rwx]+|\d{3})
    |(?:df|free|ls|quota|rm|sinfo|srun|ssh|ssh-keygen|ulimit) \ --?[A-Za-z-]+
    |(?:fuser|rm)(?= \ [7/])|keyring \ set|pip \ (?:install|download)
    |(?:sacctmgr|scontrol) \ (?:show|release)|ssh \ HOST|ssh-add)(?![\w-])(?P<rest>[^`;)\n]*)""",
    re.VERBOSE,
)
"""A program of the system, with what makes it another command."""
OWN_SCRIPT = re.compile(
    r"\n|\|\||&&|2>|\$[1{]| -- "
    r"|^(?:limit |rm -f |printf |df -7|sinfo --ver|scontrol show c|srun --mpi|ssh -o|ssh-add$)"
)
"""What only scripts have, which dlctl runs itself."""
CLAUSE = re.compile(r", | and | on it|: |\.(?: |$)")


def programs_in(text: str) -> list[tuple[str, str]]:
    """Return each program of the system that a hint names: what kind of call, and how to type it.

    A command ends at a `, ; or ), or with the sentence's next clause.
    """
    if OWN_SCRIPT.search(text):
        return []
    found = []
    for call in PROGRAM.finditer(text):
        rest = call["rest"] if text[: call.start()].endswith("`") else CLAUSE.split(call["rest"])[0]
        found.append((call["kind"], (call["kind"] + rest).strip()))
    return found
