"""The scripts about stored models, for sites and words with any characters."""

import dataclasses
import subprocess

import pytest
from login_side import make_record, make_site
from shell_check import check_script
from test_golden_scripts import CASES
from test_submit_script import EXPECTED

from dlctl.contract import ModelFile, ModelVersion, StoredWeights
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import ask_script
from dlctl.models.publish import NewVersion, _script
from dlctl.models.use import _code_script
from dlctl.scheduler.slurm import Slurm
from dlctl.script_templates import render_script

SESSION = Session(make_site("/data/it's $(touch x)"), None, None)
FILE = ModelFile("a", 1, "0" * 64)


def publish_script():
    record = ModelVersion("m-abcdefgh", 0, "m", files=[FILE])
    words = {"aliases": ["best"], "tags": ["a"]}
    new = NewVersion(record, True, {}, {}, words, "it's\n$(touch x)")
    return _script(SESSION, new, "models/incoming/0123", 100)


def submit_script():
    weights = StoredWeights("m-abcdefgh@1", "it's $(touch x).pt", "0" * 64, 1, "weights/it's")
    plan = CASES["slurm-weird-characters"]()
    plan = dataclasses.replace(plan, code_digest="c0de", model="m-abcdefgh@1", weights=weights)
    return ask_script(Slurm(), plan, make_record(), "", False)


SCRIPTS = {
    "publish": publish_script,
    "code": lambda: _code_script(SESSION, "store/abc", 100),
    "gc": lambda: render_script("login/model_gc.sh.j2", old="-mmin +1439", dry_run=False),
    "submit": submit_script,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_sh_and_shellcheck_find_no_fault_about_models(name):
    # Also `[ -O ]`, which every sh of a site has.
    check_script(SCRIPTS[name](), expected=f"{EXPECTED},SC3067")


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_word_is_run(name, tmp_path):
    """The folders don't exist and can't be made, so the script ends before it does anything."""
    script = "mkdir() { return 1; }\n" + SCRIPTS[name]()
    subprocess.run(["sh"], input=script, text=True, capture_output=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
