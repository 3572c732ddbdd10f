"""Going on with another number of learners, on both sites: each attempt by its own plan."""

from __future__ import annotations

import json

from trainings import COUNTER, ON_THE_CLUSTER, submit, wait_for_state, write_training

GOAL = 80


@ON_THE_CLUSTER
def test_two_learners_then_one_then_three(dlctl, site, wait_until):
    folder = write_training(
        dlctl.cwd, {"command": f"exec python3 counter.py {GOAL}"}, {"counter.py": COUNTER},
        learners=2,
    )  # fmt: skip
    training_id = submit(dlctl, site, folder)
    counts = site.job_dir(training_id) / "checkpoints"
    for learners, asked in ((2, None), (1, ["--learners", "1", "--memory", "600MiB"])):
        if asked:
            dlctl("resume", training_id, *asked, ok=True)
        last = counts / f"count-{learners - 1}"
        before = int(last.read_text()) if last.exists() else 0
        wait_until(lambda last=last, before=before: last.exists()
                   and int(last.read_text() or 0) > before + 1, 90)  # fmt: skip
        dlctl("halt", training_id, ok=True)
        wait_for_state(dlctl, wait_until, training_id, "HALTED")
    done = dlctl("resume", training_id, "--learners", "3", "--follow")
    assert done.exit_code == 0, (done.stdout, done.stderr)
    assert f"learner-2 | done at {GOAL}" in done.stdout
    shown = dlctl("show", training_id, "--json", ok=True).json
    told = [(each["attempt"], each["resources"]["learners"]) for each in shown["attempts"]]
    assert told == [(1, 2), (2, 1), (3, 3)]
    assert len(shown["learners"]) == 3
    assert shown["plan"]["resources"]["memory_bytes_per_learner"] == 600 << 20
    folder = dlctl("fetch", "results", training_id, "--json", ok=True).json["folder"]
    plan = json.loads((dlctl.cwd / folder / "plan.json").read_text())
    assert plan["resources"]["learners"] == 3
