"""What a shell offers to complete; none of it asks a site."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer

from dlctl.contract.metrics import MetricsLine
from dlctl.record import Record


@pytest.fixture
def known(trainings):
    """A training of a site that is no more."""
    record = Record("t-1", "t", "gone", "/no", "/no", "2026-01-01")
    trainings.add(replace(record, tags=["baseline"]))
    return trainings


def offered(env, shell, words):
    """Return what the real command offers for the last of these words."""
    asked = {
        "_DLCTL_COMPLETE": f"complete_{shell}", "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": " ".join(words),
        "_TYPER_COMPLETE_FISH_ACTION": "get-args", "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("dlctl"))]
    done = subprocess.run(command, env=env | asked, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("shell", "words", "wanted"),
    [("bash", ["show", "t"], "t-1"), ("zsh", ["list", "--tag", "b"], "baseline"),
     ("fish", ["submit", "--tag", "b"], "baseline"), ("bash", ["list", "--site", "l"], "local"),
     ("zsh", ["cancel", "--state", "TR"], "TRAINING"), ("fish", ["schema", "tra"], "training")],
)  # fmt: skip
def test_each_shell_is_offered_what_the_record_knows(xdg, known, shell, words, wanted):
    assert wanted in offered(xdg.env, shell, ["dlctl", *words])


def test_attempts_are_those_of_the_record(known, monkeypatch):
    from dlctl.cli.logs import complete_attempts

    known.add(replace(known.find("t-1"), training_id="t-2", attempt=12))
    monkeypatch.setattr("dlctl.record.RecordStore", lambda: known)
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params["training_id"] = "t-2"
    assert complete_attempts(context, "1") == ["12", "11", "10", "1"]
    context.params["training_id"] = "nothing"
    assert complete_attempts(context, "") == []


def test_names_of_metrics_are_those_that_this_machine_has_seen(known, monkeypatch):
    from dlctl.cli.metrics import complete_names
    from dlctl.series.merged import Entry

    entry = Entry.__new__(Entry)
    object.__setattr__(entry, "line", MetricsLine(step=1, values={"loss": 1.0, "lr": 0.1}))
    monkeypatch.setattr("dlctl.outputs.metrics.files.kept_metrics", lambda record: (0.0, [entry]))
    monkeypatch.setattr("dlctl.record.RecordStore", lambda: known)
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params["training_ids"] = ["t-1"]
    assert complete_names(context, "lo") == ["loss"]
    context.params["training_ids"] = ["nothing"]
    assert complete_names(context, "lo") == []
