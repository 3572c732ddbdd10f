"""The examples of docs/python.md and docs/serve.md, from top to bottom."""

from __future__ import annotations

import re
import shutil
import subprocess

from repository import REPOSITORY
from rest_server import serving
from trainings import ON_THE_CLUSTER
from user_program import run_program


def blocks(page: str, language: str) -> str:
    text = (REPOSITORY / "docs" / page).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return "\n".join(found)


def copied(folder):
    shutil.copytree(REPOSITORY / "examples/digits", folder, dirs_exist_ok=True)
    manifest = folder / "manifest.yml"
    text = (
        manifest.read_text()
        .replace("epochs: 20", "epochs: 2")
        .replace("learners: 2", "learners: 1")
    )
    manifest.write_text(text.replace("5 epochs", "1 epochs"))


@ON_THE_CLUSTER
def test_the_examples_of_python_run(dlctl, site):
    copied(dlctl.cwd)
    told = run_program(dlctl, site, blocks("python.md", "python"))
    assert "learner-0 | " in told and "model.pt" in told
    assert "no training 'nobody' is known here" in told


@ON_THE_CLUSTER
def test_the_lines_of_curl_run(dlctl, site):
    copied(dlctl.cwd)
    with serving(dlctl, site) as server:
        script = blocks("serve.md", "sh").replace(":8470", f":{server.port}")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script], cwd=dlctl.cwd, env=dlctl.env, text=True,
            capture_output=True, timeout=500, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done
    assert '"deleted":true' in done.stdout and "event: end" in done.stdout
    assert (dlctl.cwd / "begin.pt").stat().st_size == 100
