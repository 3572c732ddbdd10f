"""The command watch: curves and answers in the terminal."""

from __future__ import annotations

import shutil

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
    from dlctl.outputs.training_reader import TrainingReader, refresh_details
    from dlctl.terminal.watch import watch_in_pipe, watch_on_terminal

    mine = client()
    records = mine.store.find_all(training_ids or [])
    with mine.looks(records, TrainingReader, more=refresh_details) as looking:
        if output.has_whole_screen() and not once:
            watch_on_terminal(looking)
        else:
            columns = shutil.get_terminal_size((80, 24)).columns
            watch_in_pipe(looking, output.raw, columns, follow=not once)
