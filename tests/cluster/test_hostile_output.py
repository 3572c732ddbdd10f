"""What a hostile program names, logs and writes gives no order to the terminal of any command."""

from __future__ import annotations

import re

import pytest
from trainings import submit, wait_for_state, write_training

EVIL = "a\nCOMPLETED\r\x1b[2Kb\x9b1m\u202ec\u2066"
PROGRAM = f"""\
import os, pathlib
from learner import ddl
evil = {EVIL!r}
for variable in ("RESULT_DIR", "CHECKPOINT_DIR", "LOG_DIR"):
    pathlib.Path(os.environ[variable], evil).write_text(evil)
pathlib.Path(evil).write_text(evil)
os.symlink("/" + evil, pathlib.Path(os.environ["RESULT_DIR"], "link" + evil))
print(evil, flush=True)
ddl.log(1, {{evil: 0.5}}, loss=1.0)
"""
ORDER = re.compile(r"\x1b\[(?:[0-9;]*m|2K|1A|\?25[lh])|\r")
"""Colours, and what moves a bar of progress."""
COMMANDS = """\
list|show ID|show ID --all|show ID --script|logs ID|metrics ID|metrics ID --csv|metrics ID --json
fetch all ID --to here|fetch all ID --to here|checkpoints list ID|render manifest.yml
render manifest.yml --files|watch ID --once|report ID|du local
models create . --name named --tag EVIL|models create . --name EVIL|models list --site local
stores list|list --tag EVIL|show EVIL|submit manifest.yml --site EVIL|fetch EVIL
show ID|search trials ID|search export ID --csv|sites show EVIL|render EVIL|adopt local
adopt EVIL|delete ID --dry-run|prune --older-than 1s --dry-run|tag ID EVIL"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_command_passes_orders_on_to_the_terminal(dlctl, local_site, xdg):
    env = {"EVIL": EVIL}
    folder = write_training(
        dlctl.cwd, {"command": "python3 train.py"}, {"train.py": PROGRAM}, name="evil", env=env,
        description=EVIL,
    )  # fmt: skip
    training_id = submit(dlctl, local_site, folder)
    wait_for_state(dlctl, training_id, "COMPLETED", "FAILED")
    seen = {}
    for command in COMMANDS.replace("\n", "|").split("|"):
        words = [{"ID": training_id, "EVIL": EVIL}.get(word, word) for word in command.split()]
        if command == "adopt local":
            (xdg.state / "dlctl/record.db").rename(xdg.state / "before.db")
        terminal = {**dlctl.env, "TERM": "xterm", "DLCTL_PAGER": "never"}
        code, printed = dlctl.server.run_on_terminal(words, env=terminal, cwd=folder, columns=200)
        text = ORDER.sub("", printed.decode(errors="backslashreplace"))
        seen[command] = (code, text)
    bad = {
        command: [line for line in text.split("\n") if not line.replace("\t", "").isprintable()
                  or line.startswith("COMPLETED\\")] for command, (_, text) in seen.items()
    }  # fmt: skip
    assert {command: lines for command, lines in bad.items() if lines} == {}
    assert (seen["fetch all ID --to here"][0], seen["adopt local"][0]) == (0, 0), seen
    assert {path.name for path in (folder / "here").rglob("a*")} >= {EVIL}
