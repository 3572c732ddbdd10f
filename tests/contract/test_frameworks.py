"""The promises of every framework's program: train.sh, the built-in loop, old plans' commands."""

import dataclasses
import json
import subprocess
import sys

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from learner.frameworks import COMMAND, LOOP, framework_of, prepare
from learner.frameworks.script import TrainScript

RECIPE = contract.Recipe("mine (folder)", "echo hello\n", signal="TERM", modules=["json"])
KNOWN = {"command": COMMAND, "script": TrainScript(RECIPE), "pytorch": LOOP, "torch": LOOP}


def prepare_in(plan, job_dir):
    """Write what an attempt's learners run, as the supervisor does."""
    (job_dir / contract.attempt_dir(3)).mkdir(parents=True)
    prepare(plan, job_dir, 3)


@pytest.fixture(params=KNOWN)
def kind(request):
    """The name of each framework in turn."""
    return request.param


@pytest.fixture
def plan(kind, tmp_path):
    """A plan whose learners run by this framework, in a job directory that has their file."""
    command, job = (None, "train.py") if "torch" in kind else ("echo hello", None)
    (tmp_path / contract.CODE).mkdir()
    (tmp_path / contract.CODE / "train.py").write_text("def build(arguments): ...\n")
    known = make_plan(job_dir=str(tmp_path))
    recipe = RECIPE if kind == "script" else None
    framework = contract.Framework(kind, None, command, job, {"lr": 0.1}, recipe)
    return dataclasses.replace(known, runtime_dir=str(tmp_path), framework=framework)


def test_the_plan_names_it(kind, plan):
    assert type(framework_of(plan)) is type(KNOWN[kind])
    assert KNOWN[kind].visible_gpus() >= 0
    upper = dataclasses.replace(plan.framework, name=plan.framework.name.upper())
    assert type(framework_of(dataclasses.replace(plan, framework=upper))) is type(KNOWN[kind])


def test_a_loop_trains_unless_the_node_has_the_framework_itself(plan, tmp_path, monkeypatch):
    recipe = dataclasses.replace(RECIPE, loop=True, loop_unless="fw-of-the-site")
    framework = contract.Framework("caffe", None, None, "solver.prototxt", recipe=recipe)
    caffe = dataclasses.replace(plan, framework=framework)
    assert framework_of(caffe) is LOOP
    (tmp_path / "fw-of-the-site").write_text("#!/bin/sh\n")
    (tmp_path / "fw-of-the-site").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert isinstance(framework_of(caffe), TrainScript)


def test_a_script_is_in_the_attempt_before_it_runs(kind, plan, tmp_path):
    prepare_in(plan, tmp_path)
    there = (tmp_path / contract.train_script(3)).exists()
    assert there == (kind == "script")
    if there:
        arguments = (tmp_path / contract.arguments_file(3)).read_text()
        assert json.loads(arguments) == {"lr": 0.1}


def test_a_missing_module_is_named_with_the_package_that_brings_it(plan, tmp_path):
    recipe = dataclasses.replace(RECIPE, modules=["no_such_module.x", "json"], install="no-such a")
    (problem,) = TrainScript(recipe).problems(plan, tmp_path)
    assert "lacks no_such_module.x" in problem
    assert "requirements: [no-such, a]" in problem


def test_it_starts_a_program_in_a_folder_that_is_there(kind, plan, tmp_path):
    argv = KNOWN[kind].argv(plan, tmp_path, 3)
    assert KNOWN[kind].folder(plan, tmp_path).is_dir()
    if KNOWN[kind].traits.in_shell:
        prepare_in(plan, tmp_path)
        assert subprocess.run(argv, capture_output=True, check=True).stdout == b"hello\n"


def test_a_loop_of_ours_gets_the_job_and_the_attempt(kind, plan, tmp_path):
    traits = KNOWN[kind].traits
    assert not (traits.in_shell and traits.is_our_loop)
    if traits.is_our_loop:
        argv = KNOWN[kind].argv(plan, tmp_path, 3)
        assert (argv[0], argv[-2:]) == (sys.executable, [str(tmp_path), "3"])


def test_a_problem_is_two_lines_what_was_seen_and_what_to_do(kind, plan, tmp_path):
    assert KNOWN[kind].problems(plan, tmp_path) == []
    (tmp_path / contract.CODE / "train.py").write_text("def build(:\n")
    problems = KNOWN[kind].problems(plan, tmp_path)
    assert bool(problems) == KNOWN[kind].traits.is_our_loop
    for problem in problems:
        assert len(problem.split("\n")) == 2


def test_only_a_command_may_import_user_files_before_dlctls(kind, plan):
    env = {"PYTHONPATH": f"{plan.runtime_dir}:/theirs", "PYTHONSAFEPATH": "1"}
    KNOWN[kind].adapt(env, plan)
    first = env["PYTHONPATH"].split(":")[0]
    assert (first == "/theirs") == KNOWN[kind].traits.in_shell


def test_a_job_whose_learners_train_alone_is_named(plan, tmp_path):
    framework = contract.Framework("sklearn", None, None, "train.py", recipe=RECIPE)
    several = dataclasses.replace(plan.resources, learners=2)
    two = dataclasses.replace(plan, framework=framework, resources=several)
    (tmp_path / contract.CODE / "train.py").write_text("import sklearn\n")
    assert "each of the 2 learners trains alone" in TrainScript(RECIPE).warning(two, tmp_path)
    (tmp_path / contract.CODE / "train.py").write_text("import os; os.environ['RANK']\n")
    assert TrainScript(RECIPE).warning(two, tmp_path) == ""
