"""`dlctl --help` and `dlctl list`, compared with a Typer app (`python -m benchmarks.start_up`).

The floor of `--help` is a Typer app with one command that prints its help; the floor of `list` is
one that prints the same rows as one rich table. Each is measured in a pipe and on a terminal, where
dlctl draws, too.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from leftovers import SESSION_VARIABLE  # type: ignore[import-not-found]

from benchmarks.report import Command, Load, Result, compare, main, rounds
from dlctl.contract import State
from dlctl.record import Record, RecordStore

TRAININGS = 20
_ROUNDS = rounds(41)

_HELP_FLOOR = '''\
import typer

app = typer.Typer()


@app.command()
def main() -> None:
    """Do nothing."""


app()
'''
_TABLE_FLOOR = """\
import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer()


@app.command()
def main() -> None:
    table = Table("training", "site", "state", "job", "seen")
    for i in range({rows}):
        table.add_row(f"digits-{{i:08}}", "mycluster", "COMPLETED", str(i), "1 min ago")
    Console().print(table)


app()
"""


def dlctl_argv(*arguments: str) -> list[str]:
    """Return the installed command beside this Python."""
    return [str(Path(sys.executable).with_name("dlctl")), *arguments]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a user whose folders are below `folder`."""
    # With PYTHONDONTWRITEBYTECODE every run would compile dlctl; an installed dlctl is compiled.
    dropped = ("DLCTL_", "XDG_", "SLURM_", "SBATCH_", "PYTHON")
    kept = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(dropped) or name == SESSION_VARIABLE
    }
    folders = {f"XDG_{n}_HOME": str(folder / n.lower()) for n in ("STATE", "CONFIG", "DATA")}
    return kept | folders | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"}


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    with tempfile.TemporaryDirectory(prefix="dlctl-bench-") as name:
        folder = Path(name)
        env = environment(folder)
        _write_trainings(folder / "state/dlctl/record.db")
        help_floor, table_floor = folder / "help_floor.py", folder / "table_floor.py"
        help_floor.write_text(_HELP_FLOOR)
        table_floor.write_text(_TABLE_FLOOR.format(rows=TRAININGS))
        ours = {"help": dlctl_argv("--help"), "list": dlctl_argv("list")}
        floors = {
            "help": [sys.executable, str(help_floor), "--help"],
            "list": [sys.executable, str(table_floor)],
        }
        python = Command([sys.executable, "-c", "pass"], env, folder)
        for on_terminal, suffix in ((False, ""), (True, "_terminal")):
            for key, argv in ours.items():
                yield compare(
                    f"start_up_{key}{suffix}",
                    Command(argv, env, folder, on_terminal=on_terminal).time_s,
                    Command(floors[key], env, folder, on_terminal=on_terminal).time_s,
                    {"python -c pass": python.time_s},
                    rounds=_ROUNDS[load],
                )


def _write_trainings(path: Path) -> None:
    path.parent.mkdir(parents=True)
    store = RecordStore(path)
    for i in range(TRAININGS):
        store.add(Record(f"digits-{i:08}", "digits", "mycluster", "/home/me/digits",
                         f"/home/me/dlctl/jobs/digits-{i:08}", "2026-01-01T00:00:00.000+00:00",
                         job_id=str(i), state=State.COMPLETED, seen_at=1.0))  # fmt: skip


if __name__ == "__main__":
    main(measure)
