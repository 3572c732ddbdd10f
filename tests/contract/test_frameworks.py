"""What holds for every framework: the built-in loops, and a command of the user's own."""

import dataclasses
import sys

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract.frameworks import LOOP_FRAMEWORKS
from learner.errors import UserFault
from learner.frameworks import COMMAND, LOOPS, framework_of

KNOWN = {"command": COMMAND, **LOOPS}


@pytest.fixture(params=KNOWN)
def kind(request):
    """The name of each framework in turn."""
    return request.param


@pytest.fixture
def plan(kind, tmp_path):
    """A plan whose learners run by this framework, in a job directory that has their file."""
    command, job = ("echo hello", None) if kind == "command" else (None, "train.py")
    (tmp_path / contract.CODE).mkdir()
    (tmp_path / contract.CODE / "train.py").write_text("def build(arguments): ...\n")
    known = make_plan(job_dir=str(tmp_path))
    name = "anything" if kind == "command" else kind
    return dataclasses.replace(
        known, runtime_dir=str(tmp_path), framework=contract.Framework(name, None, command, job)
    )


def test_both_sides_know_the_same_loops():
    assert set(LOOPS) == set(LOOP_FRAMEWORKS)


def test_the_plan_names_it(kind, plan):
    assert framework_of(plan) is KNOWN[kind]
    upper = dataclasses.replace(plan.framework, name=plan.framework.name.upper())
    assert framework_of(dataclasses.replace(plan, framework=upper)) is KNOWN[kind]


def test_a_loop_that_this_version_lacks_is_one_sentence(plan):
    unknown = contract.Framework("caffe", None, None, "solver.prototxt")
    with pytest.raises(UserFault, match="'caffe' has no built-in loop"):
        framework_of(dataclasses.replace(plan, framework=unknown))


def test_it_starts_a_program_in_a_folder_that_is_there(kind, plan, tmp_path):
    argv = KNOWN[kind].argv(plan, tmp_path, 3)
    assert argv and all(isinstance(word, str) for word in argv)
    assert KNOWN[kind].folder(plan, tmp_path).is_dir()
    assert ("echo hello" in argv[-1]) == (kind == "command")


def test_a_loop_of_ours_gets_the_job_and_the_attempt(kind, plan, tmp_path):
    if KNOWN[kind].traits.is_our_loop:
        argv = KNOWN[kind].argv(plan, tmp_path, 3)
        assert (argv[0], argv[-2:]) == (sys.executable, [str(tmp_path), "3"])


def test_a_shell_is_no_loop_of_ours(kind):
    traits = KNOWN[kind].traits
    assert not (traits.in_shell and traits.is_our_loop)


def test_nothing_is_wrong_with_a_plain_job(kind, plan, tmp_path):
    assert KNOWN[kind].problems(plan, tmp_path) == []


def test_a_problem_is_two_lines_what_was_seen_and_what_to_do(kind, plan, tmp_path):
    (tmp_path / contract.CODE / "train.py").write_text("def build(:\n")
    problems = KNOWN[kind].problems(plan, tmp_path)
    assert bool(problems) == KNOWN[kind].traits.is_our_loop
    for problem in problems:
        assert len(problem.split("\n")) == 2


def test_only_a_command_may_import_user_files_before_dlctls(kind, plan):
    env = {"PYTHONPATH": f"{plan.runtime_dir}:/theirs", "PYTHONSAFEPATH": "1"}
    KNOWN[kind].adapt(env, plan)
    first = env["PYTHONPATH"].split(":")[0]
    assert (first == "/theirs") == (kind == "command")


def test_a_framework_counts_gpus(kind):
    assert KNOWN[kind].visible_gpus() >= 0
