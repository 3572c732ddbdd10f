"""The scripts that run on a login node, for sites, files and words with any characters."""

import dataclasses
import re
import subprocess
import threading

import pytest
from login_side import make_record, make_site
from repository import REPOSITORY
from shell_check import check_script
from test_golden_scripts import CASES

from dlctl.contract import ModelFile, ModelVersion, StoredWeights
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import ask_script
from dlctl.models.publish import NewVersion
from dlctl.models.publish import _script as _publish_script
from dlctl.models.use import _code_script
from dlctl.scheduler.slurm import Slurm
from dlctl.script_templates import render_script

EXPECTED = "SC1091,SC2015,SC2016"
"""Accepted: files of the site, `A && B || C`, and quotes around the user's own words."""


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


def test_bytecode_that_another_job_renames_is_nobodys_code(tmp_path):
    """`find` takes a file that vanishes for another user's: one of four jobs at once failed."""
    template = (REPOSITORY / "templates/job.sbatch.j2").read_text()
    look = re.search(r'find "\$runtime_dir/".*?\\;\)', template, re.DOTALL)[0].removesuffix(")")
    ends = threading.Event()

    def compile_again():
        number = 0
        while not ends.is_set():
            number += 1
            for each in range(40):
                part = tmp_path / f"{each}.pyc.{number}"
                part.touch(0o644)
                part.replace(tmp_path / f"{each}.pyc")

    compiling = threading.Thread(target=compile_again)
    compiling.start()
    script = f"""my_uid=$(id -u) others_write='-perm -0020 -o -perm -0002' runtime_dir={tmp_path}
for n in {" ".join(map(str, range(25)))}; do {look} 2>/dev/null; done
ln -s /etc/passwd "$runtime_dir/link"; {look} 2>/dev/null"""
    try:
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    finally:
        ends.set()
        compiling.join()
    theirs = "belongs to another user, is a link or can be written by other users"
    assert done.stdout == f"{tmp_path}/link\t{theirs}\n"


# Stored models

SESSION = Session(make_site("/data/it's $(touch x)"), None, None)
FILE = ModelFile("a", 1, "0" * 64)


def publish_script():
    record = ModelVersion("m-abcdefgh", 0, "m", files=[FILE])
    words = {"aliases": ["best"], "tags": ["a"]}
    new = NewVersion(record, True, {}, {}, words, "it's\n$(touch x)")
    return _publish_script(SESSION, new, "models/incoming/0123", 100)


def submit_of_a_model():
    weights = StoredWeights("m-abcdefgh@1", "it's $(touch x).pt", "0" * 64, 1, "weights/it's")
    plan = CASES["slurm-weird-characters"]()
    plan = dataclasses.replace(plan, code_digest="c0de", model="m-abcdefgh@1", weights=weights)
    return ask_script(Slurm(), plan, make_record(), "", False)


MODEL_SCRIPTS = {
    "publish": publish_script,
    "code": lambda: _code_script(SESSION, "store/abc", 100),
    "gc": lambda: render_script("login/model_gc.sh.j2", old="-mmin +1439", dry_run=False),
    "submit": submit_of_a_model,
}


@pytest.mark.parametrize("name", MODEL_SCRIPTS)
def test_scripts_about_models_have_no_fault_and_run_no_word(name, tmp_path):
    """The folders don't exist and can't be made, so the script ends before it does anything."""
    # Also `[ -O ]`, which every sh of a site has.
    check_script(MODEL_SCRIPTS[name](), expected=f"{EXPECTED},SC3067")
    script = "mkdir() { return 1; }\n" + MODEL_SCRIPTS[name]()
    subprocess.run(["sh"], input=script, text=True, capture_output=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
