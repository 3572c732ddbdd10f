"""What programs measure in any of three ways is the same in the list, the answers and the table."""

from __future__ import annotations

import csv
import io
import re

import pytest
from repository import REPOSITORY
from trainings import complete, write_training

REPORTS = """\
import json, os, pathlib, time
path = pathlib.Path(os.environ["DLCTL_PROGRESS_FILE"])
for step in range(1, 31):
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"done": step / 30, "step": step, "metrics": {"loss": 3.0 / step}}))
    part.replace(path)
    time.sleep(0.1)
"""
LOGS = """\
from learner import ddl
for step in [*range(2000), *range(1000, 1500)]:
    ddl.log(step, {f"n{n}": step + n / 8 for n in range(10)}, loss=1 + 1 / (1 + step) + 1e-12)
"""
EVENTS = """\
import os, pathlib
from event_files import beginning, event, scalar
folder = pathlib.Path(os.environ["LOG_DIR"])
with (folder / "events.out.tfevents.1").open("wb") as file:
    file.write(beginning())
    for step in range(2000):
        for n in range(10):
            file.write(event(step, scalar(f"n{n}", step + n / 8)))
        file.write(event(step, scalar("loss", 1 + 1 / (1 + step))))
"""
WRITER = (REPOSITORY / "tests/support/event_files.py").read_text()


@pytest.mark.parametrize(
    ("program", "listed"), [(REPORTS, True), (LOGS, True), (EVENTS, False)],
    ids=["reports", "logs", "events"],
)  # fmt: skip
def test_faces_agree_on_a_program(dlctl, site, tmp_path, program, listed):
    files = {"train.py": program, "event_files.py": WRITER}
    folder = write_training(
        tmp_path / "job", {"command": "exec python3 train.py"}, files,
        **({} if listed else {"evaluation_metrics": {"type": "tensorboard"}}),
    )  # fmt: skip
    training_id = complete(dlctl, site, folder)
    told = dlctl("metrics", training_id, "--names", "loss", "--csv", ok=True).stdout
    points = [(int(r["step"]), float(r["value"])) for r in csv.DictReader(io.StringIO(told))]
    (last, newest), (best_step, best) = points[-1], min(points, key=lambda point: point[1])
    if program is not REPORTS:
        assert [step for step, _ in points] == list(range(1500 if listed else 2000))
    (row,) = dlctl("list", "--json", ok=True).json
    if listed:
        assert (row["step"], row["loss"]) == (last, newest)
    shown = dlctl("show", training_id, "--json", ok=True).json
    evidence = next(a["evidence"] for a in shown["answers"] if a["key"] == "guessing")
    assert (evidence["guess"], evidence["best_step"], evidence["best"]) == (
        points[0][1], best_step, best,
    )  # fmt: skip
    table = dlctl("metrics", training_id, ok=True).stdout
    (cells,) = (re.split(r"\s{2,}", x) for x in table.splitlines() if x.startswith("loss "))
    assert cells[1:] == [f"{newest:.4g}", f"{best:.4g}", f"{best_step:,}", f"{len(points):,}",
                         f"{points[0][0]} to {last:,}"]  # fmt: skip
    picture = dlctl("watch", training_id, "--once", ok=True).stdout
    assert f"{newest:.4g} (best {best:.4g} at {best_step:,})" in picture
