"""From search.yml to the command line of a trial."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from dlctl import contract
from dlctl.contract.search import TRIAL_PLAN, trial_plan
from dlctl.errors import ManifestError
from dlctl.search import start
from dlctl.search.load import load_search
from dlctl.sites.files import load_site
from learner.frameworks import framework_of

SEARCH = """\
name: mine
framework: {name: sklearn, job: train.py, arguments: {fixed: [1, 2], lr: 0.5}}
training: {epochs: 2}
learners: 1
memory: 1GiB
time: 1m
space:
  framework.arguments.lr: {float: [1e-4, 1e-1], log: true}
  framework.arguments.note: {choice: ["it's $HOME", true, false, null, [a, "b c"], {k: 1}]}
  env.MODE: {choice: [fast, 3]}
metric: {name: loss}
budget: {trials: 8}
"""


@pytest.fixture
def decided(tmp_path):
    def of(text):
        path = tmp_path / "search.yml"
        path.write_text(text)
        (tmp_path / "train.py").write_text("")
        session = SimpleNamespace(site=load_site("local"))
        files = start._decided(session, load_search(path), "mine-1")
        return contract.from_json(contract.Plan, files[TRIAL_PLAN])

    return of


@pytest.mark.parametrize(("note", "words"), [
    ("it's $HOME", ["--note", "it's $HOME"]), (True, ["--note"]), (False, []), (None, []),
    (["a", "b c"], ["--note", "a", "b c"]), ({"k": 1}, ["--note", '{"k": 1}']),
])  # fmt: skip
def test_the_program_gets_the_values_of_its_trial(decided, tmp_path, note, words):
    """All kinds of values come through the shell as they are."""
    point = {"framework.arguments.lr": 1e-3, "framework.arguments.note": note, "env.MODE": 3}
    job = tmp_path / "trial"
    (job / contract.attempt_dir(1)).mkdir(parents=True)
    plan = trial_plan(decided(SEARCH), point, 0, str(job))
    assert plan.env == {"MODE": "3"}
    program = framework_of(plan)
    program.prepare(plan, job, 1)
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o700)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    program.adapt(env, plan)
    done = subprocess.run(program.argv(plan, job, 1), env=env, stdout=subprocess.PIPE, check=True)
    given = ["train.py", "--fixed", "1", "2", "--lr", "0.001", *words]
    assert done.stdout.decode().splitlines() == given
    arguments = json.loads((job / contract.arguments_file(1)).read_text())
    assert arguments == {"fixed": [1, 2], "lr": 1e-3, "note": note}


def test_a_trial_that_goes_on_from_others_trains_as_much_again(decided):
    plan = decided(SEARCH)
    first, third = trial_plan(plan, {}, 0, "a"), trial_plan(plan, {}, 2, "b")
    assert (first.training.epochs, first.training.settings_of_build) == (2, False)
    assert (third.training.epochs, third.training.settings_of_build) == (6, True)
    assert (first.job_dir, third.job_dir) == ("a", "b")


def test_a_value_that_no_training_can_have_is_refused(decided):
    text = SEARCH.replace("name: sklearn", "name: pytorch").replace(
        "env.MODE: {choice: [fast, 3]}", "training.batch_size: {float: [1, 64]}"
    )
    with pytest.raises(ManifestError, match=r"batch_size: a training can't have 1\.0 there"):
        decided(text)
