"""A module of a job's runtime at a site, here through the local transport."""

import dataclasses
import json
import shutil
import subprocess
import sys

import pytest
from repository import REPOSITORY
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.errors import RemoteCommandError, ResultsError
from dlctl.lifecycle import remote_module
from dlctl.lifecycle.session import Session
from dlctl.scheduler.local import LocalQueue
from dlctl.scheduler.slurm import Slurm
from dlctl.transport.local import LocalTransport

PROBE = """\
import os, subprocess, sys
from dlctl.contract.programs.answers import run
from learner.errors import UserFault

def main(arguments):
    print("hello from the user's code")
    subprocess.run(["echo", "and from a child"])
    print("progress 1", file=sys.stderr, flush=True)
    if arguments[0] == "fault":
        raise UserFault("the model is of another kind", hint="take another")
    if arguments[0] == "crash":
        raise ValueError("no such thing")
    if arguments[0] == "exit":
        print("Killed", file=sys.stderr)
        os._exit(137)
    return {"arguments": arguments, "cwd": os.getcwd(), "path": sys.path, "x": os.environ.get("X"),
            "mark": os.environ.get("DLCTL_ANSWER_MARK")}

sys.exit(run(main))
"""


CONTRACT = REPOSITORY / "dlctl/contract"


@pytest.fixture
def runtime(tmp_path):
    """A runtime with one more module, in a folder that needs quotes."""
    folder = tmp_path / "it's a run$time"
    for name in ("learner/__init__.py", "learner/errors.py",
                 "learner/system/signals.py", "dlctl/__init__.py",
                 *(str(p.relative_to(REPOSITORY)) for p in CONTRACT.rglob("*.py"))):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    (folder / "learner/probe.py").write_text(PROBE)
    return folder


def plan_for(runtime, **environment):
    plan = make_plan(runtime_dir=str(runtime))
    return dataclasses.replace(plan, environment=contract.Environment(
        **({"python": sys.executable} | environment)))  # fmt: skip


def ask(plan, *arguments, module="learner.probe", **how):
    session = Session(None, LocalTransport(), LocalQueue())
    return remote_module.run_module(session, plan, module, arguments, **how)


def test_the_answer_comes_alone_and_the_rest_is_progress(runtime):
    lines = []
    plan = plan_for(runtime, setup=["echo a banner", "X='1 2'"], variables={"X": "it's $HOME"})
    answer = ask(plan, "a b", "it's", "$HOME", "*", on_line=lines.append)
    assert answer["arguments"] == ["a b", "it's", "$HOME", "*"]
    assert answer["cwd"] == str(runtime)
    assert answer["x"] == "it's $HOME"
    assert answer["mark"] is None, "the user's code must not see it"
    assert "" not in answer["path"] and "." not in answer["path"]
    assert set(lines) == {
        "a banner", "hello from the user's code", "and from a child", "progress 1",
    }  # fmt: skip


def test_a_container_stands_before_python(runtime):
    plan = plan_for(runtime, container=["env", "X=in it's container"])
    assert ask(plan, "x", on_node=True)["x"] == "in it's container"


def test_by_hand_the_answer_is_plain_json(runtime):
    call = [sys.executable, "-m", "learner.probe", "x"]
    done = subprocess.run(call, cwd=runtime, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["arguments"] == ["x"]
    assert "hello from the user's code" in done.stderr
    call[-1] = "fault"
    done = subprocess.run(call, cwd=runtime, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: the model is of another kind" in done.stderr


def test_slurm_runs_it_where_the_plan_may(runtime):
    plan = make_plan(time_s=3600, cpus=2)
    plan = dataclasses.replace(plan, batch=contract.Batch(
        "slurm", "gpu", "it's", extra=["--reservation=r 1", "--output=x"]))  # fmt: skip
    script = Slurm().node_script(plan, "echo 'hello'")
    words = script.splitlines()[-1]
    assert words.startswith("exec srun ")
    for option in ("--ntasks=1", "--cpus-per-task=2", "--partition=gpu", "--time=01:00:00",
                   "'--account=it'\"'\"'s'", "'--reservation=r 1'"):  # fmt: skip
        assert option in words, words
    assert "--output" not in words


@pytest.mark.parametrize(("argument", "environment", "error", "said", "hint"), [
    ("fault", {}, ResultsError, "^the model is of another kind", "take another"),
    ("crash", {}, ResultsError, "ValueError: no such thing", ""),
    ("exit", {}, RemoteCommandError, "exit code 137 and no answer: Killed", "--on-node"),
    ("x", {"python": "/nowhere/python"}, RemoteCommandError,
     "no Python 3.10 or newer at /nowhere/python", "setup"),
    ("x", {"modules": ["torch/9"]}, RemoteCommandError, "torch/9", ""),
])  # fmt: skip
def test_what_goes_wrong_there_is_one_sentence(runtime, argument, environment, error, said, hint):
    lines = []
    with pytest.raises(error, match=said) as told:
        ask(plan_for(runtime, **environment), argument, on_line=lines.append)
    assert hint in told.value.hint
    assert any(line.startswith("Traceback") for line in lines) == (argument == "crash")


def test_a_runtime_that_is_gone_or_lacks_the_module_is_named(runtime):
    with pytest.raises(RemoteCommandError, match="No module named learner.absent") as told:
        ask(plan_for(runtime), module="learner.absent")
    assert "another version of dlctl" in told.value.hint
    shutil.rmtree(runtime)
    with pytest.raises(RemoteCommandError, match="is gone"):
        ask(plan_for(runtime), "x")
