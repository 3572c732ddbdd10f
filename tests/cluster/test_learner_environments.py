"""A site's environments, with real programs on nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from trainings import (
    COUNTER,
    ON_THE_CLUSTER,
    change_site,
    complete,
    count_of,
    halt,
    run,
    submit,
    write_training,
)
from waiting import wait_until

from dlctl import contract

NAMESPACE = "unshare --user --map-root-user --mount"
"""A container without an image: its programs see another user and mounts of their own."""


def make_python(site) -> Path:
    """Make an environment with one module that no other has, where the nodes see it; return it."""
    place = site.root.parent / f"{site.root.name}-environment"
    # Its interpreter is what the nodes' virtual environment was made from.
    base = os.path.realpath(sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", place], check=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "only_here.py").write_text("ANSWER = 42\n")
    return place


def test_an_environment_that_does_not_work_is_said_before_the_training(dlctl, local_site, xdg):
    changed = change_site(local_site, xdg.config, environments={
        "broken": {"frameworks": {"jax": "1"}, "python": "/usr/bin/python3",
                   "container": ["/absent/apptainer", "exec", "x.sif"]},
    })  # fmt: skip
    folder = write_training(dlctl.cwd, {"name": "jax", "command": "python a.py"}, {"a.py": ""})
    done, _ = run(dlctl, changed, folder)
    assert done.exit_code != 0
    assert "The environment 'broken' can't be used on" in done.stdout + done.stderr
    assert "/absent/apptainer" in done.stdout + done.stderr


def test_a_module_that_an_environment_lacks_is_named(dlctl, local_site, xdg):
    place = make_python(local_site)
    changed = change_site(local_site, xdg.config, environments={
        "mine": {"frameworks": {"jax": "1"}, "python": str(place / "bin/python")},
    })  # fmt: skip
    folder = write_training(dlctl.cwd, {"name": "jax", "job": "a.py"}, {"a.py": ""})
    done, _ = run(dlctl, changed, folder)
    assert "The environment 'mine' lacks jax, which jax needs" in done.stdout + done.stderr


@ON_THE_CLUSTER
def test_a_learner_in_a_container_is_halted_and_goes_on(dlctl, site, xdg):
    """Its shell, its trap and its exit code pass through the container's programs.

    The nodes' own Python has no `only_here`, and this one has none of dlctl's packages.
    """
    place = make_python(site)
    changed = change_site(site, xdg.config, environments={
        "other": {"frameworks": {"custom": "1"}, "python": "/absent/bin/python"},
        "box": {"frameworks": {"custom": "2.5"}, "container": NAMESPACE,
                "python": str(place / "bin/python"), "setup": ["export GREETING='hello there'"],
                "variables": {"TWO": "2"}},
    })  # fmt: skip
    show = 'import os, only_here, sys; print(only_here.ANSWER, sys.prefix, os.environ["GREETING"]'
    command = f"""echo user $(id -u)
python -c '{show}, os.environ["TWO"])'; exec python count.py 40"""
    framework = {"name": "custom", "version": "2.5.1-py3", "command": command}
    folder = write_training(dlctl.cwd, framework, {"count.py": COUNTER})
    training_id = submit(dlctl, changed, folder)
    wait_until(lambda: count_of(site.job_dir(training_id)) > 3, 90)
    known = halt(dlctl, training_id)
    assert known["reason"] == "Halted on request."
    count = count_of(site.job_dir(training_id))
    assert f"saved {count}\n" in dlctl("logs", training_id, ok=True).stdout
    done = dlctl("resume", training_id, "--follow", ok=True)
    assert "learner-0 | user 0" in done.stdout
    assert f"learner-0 | 42 {place} hello there 2" in done.stdout
    assert f"learner-0 | begins at {count}\n" in done.stdout
    assert "learner-0 | done at 40" in done.stdout


def test_all_learners_of_a_node_see_its_gpus_and_take_their_own_by_local_rank(dlctl, cluster_site):
    """The table of docs/own-script.md."""
    say = 'echo "$LOCAL_RANK of $LOCAL_WORLD_SIZE sees $CUDA_VISIBLE_DEVICES" >"$RESULT_DIR/$RANK"'
    folder = write_training(dlctl.cwd, {"command": say}, learners=4, learners_per_node=2, gpus=1)
    results = cluster_site.job_dir(complete(dlctl, cluster_site, folder)) / contract.RESULTS
    found = [(results / str(rank)).read_text() for rank in range(4)]
    assert found == [f"{rank} of 2 sees 0,1\n" for rank in (0, 1, 0, 1)]
