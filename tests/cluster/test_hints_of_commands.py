"""The command of each hint of a command, taken out of what is printed, is run, and works."""

from __future__ import annotations

import pprint
import sys
from fnmatch import fnmatch
from functools import partial

from followed_hints import ASKS, FILLED, LOOKING, MANY, MODELS, RUNNING, SITES
from hints import commands_in
from trainings import run, submit, wait_for_state, write_training
from waiting import wait_until

FAR = """\
transport: {kind: ssh, host: far}
root: /r
scheduler: {kind: local}
launcher: {kind: mpirun}
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
            end = dlctl(*words)
            if end.exit_code:
                wrong[each] = (end.exit_code, end.stdout[-300:], end.stderr[-600:])
        if row.is_over:
            wait_until(partial(works, dlctl, typed), 60, what=typed)
    return wrong


def assert_right(wrong):
    assert wrong == {}, pprint.pformat(wrong, width=180)


def test_what_commands_say_of_trainings_and_sites_can_be_followed(dlctl, local_site, xdg):
    (xdg.config / "dlctl/sites").mkdir(parents=True, exist_ok=True)
    (xdg.config / "dlctl/sites/far.yml").write_text(FAR)
    folder = write_training(dlctl.cwd / "t", {"command": "echo 1 >$RESULT_DIR/model"})
    _, done = run(dlctl, local_site, folder)
    bad = write_training(dlctl.cwd / "bad", {"command": "exit 3"}, retries=0)
    _, failed = run(dlctl, local_site, bad)
    assert_right(follow(dlctl, [*LOOKING, *SITES], done=done, failed=failed, python=sys.executable))


def test_what_commands_say_of_a_running_training_can_be_followed(dlctl, local_site):
    running = submit(dlctl, local_site, write_training(dlctl.cwd / "r", {"command": ENDLESS}))
    wait_for_state(dlctl, running, "TRAINING")
    other = submit(dlctl, local_site, dlctl.cwd / "r")
    assert_right(follow(dlctl, RUNNING, running=running, other=other))
    wait_for_state(dlctl, running, "HALTED")


def test_what_commands_say_of_models_and_many_trainings_can_be_followed(dlctl, local_site):
    write_training(dlctl.cwd / "t", {"command": "echo 1 >$RESULT_DIR/m"}, {"a.py": "1"})
    assert_right(follow(dlctl, [*MODELS[:2], *MANY]))
    (dlctl.cwd / "t/more").write_text("1")
    (model,) = (each["model_id"] for each in dlctl("models", "list", "--json", ok=True).json)
    dlctl("models", "update", model, "t", ok=True)
    dlctl("models", "update", f"{model}@1", "--alias", "best", ok=True)
    assert_right(follow(dlctl, MODELS[2:], model=model))
