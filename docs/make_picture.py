"""Draw docs/training.svg, the README's picture, from a real training: python docs/make_picture.py.

The commands run on a terminal of their own, in a home that is deleted afterwards. The picture shows
what they printed, with their colours. It may leave lines out (⋮) and cut long ones (…); it never
shows a word that was not printed, except `~` where the temporary home's path stood.
"""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).with_name("training.svg")
EXAMPLE = Path(__file__).parent.parent / "examples/digits"
COLUMNS, ROWS = 106, 40
LONGEST_RUN_S = 300
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Scene(NamedTuple):
    """One command, and which lines of what it prints the picture leaves out."""

    command: str
    left_out: str = r"(?!)"


SCENES = (
    Scene("dlctl submit manifest.yml --follow", r"\| epoch ([3-9]|1\d)/"),
    Scene("dlctl show", r"^(?!training)[a-z][a-z ]+  |^ *$"),
    Scene("dlctl fetch results"),
)


def run_on_terminal(argv: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run a command on a terminal of COLUMNS columns; return all that it sent to the terminal.

    Raises:
        RuntimeError: the command failed
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    with subprocess.Popen(
        argv, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(theirs)
        text = b"".join(_chunks(ours)).decode()
        status = process.wait(LONGEST_RUN_S)
    os.close(ours)
    if status != 0:
        raise RuntimeError(f"{argv}: exit code {status}\n{text}")
    return text


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Yield what a terminal gets, until no process has it open any more."""
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # EIO is how Linux reports that the other end is closed
            return
        if not chunk:
            return
        yield chunk


def visible_lines(text: str) -> list[str]:
    """Return the lines that stay on the screen once the progress bars have erased themselves."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").rstrip("\n").split("\n"):
        if "\x1b[1A" in line:  # the cursor moves up: what follows replaces the last line
            lines.pop()
        last = re.split(r"\x1b\[2K|\r", line)[-1]
        lines.append(re.sub(r"\x1b\[\?25[lh]", "", last))
    return lines


def shortened(lines: list[str], left_out: str) -> Iterator[Text]:
    """Yield the lines as they looked; one ⋮ stands for each run of lines that are left out."""
    gap = False
    for line in lines:
        text = Text.from_ansi(line)
        if re.search(left_out, text.plain):
            gap = gap or bool(text.plain.strip())
            continue
        if gap:
            yield Text("⋮", style="dim")
        gap = False
        yield cut(text)


def cut(text: Text) -> Text:
    """Return a line that fits the terminal: a longer one ends with … after a whole word."""
    text.rstrip()
    if len(text) > COLUMNS:
        kept = text.plain[: COLUMNS - 2]
        gap = re.search(r"  (?!.*  )", kept) or re.search(r" (?!.* )", kept)
        text.truncate(gap.start() if gap else len(kept))
        text.append(" …", style="dim")
    return text


def record(home: Path) -> Console:
    """Run the scenes in `home`; return a console that has recorded what they printed."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False
    )
    folder = home / EXAMPLE.name
    shutil.copytree(EXAMPLE, folder)
    kept = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = kept | {"PATH": path, "HOME": str(home), "TERM": "xterm-256color", "USER": "alice"}
    for number, scene in enumerate(SCENES):
        if number:
            console.print()
        console.print(Text.assemble(("$ ", "bold green"), (scene.command, "bold")))
        printed = run_on_terminal(scene.command.split(), folder, env).replace(str(home), "~")
        for line in shortened(visible_lines(printed), scene.left_out):
            console.print(line)
    return console


def portable(svg: str) -> str:
    """Return rich's picture as every viewer can show it: without fonts from another host.

    Some viewers trim a line's leading spaces unless the picture asks to preserve them.
    """
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: [^;]+", f"font-family: {FONTS}", svg)


def main() -> None:
    """Run the scenes and write the picture."""
    with tempfile.TemporaryDirectory(prefix="dlctl-picture-") as home:
        console = record(Path(home))
    svg = console.export_svg(title="a training on this machine")
    PICTURE.write_text(portable(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
