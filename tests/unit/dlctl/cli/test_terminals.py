"""What commands print on terminals of any width, in a pipe, and where only ASCII can be shown."""

import json
import re
from dataclasses import replace

import pytest
from made_search import write_search

from dlctl.cli import output
from dlctl.contract import State
from dlctl.record import Record
from dlctl.terminal.text import width_of

READING = [
    ["list"], ["list", "--offline"], ["list", "--state", "FAILED"], ["status"],
    ["status", "--name", "*"], ["show"], ["show", "--all"], ["metrics"], ["report"],
    ["tag", "--name", "*"], ["watch", "--once"], ["delete", "--name", "*", "-n"],
    ["cancel", "--name", "*", "-n"], ["prune", "--older-than", "1s", "-n"], ["du"], ["du", "--all"],
    ["config"], ["schema"], ["validate"], ["sites", "list"],
    ["doctor", "local"], ["sites", "nodes", "local"], ["frameworks", "list"],
    ["stores", "list"], ["stores", "show", "s3_datastore"], ["stores", "cache"],
    ["checkpoints", "list"], ["models", "list"], ["status", "made"],
    ["show", "made"], ["search", "trials", "made"], ["search", "best", "made"],
    ["watch", "made", "--once"], ["show", "made", "--trial", "0"],
    ["show", "nothing"], ["submit", "absent.yml"], ["config", "colour"], ["sites", "show", "no"],
]  # fmt: skip
FILES = [["render"], ["sites", "show", "local"], ["frameworks", "show", "pytorch"],
         ["show", "--script"], ["schema", "training"], ["logs"]]  # fmt: skip
"""These print files as they are, whatever the width."""
ORDERS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[>=]|\x1b\][^\x07]*\x07")
FAULTS = ("Traceback (most", "UnicodeEncodeError", "internal error")


@pytest.fixture
def lived_in(dlctl, trainings, local_site, tmp_path):
    """A folder with a training that has ended, records of others, and a search."""
    (dlctl.cwd / "train.py").write_text("")
    (dlctl.cwd / "manifest.yml").write_text(
        "name: größe\nframework: {name: sh, command: 'echo \"ü → 漢字\"; exit 3'}\n"
    )
    (training_id,) = dlctl("submit", "--tag", "baseline", ok=True).stdout.split()
    dlctl("logs", "--follow", training_id)
    job_dir = tmp_path / "jobs/made-3k9f"
    job_dir.mkdir(parents=True)
    write_search(job_dir, 30, ended=25)
    other = Record("made-3k9f", "made", "local", "/no", str(job_dir), "2026-01-01T10:00:00",
                   job_id="1", state=State.CANCELLED, is_search=True,
                   reason="cancelled while 漢字 was read " * 6)  # fmt: skip
    trainings.add(other)
    trainings.add(
        replace(other, training_id="a-name-of-fifty-letters-" * 2 + "-x", is_search=False)
    )
    return training_id


def faults_of(text):
    return [word for word in FAULTS if word in text]


def too_wide(text, columns):
    """Return the lines that are wider than the terminal though they could be broken.

    A word that is longer than half a line may stand out: a path, an id, a command to copy.
    """
    found = []
    for line in ORDERS.sub("", text).splitlines():
        words = re.split(r"[\s\xa0]+", line.strip())
        unbroken = max(map(width_of, words)) > columns // 2 or line.startswith(
            ("  next: ", "  hint: ")
        )
        if width_of(line.rstrip()) > columns and not unbroken:
            found.append(line)
    return found


@pytest.mark.first("60-*")
@pytest.mark.parametrize(("columns", "commands"), [
    (40, [*READING, ["--help"], ["submit", "--help"]]), (60, READING[:8]),
    pytest.param(80, [*READING, ["logs", "--help"]], marks=pytest.mark.long), (300, READING[:8]),
])  # fmt: skip
def test_no_line_is_wider_than_the_terminal(dlctl, lived_in, columns, commands):
    """Trains once, then runs every command that reads: longer than five seconds."""
    env = {**dlctl.env, "TERM": "xterm-256color", "DLCTL_PAGER": "never"}
    del env["COLUMNS"], env["NO_COLOR"]
    wrong = {}
    for command in commands:
        _, printed = dlctl.server.run_on_terminal(command, env=env, cwd=dlctl.cwd, columns=columns)
        text = printed.decode().replace("\r\n", "\n")
        found = [] if text else ["nothing is printed"]
        found += faults_of(text) + too_wide(text, columns)
        if found:
            wrong[" ".join(command)] = found
    assert not wrong, "\n".join(f"{name}: {each}" for name, each in wrong.items())


def told_in_a_pipe(dlctl, command):
    env = {key: text for key, text in dlctl.env.items() if key != "NO_COLOR"}
    done = dlctl(*command, env=env | {"TERM": "xterm-256color"})
    return done.stdout + done.stderr, ORDERS


def told_in_ascii(dlctl, command):
    env = {**dlctl.env, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "TERM": "dumb",
           "DLCTL_PAGER": "never"}  # fmt: skip
    del env["NO_COLOR"]
    _, printed = dlctl.server.run_on_terminal(command, env=env, cwd=dlctl.cwd, columns=80)
    return printed.decode("ascii"), re.compile(r"\x1b.{,5}|\\u2[0-9a-f]{3}")


def told_without_colours(dlctl, command):
    env = {**dlctl.env, "TERM": "xterm-256color", "DLCTL_PAGER": "never"}
    _, printed = dlctl.server.run_on_terminal(command, env=env, cwd=dlctl.cwd, columns=80)
    return printed.decode(), re.compile(r"\x1b\[[0-9;]*[34][0-9]m")


@pytest.mark.slow
@pytest.mark.parametrize("tell", [
    told_in_ascii,  # which is a pipe, too
    pytest.param(told_in_a_pipe, marks=pytest.mark.long),
    pytest.param(told_without_colours, marks=pytest.mark.long),
])  # fmt: skip
def test_nothing_is_written_that_the_reader_can_not_show(dlctl, lived_in, tell):
    """Runs every command that reads: longer than five seconds."""
    wrong = {}
    for command in [*READING, *FILES, ["--help"]]:
        text, refused = tell(dlctl, command)
        if found := faults_of(text) + refused.findall(text):
            wrong[" ".join(command)] = found
    assert not wrong, "\n".join(f"{name}: {each}" for name, each in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize("command", [["show"], ["logs"]])
def test_json_is_json_where_only_ascii_can_be_written(dlctl, lived_in, command):
    """`\\xf6` is no escape of JSON."""
    done = dlctl(*command, "--json", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}, ok=True)
    for text in done.stdout.splitlines() if command == ["logs"] else [done.stdout]:
        json.loads(text)


def test_a_terminal_that_hears_no_key_is_told_what_to_do(on_terminal, monkeypatch):
    """As on Windows: `watch` drew one picture below the other, without a word."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    seen = []
    on_terminal(lambda: seen.append((output.has_whole_screen(), output.why_no_screen())), 80)
    ((is_whole, why),) = seen
    assert not is_whole and why.startswith("this system has no termios, so that no key is heard")
    assert "--once prints one picture" in why
    assert output.why_no_screen() == "", "a pipe gets no such word"
