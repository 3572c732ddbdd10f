"""The command watch: curves and answers in the terminal."""

from __future__ import annotations

import shutil
from contextlib import closing

import typer

from dlctl.cli import output
from dlctl.cli.common import IDS, client


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(watch)


def watch(
    training_ids: list[str] = IDS,
    once: bool = typer.Option(False, "--once", help="Print one picture and end."),
) -> None:  # fmt: skip
    """Watch trainings: curves, the six answers, learners, the log; a pipe gets plain text.

    Example: dlctl watch digits-3k9f
    """
    from dlctl.terminal.watch import Watched, watch_in_pipe, watch_on_terminal

    mine = client()
    watched = Watched(mine.store, mine.open, mine.store.find_all(training_ids or []))
    with closing(watched.live):
        if output.has_whole_screen() and not once:
            watch_on_terminal(watched)
        else:
            columns = shutil.get_terminal_size((80, 24)).columns
            watch_in_pipe(watched, output.raw, columns, follow=not once)
