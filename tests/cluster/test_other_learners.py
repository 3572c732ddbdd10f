"""Going on with another number of learners, on both sites: each attempt by its own plan."""

from __future__ import annotations

import json

from trainings import ON_THE_CLUSTER, count_of, submit, wait_for_state, write_counter

GOAL = 80


@ON_THE_CLUSTER
def test_two_learners_then_one_then_three(dlctl, site, wait_until):
    training_id = submit(dlctl, site, write_counter(dlctl.cwd, GOAL, learners=2))
    job_dir = site.job_dir(training_id)
    for learners, asked in ((2, None), (1, ["--learners", "1", "--memory", "600MiB"])):
        if asked:
            dlctl("resume", training_id, *asked, ok=True)
        last = learners - 1
        before = count_of(job_dir, last)
        wait_until(lambda n=last, before=before: count_of(job_dir, n) > before + 1, 90)
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
