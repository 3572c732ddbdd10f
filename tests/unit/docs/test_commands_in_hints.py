"""Every `dlctl` command that the product prints can be typed as it stands there.

A hint may name an option that was renamed, or end in the middle of a sentence: the commands are
taken out of all texts of the code, and parsed by the command itself. What they then do in their
situation is tried in tests/cluster/test_hints_run.py.
"""

import ast
import re
from typing import NamedTuple

import pytest
import typer
from hints import commands_in
from repository import REPOSITORY

from dlctl.cli.main import app

VALUE = "7"
"""Stands for what is filled in: as an id, a site, a number or a path it is as good as any."""
PLAIN = frozenset({"all", "results", "output", "checkpoints", "logs", "metrics"})
"""Words that are arguments. Another word says that the sentence goes on."""
NO_HINTS = frozenset({"dlctl models delete", "# by `dlctl sites setup`"})
"""Texts, or ends of texts, that name a command and tell nobody to run it."""


class Call(NamedTuple):
    place: str
    text: str
    is_ticked: bool


def text_of(node):
    """Return a string's text with VALUE for what is filled in; None: it is no string."""
    match node:
        case ast.Constant(value=str(text)):
            return re.sub(r"(?<!\{)\{\w+\}", VALUE, text)
        case ast.JoinedStr():
            return "".join(text_of(each) or VALUE for each in node.values)
        case ast.BinOp(op=ast.Add()):
            parts = [text_of(node.left), text_of(node.right)]
            return None if parts == [None, None] else "".join(each or VALUE for each in parts)
    return None


def texts(node):
    """Yield line and text of each string below a node, without docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if (text := text_of(node)) is not None:
        yield node.lineno, text
        return
    for child in ast.iter_child_nodes(node):
        yield from texts(child)


def sources():
    for package in ("dlctl", "learner", "psrv", "search"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            for line, text in texts(ast.parse(path.read_text())):
                yield f"{path.relative_to(REPOSITORY)}:{line}", text
    for path in sorted((REPOSITORY / "templates").rglob("*")):
        if path.suffix in (".sh", ".j2"):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                text = re.sub(r'"?\{\{.*?\}\}"?|\$\{?\w+\}?', VALUE, line)
                if not line.lstrip().startswith("#"):
                    yield f"{path.relative_to(REPOSITORY)}:{number}", text


def calls():
    for place, text in sources():
        if not text.endswith(tuple(NO_HINTS)):
            yield from (Call(place, *command) for command in commands_in(text))


@pytest.fixture(scope="module")
def tree():
    return typer.main.get_command(app)


def problem(tree, call):
    """Return why a call can't be typed as it stands, or None."""
    command = tree
    words = [VALUE if word.isupper() else word for word in call.text.split()]
    while getattr(command, "commands", None):
        if call.is_ticked and not words:
            return None  # it lists the group's commands
        name = words.pop(0) if words else ""
        if name not in command.commands:
            return f"there is no {name!r}"
        command = command.commands[name]
    if not call.is_ticked and (
        more := [word for word in words if re.fullmatch("[a-z]+", word) and word not in PLAIN]
    ):
        return f"where does it end? Put ` around it: {' '.join(more)}"
    try:
        with command.make_context("dlctl", [word for word in words if word != "--debug"]):
            return None
    except typer.Exit:
        return "it asks for help"
    except Exception as error:
        return str(getattr(error, "message", error)) or repr(error)


def test_every_command_that_is_printed_can_be_typed(tree):
    found = list(calls())
    assert len(found) > 200  # it does find them
    wrong = {f"{call.place}: dlctl {call.text}": why for call in found
             if (why := problem(tree, call))}  # fmt: skip
    assert wrong == {}


@pytest.mark.parametrize(
    "text", ["resume --time gives it more", "search resume 7", "submit --nope", "sites setup"]
)
def test_a_command_that_does_not_work_is_found(tree, text):
    assert problem(tree, Call("", text, is_ticked=False))
