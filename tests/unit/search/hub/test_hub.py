"""The hub beside its processes, and what it reads of the model's log as it grows."""

from __future__ import annotations

import errno
import json

from made_search import events_of, lines_of

from dlctl.contract import search as names
from dlctl.contract.search import Spec, Task
from search.hub.__main__ import Hub, Progress


def test_a_full_disk_ends_no_search(tmp_path, monkeypatch):
    hub = Hub(tmp_path, Spec("s", [], Task("python"), "random"))
    hub._tell(now=True)
    told = tmp_path / "search/status.json"
    before = told.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dlctl.contract.write_whole", full)
    hub._tell(now=True)
    assert told.read_text() == before


def test_a_second_hub_tells_only_the_trials_that_the_first_has_not_told(
    tmp_path, monkeypatch, capsys
):
    spec = Spec("s", [], Task("python"), "random", metric="loss")
    folder = tmp_path / names.FOLDER
    folder.mkdir()
    events = [*events_of(6, 6, failed=0.0)]
    for attempt, ended in ((1, 4), (2, 6)):
        monkeypatch.setenv("RESULT_DIR", str(tmp_path / f"attempts/{attempt}/results"))
        monkeypatch.setenv("DLCTL_ATTEMPT", str(attempt))
        known = [each for each in events if each["event"] == "ask" or each["number"] < ended]
        (tmp_path / names.TRIALS).write_bytes(lines_of(known))
        hub = Hub(tmp_path, spec)
        hub._tell(now=True)
        said = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in said] == [
            f"step={step}" for step in ([1, 2, 3, 4] if attempt == 1 else [5, 6])
        ]


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
    assert (progress.proposed, progress.done, progress.best["value"]) == (2, 2, 0.123456789)
    with path.open("a") as file:
        file.write(line(ask(2, 1.0))[:-5])
    assert progress.look() == [] and progress.proposed == 2
    with path.open("a") as file:
        file.write(line(ask(2, 1.0))[-5:])
    assert progress.look() == [] and progress.proposed == 3


def test_a_damaged_line_is_left_to_the_model_which_ends_with_a_sentence(tmp_path):
    path = tmp_path / names.TRIALS
    path.parent.mkdir(parents=True)
    path.write_bytes(line(ask(0, 0.5)).encode() + b"\0\0\n" + line(ask(1, 0.5)).encode())
    progress = Progress(tmp_path, SPEC)
    assert progress.look() == [] and progress.proposed == 2
