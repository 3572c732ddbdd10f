"""What the hub reads of the model's log as it grows."""

from __future__ import annotations

import json

from dlctl.contract import search as names
from search.hub.__main__ import Progress

SPEC = names.Spec("test", [], names.Task("python"), "random", metric="loss")


def ask(number, lr):
    return {"event": "ask", "trials": [{"number": number, "point": {"lr": lr}}]}


def tell(number, loss):
    return {"event": "tell", "number": number, "time": 1.0, "seconds": 1.0, "outcome": "SUCCEEDED",
            "metric": loss}  # fmt: skip


def line(event):
    return json.dumps(event) + "\n"


def test_a_line_that_the_model_took_back_is_forgotten(tmp_path):
    """The hub had read the line before a sync failed, and then read on in the midst of another."""
    path = tmp_path / names.TRIALS
    path.parent.mkdir(parents=True)
    progress = Progress(tmp_path, SPEC)
    kept = line(ask(0, 0.5)) + line(ask(1, 0.25))
    path.write_text(kept + line(tell(1, 3.0)))
    assert [row["loss"] for row in progress.look()] == [3.0]
    path.write_text(kept + line(tell(0, 0.123456789)) + line(tell(1, 2.0)))
    assert [row["loss"] for row in progress.look()] == [0.123456789, 2.0]
    assert (progress.asked, progress.done, progress.best["value"]) == (2, 2, 0.123456789)
    with path.open("a") as file:
        file.write(line(ask(2, 1.0))[:-5])
    assert progress.look() == [] and progress.asked == 2
    with path.open("a") as file:
        file.write(line(ask(2, 1.0))[-5:])
    assert progress.look() == [] and progress.asked == 3


def test_a_damaged_line_is_left_to_the_model_which_ends_with_a_sentence(tmp_path):
    path = tmp_path / names.TRIALS
    path.parent.mkdir(parents=True)
    path.write_bytes(line(ask(0, 0.5)).encode() + b"\0\0\n" + line(ask(1, 0.5)).encode())
    progress = Progress(tmp_path, SPEC)
    assert progress.look() == [] and progress.asked == 2
