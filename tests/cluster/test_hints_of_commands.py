"""The command of each hint of a command, taken out of what is printed, is run, and works."""

from __future__ import annotations

import os
import pprint
import shutil
import sys
from fnmatch import fnmatch
from functools import partial
from hashlib import sha256
from pathlib import Path

from followed_hints import (
    ASKS,
    DAMAGED,
    ENDED,
    FILLED,
    GONE,
    LOOKING,
    LOST,
    MANY,
    MODELS,
    RUNNING,
    SET_UP,
    SITES,
    SUMLESS,
    TOPICS,
)
from hints import commands_in
from trainings import run, submit, wait_for_state, write_training
from waiting import wait_until
from wheels import make_node_wheels

from dlctl import contract

FAR = """\
transport: {kind: ssh, host: far}
root: /r
scheduler: {kind: local}
launcher: {kind: mpirun}
"""


BARE = """\
transport: {{kind: local}}
root: {root}
scheduler: {{kind: local}}
launcher: {{kind: mpirun}}
environment:
  pip: [--no-index, --find-links, {wheels}]
"""
ENDLESS = "trap 'exit 0' USR2; while :; do sleep 0.1; done"


def works(dlctl, typed):
    return not dlctl(*typed.split()).exit_code


def follow(dlctl, rows, **ids):
    """Type each row's command, and then what its answer names; return what went wrong."""
    wrong, filled = {}, FILLED | {"ID": ids.get("done", "")}
    for row in rows:
        typed = row.typed.format(**ids)
        done = dlctl(*typed.split())
        text = f"{done.stdout}\n{done.stderr}".partition("Error: Invalid value: ")
        text = text[2] or text[0]  # without the command's usage
        found = list(dict.fromkeys(command for command, _ in commands_in(text)))
        meant = [each.format(**ids) for each in row.commands]
        if [*map(fnmatch, found, meant)] != [True] * max(len(found), len(meant)):
            wrong[typed] = (found, text)
            continue
        for each in found:
            words = [filled.get(word.partition("@")[0], word) for word in each.split()]
            words = [word.replace("@N", "@2") for word in words]
            words += ["--yes"] if each.startswith(ASKS) else []
            end = dlctl(*" ".join(words).split())
            if end.exit_code:
                wrong[each] = (end.exit_code, end.stdout[-300:], end.stderr[-600:])
        if row.is_over and not wrong:
            wait_until(partial(works, dlctl, typed), 60, what=typed)
    return wrong


def assert_right(wrong):
    assert wrong == {}, pprint.pformat(wrong, width=180)


def test_what_commands_say_of_trainings_and_sites_can_be_followed(dlctl, local_site, xdg):
    (xdg.config / "dlctl/sites").mkdir(parents=True, exist_ok=True)
    (xdg.config / "dlctl/sites/far.yml").write_text(FAR)
    saves = "echo 1 | tee $RESULT_DIR/model >$CHECKPOINT_DIR/best"
    folder = write_training(dlctl.cwd / "t", {"command": saves}, {"a.py": "1"})
    _, done = run(dlctl, local_site, folder)
    bad = write_training(dlctl.cwd / "bad", {"command": "echo no licence; exit 3"}, retries=0)
    _, failed = run(dlctl, local_site, bad)
    ids = {"done": done, "failed": failed, "python": sys.executable}
    assert_right(follow(dlctl, SITES, **ids))
    made = dlctl("models", "create", "t", "--site", "here", "--json", ok=True).json
    assert_right(follow(dlctl, LOOKING, elsewhere=made["model_id"], **ids))
    job_dir = local_site.job_dir(failed)
    wait_for_state(dlctl, failed, "FAILED")  # again: a hint has resumed it
    dry = ("prune", "local", "--older-than", "1s", "--dry-run")
    wait_until(lambda: "nothing on local" not in dlctl(*dry).stderr, 30, what="its age")
    assert_right(follow(dlctl, ENDED, **ids))
    (job_dir / "results/m").write_text("1")
    for lost in (contract.manifest_file, contract.plan_file, contract.script_file):
        for attempt in (1, 2):
            (job_dir / lost(attempt)).unlink()
    assert_right(follow(dlctl, LOST, **ids))
    wait_for_state(dlctl, failed, "FAILED")
    shutil.rmtree(job_dir)
    assert_right(follow(dlctl, GONE, **ids))
    for topic in TOPICS.values():
        dlctl(*topic.split(), ok=True)


def test_a_site_without_a_python_gets_one_by_the_command_that_is_printed(dlctl, xdg, tmp_path):
    (wheels := tmp_path / "wheels").mkdir()
    make_node_wheels(wheels)
    (xdg.config / "dlctl/sites").mkdir(parents=True, exist_ok=True)
    text = BARE.format(root=tmp_path / "root", wheels=wheels)
    (xdg.config / "dlctl/sites/bare.yml").write_text(text)
    dlctl.env |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}
    write_training(dlctl.cwd / "t", {"command": "true"})
    assert_right(follow(dlctl, SET_UP))


def test_what_commands_say_of_a_running_training_can_be_followed(dlctl, local_site):
    running = submit(dlctl, local_site, write_training(dlctl.cwd / "r", {"command": ENDLESS}))
    wait_for_state(dlctl, running, "TRAINING")
    other = submit(dlctl, local_site, dlctl.cwd / "r")
    assert_right(follow(dlctl, RUNNING, running=running, other=other))
    wait_for_state(dlctl, running, "HALTED")


def test_what_commands_say_of_models_and_many_trainings_can_be_followed(dlctl, local_site):
    for folder in (dlctl.cwd, dlctl.cwd / "t"):
        write_training(folder, {"command": "echo 1 >$RESULT_DIR/m"}, {"a.py": "1"}, name="t")
    assert_right(follow(dlctl, [*MODELS[:2], *MANY]))
    for number in range(31):
        (dlctl.cwd / f"t/more{number}.pt").write_text(str(number))
    (model,) = (each["model_id"] for each in dlctl("models", "list", "--json", ok=True).json)
    dlctl("models", "update", model, "t", ok=True)
    dlctl("models", "update", f"{model}@1", "--alias", "best", ok=True)
    assert_right(follow(dlctl, MODELS[2:], model=model))
    model = dlctl("models", "create", "t", "--json", ok=True).json["model_id"]
    weights = {"command": "true", "arguments": {"weights": f"model:{model}@1/more0.pt"}}
    write_training(dlctl.cwd, weights).joinpath("manifest.yml").rename(dlctl.cwd / "weights.yml")
    for row in DAMAGED:
        Path(contract.blob_path(str(local_site.root), sha256(b"0").hexdigest())).unlink()
        assert_right(follow(dlctl, [row], model=model))
    (programs := dlctl.cwd.parent / "bin").mkdir()
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("sha256sum", "shasum"):
            (programs / program.name).symlink_to(program)
    dlctl.env["PATH"] = str(programs)
    assert_right(follow(dlctl, SUMLESS, model=model))
