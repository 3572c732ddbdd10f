"""A training is watched through a halt, a resume and a lost node: one list, one unbroken curve."""

from __future__ import annotations

import json
import re
import time
from itertools import groupby

from canvas import PAINTED
from open_views import dashboard_url, page_rows, picture_of, steps_of, watched
from trainings import submit, wait_for_file, wait_for_state, write_training
from waiting import wait_until

from dlctl import contract
from dlctl.contract import Status

TRAIN = """\
import os
import time
import torch

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 2400
    def __getitem__(self, index):
        return torch.ones(4) * (index % 7), torch.tensor(index % 2)

class Slow(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        Slow.calls += 1
        # The first attempt can't end before it is halted, nor the second before its node is lost.
        is_held = Slow.calls > {"1": 90, "2": 40}.get(os.environ["DLCTL_ATTEMPT"], 10_000)
        time.sleep(1.0 if is_held else 0.02)
        return super().forward(x)

def build(arguments):
    model = Slow(4, 2)
    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loss": torch.nn.functional.cross_entropy,
        "train": Points(),
        "validation": torch.utils.data.Subset(Points(), range(60)),
    }
"""
STEPS = 4 * 80
"""Batches of 30 in four epochs."""


def test_a_curve_is_unbroken_through_a_halt_a_resume_and_a_lost_node(
    dlctl, cluster, cluster_site, visit
):
    """The page and the terminal are open from the beginning to the end, the list from a resume."""
    folder = write_training(
        dlctl.cwd / "job", {"job": "train.py"}, {"train.py": TRAIN},
        learners=2, nodes=2, training={"batch_size": 30, "epochs": 4, "log_every_steps": 1},
        checkpoint={"every": "20 steps"}, retry={"backoff": "1s"},
    )  # fmt: skip
    training_id = submit(dlctl, cluster_site, folder)
    job = cluster_site.root / "jobs" / training_id
    with dashboard_url(dlctl, training_id) as url, watched(dlctl, training_id) as terminal:
        page = visit(url)
        state = page.locator(".head .state")
        wait_until(lambda: _steps(job, 1) > 60, what="steps of attempt 1")
        terminal.wait_for("TRAINING ·")
        dlctl("halt", training_id, ok=True)
        wait_for_state(dlctl, training_id, "HALTED")
        state.filter(has_text="HALTED").wait_for()
        _wait_for_steps(page, _newest_step(job, 1))
        picture_of(page, "1-halted")
        terminal.wait_for("HALTED ·")
        dlctl("resume", training_id, ok=True)
        followed = dlctl.start("metrics", training_id, "--follow", "--json")
        try:
            wait_until(lambda: _steps(job, 2) > 30, what="steps of attempt 2")
            cluster.node_kill(_node(job, 2, rank=1))
            state.filter(has_text="TRAINING").wait_for()
            picture_of(page, "2-second-attempt")
            wait_until(lambda: _steps(job, 3) > 0, 240, what="a step of attempt 3")
            state.filter(has_text="TRAINING").wait_for()
            picture_of(page, "3-node-lost")
            wait_for_file(job / contract.verdict_file(3), timeout_s=240)
            wait_for_state(dlctl, training_id, "COMPLETED")
            records = _check(dlctl, training_id)
            lines, trouble = followed.communicate(timeout=120)
            assert followed.returncode == 0, trouble
            told = [json.loads(line) for line in lines.splitlines()]
        finally:
            followed.kill()
            followed.communicate()
        assert {r["step"] for r in told if "loss" in r["values"]} == set(range(1, STEPS + 1))
        assert [r["attempt"] for r in told if r["kind"] == "begin"] == [1, 2, 3]
        _check_page(page, [r["kind"] for r in records if r["kind"] != "scalar"])
        terminal.wait_for("COMPLETED ·")
        _check_terminal(terminal.drawn)
        page.close()  # it would complain of a server that has ended


def _check_page(page, events):
    page.locator(".head .state", has_text="COMPLETED").wait_for()
    _wait_for_steps(page, STEPS)
    picture_of(page, "4-completed")
    assert steps_of(page_rows(page)) == [float(step) for step in range(1, STEPS + 1)]
    painted = page.evaluate(PAINTED)
    assert painted["last"] and painted["gap"] <= 3, "the curve as it is painted has a hole"
    assert painted["bands"] == 1, "of three attempts, the second one is tinted"
    page.get_by_role("tab", name="Attempts").click()
    rows = page.get_by_role("tabpanel").locator("tbody tr").all_inner_texts()
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    ends = [row.split("\t")[3] for row in rows]
    assert ends == ["HALTED", "FAILED", "COMPLETED"]
    page.get_by_role("tab", name="Events").click()
    page.get_by_role("cell", name="begin", exact=True).first.wait_for()
    kinds = page.get_by_role("tabpanel").locator("tbody tr td:nth-child(4)").all_inner_texts()
    assert kinds.count("begin") == kinds.count("verdict") == 3
    assert sorted(kind for kind in kinds if kind in events) == sorted(events)


def _check_terminal(drawn):
    states = re.findall(r"(TRAINING|HALTED|COMPLETED) ·", drawn)
    assert [state for state, _ in groupby(states)][-4:] == [
        "TRAINING", "HALTED", "TRAINING", "COMPLETED",
    ]  # fmt: skip
    assert f"COMPLETED · attempt 3 · epoch 4 of 4 · step {STEPS}" in drawn


def _wait_for_steps(page, newest):
    """Wait until the page draws all steps; it never draws one twice, and leaves none out."""
    end = time.monotonic() + 90
    while (steps := steps_of(page_rows(page)))[-1:] != [float(newest)]:
        assert steps == [float(step) for step in range(1, len(steps) + 1)]
        assert time.monotonic() < end, f"step {newest} did not come: {steps[-3:]}"
        page.wait_for_timeout(200)
    assert steps == [float(step) for step in range(1, newest + 1)]


def _newest_step(job, attempt):
    lines = (job / contract.metrics_file(attempt, 0)).read_text().splitlines()
    return max(json.loads(line)["step"] for line in lines if '"loss"' in line)


def _node(job, attempt, rank):
    status = contract.read_record(Status, job / contract.status_file(attempt, "learner", rank))
    return int(status.host.removeprefix("n"))


def _steps(job, attempt):
    path = job / contract.metrics_file(attempt, 0)
    return path.read_text().count('"loss"') if path.exists() else 0


def _check(dlctl, training_id):
    text = dlctl("metrics", training_id, "--json", ok=True).stdout
    records = [json.loads(line) for line in text.splitlines()]
    loop = [r for r in records if r["source"] == "loop"]
    trained = [r for r in loop if r["kind"] == "scalar" and r["group"] != "validation"]
    losses = [r["step"] for r in trained if "loss" in r["values"]]
    assert losses == list(range(1, STEPS + 1))
    begins = [(r["attempt"], r["step"]) for r in loop if r["kind"] == "begin"]
    assert [attempt for attempt, _ in begins] == [1, 2, 3]
    assert begins[0][1] == 0 < begins[1][1] < begins[2][1]
    ends = [r["event"].partition(":")[0] for r in records if r["kind"] == "verdict"]
    assert (ends[0], ends[-1]) == ("HALTED", "COMPLETED")
    picture = dlctl("watch", training_id, "--once", ok=True, env={"COLUMNS": "80"}).stdout
    assert "COMPLETED" in picture and "✓ checkpoint" in picture
    assert max(map(len, picture.splitlines())) <= 80
    return records
