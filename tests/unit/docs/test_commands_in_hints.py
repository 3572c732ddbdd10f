"""Every `dlctl` command that the product prints can be typed as it stands there.

A hint may name an option that was renamed, or end in the middle of a sentence: the commands are
taken out of all texts of the code, and parsed by the command itself. What they then do in their
situation is tried by the tests of `followed_hints.py`.
"""

import ast
import re
import subprocess
from typing import NamedTuple

import pytest
import typer
from followed_hints import ALL, LOOKS, NOT_RUN, PROGRAMS, PROGRAMS_NOT_RUN, PROVED_BY, TOPICS
from hints import commands_in, programs_in
from repository import REPOSITORY

from dlctl.cli.main import app
from dlctl.contract.programs.advice import with_id

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


def kind(tree, text):
    """Return a command with the names of its options, which is what hints have in common."""
    command, words, found = tree, text.split(), []
    while getattr(command, "commands", None) and words:
        found.append(words.pop(0))
        command = command.commands[found[-1]]
    return " ".join([*found, *sorted({word for word in words if word.startswith("--")})])


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


def test_every_kind_of_command_in_a_hint_is_run_by_a_test(tree):
    """A row of `followed_hints.py` runs it as it is printed, or the test that is named there."""
    printed: dict[str, list[str]] = {}
    for call in calls():
        printed.setdefault(kind(tree, call.text), []).append(call.place)
    run = {kind(tree, each) for row in ALL for each in row.commands} | {*TOPICS}
    named = [*run, *PROVED_BY, *NOT_RUN]
    assert {name: places for name, places in printed.items() if name not in named} == {}
    assert {*PROVED_BY, *NOT_RUN} - printed.keys() == set()  # no more than the code has
    assert {*PROVED_BY, *NOT_RUN} & run == set()
    assert_exist(PROVED_BY)


def assert_exist(tests):
    for place in tests.values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (REPOSITORY / "tests" / file).read_text(), place


def programs():
    """Return each kind of call of a program of the system that is printed, with its calls."""
    found: dict[str, list[str]] = {}
    for place, text in sources():
        for name, command in [] if place.startswith("templates") else programs_in(text):
            found.setdefault(name, []).append(command)
    return found


def test_every_program_in_a_hint_is_run_by_a_test():
    printed = programs()
    assert printed.keys() == {*LOOKS, *PROGRAMS, *PROGRAMS_NOT_RUN}
    assert len(printed) == len(LOOKS) + len(PROGRAMS) + len(PROGRAMS_NOT_RUN)
    assert_exist(PROGRAMS)


@pytest.mark.parametrize("name", LOOKS)
def test_a_program_that_only_looks_runs_as_it_is_printed(name, tmp_path):
    for command in programs()[name]:
        words = command.replace(VALUE, str(tmp_path))
        done = subprocess.run(["bash", "-c", words], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout, (command, done)


NAMED_ONLY = (
    "stops a training", "ends it", "removes a training", "in `dlctl logs`.", "on a short run",
    "was interrupted before", "which `dlctl fetch` brings", "waiting until it ends", "makes one",
    "with the same file takes it up", "dlctl delete",
)  # fmt: skip
"""Ends, or parts, of texts of which a command is the topic, and not what to type next."""
TAKE_THE_LATEST = re.compile(
    r"dlctl (?:logs(?: --trial \d+)?|resume(?: --code)?|fetch(?: results)?|show|metrics|halt"
    r"|cancel|delete|status|checkpoints (?:list|verify)|search trials)(?=`|[.,;]|$)"
)


def test_a_hint_names_the_training_that_it_is_about():
    """Without an id a command takes the latest training of the folder: perhaps another one.

    What a node says gets the id where its verdict is made, or where the login side reads it.
    """
    assert with_id("x `dlctl resume --code` y; dlctl logs", "t-1") == (
        "x `dlctl resume --code t-1` y; dlctl logs t-1"
    )
    assert with_id("dlctl logs t-2; `dlctl search start`", "t-1") == (
        "dlctl logs t-2; `dlctl search start`"
    )
    unnamed = []
    for place, text in sources():
        is_topic = any(words in text for words in NAMED_ONLY)
        text = text if place.startswith("dlctl/") else with_id(text, "t-1")
        if TAKE_THE_LATEST.search(text) and not is_topic and not place.startswith("templates"):
            unnamed.append((place, text))
    assert unnamed == []
