"""The script that submits an attempt on a login node, for sites and files with any names."""

import dataclasses
import re
import subprocess

import pytest
from login_side import make_record
from repository import REPOSITORY
from shell_check import check_script
from test_golden_scripts import CASES

from dlctl.lifecycle.submit import ask_script
from dlctl.scheduler.slurm import Slurm

EXPECTED = "SC1091,SC2015,SC2016"
"""Of shellcheck: files of the site, `A && B || C`, and quotes around the user's own words."""


def script_of(case, folder, renews):
    plan = dataclasses.replace(CASES[case](), code_digest="c0de")
    record = make_record(attempt=2)
    return ask_script(Slurm(), plan, record, folder, renews)


@pytest.mark.parametrize(("folder", "renews"), [("", False), (".sent.0123", True)])
@pytest.mark.parametrize("case", ["slurm-modules", "slurm-weird-characters"])
def test_sh_and_shellcheck_find_no_fault(case, folder, renews):
    check_script(script_of(case, folder, renews), expected=EXPECTED)


def test_no_word_of_the_users_is_run(tmp_path):
    """The folders don't exist, so the script ends at `cd`, once all of its words are read."""
    script = script_of("slurm-weird-characters", ".sent.0123", True)
    done = subprocess.run(["sh"], input=script, text=True, capture_output=True, cwd=tmp_path)
    assert done.returncode == 71
    assert not list(tmp_path.iterdir())


def test_no_script_of_a_login_node_redirects_a_special_builtin():
    """Where `: >FILE` can't write, dash ends the script, whatever follows `||`; `true` does not."""
    folders = [REPOSITORY / name for name in
               ("dlctl", "templates/login", "templates/search", "templates/sites")]  # fmt: skip
    files = [path for folder in folders for path in folder.rglob("*.*")
             if path.suffix in (".py", ".sh", ".j2")]  # fmt: skip
    assert len(files) > 200
    wrong = re.compile(r"(?m)(?:^|[\s;&|(]): ?>")
    assert [path.name for path in files if wrong.search(path.read_text())] == []
