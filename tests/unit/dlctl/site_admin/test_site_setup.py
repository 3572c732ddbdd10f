"""The setup of a site's Python: the script really runs, with tiny wheels instead of torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hints import commands_in
from login_side import fill
from shell_check import check_script, check_syntax
from wheels import NODE_VERSIONS, make_node_python, make_node_wheels, make_wheel

from dlctl.errors import SiteError
from dlctl.site_admin.actions import setup_site
from dlctl.site_admin.setup import (
    node_requirements,
    parse_setup,
    pinned_torch,
    setup_advice,
    setup_script,
    shell_environment,
    wants_cuda,
)
from dlctl.sites.files import Partition, Site, find_site, parse_site
from dlctl.sites.model import EnvironmentSettings
from dlctl.transport.local import LocalTransport


@pytest.fixture(autouse=True)
def no_settings_of_pip(monkeypatch):
    """Whatever index this machine names must not be asked."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whe els")
    make_node_wheels(folder)
    make_wheel(folder, "torch", "2.15", {"torch/__init__.py": "__version__ = '2.15'\n"})
    return folder


def site(root: Path, pip: list[str], **environment: object) -> Site:
    lines = [f"  {key}: {value}" for key, value in environment.items()]
    return parse_site(
        "here",
        f"transport: {{kind: local}}\nroot: {str(root)!r}\nscheduler: {{kind: local}}\n"
        f"launcher: {{kind: mpirun}}\nenvironment:\n  pip: {pip}\n" + "\n".join(lines),
    )


def run(site: Site):  # type: ignore[no-untyped-def]
    end = LocalTransport().run(setup_script(site), timeout_s=240)
    return parse_setup(site.name, end.exit_code, end.text, end.error_text)


def offline(wheels: Path) -> list[str]:
    return ["--no-index", "--find-links", str(wheels)]


@pytest.mark.slow
def test_it_makes_an_environment_once_and_again_after_an_interruption_and_keeps_a_given_one(
    tmp_path, wheels
):
    root = tmp_path / "ro ot"
    here = site(root, offline(wheels))
    made = run(here)
    assert made.python == f"{root}/env/bin/python"
    out = subprocess.run(
        [made.python, "-c", "import torch, mpi4py; print(torch.__version__)"],
        capture_output=True,
        text=True,
    )
    assert out.stdout == "2.13\n"
    assert run(here).notes == [f"{root}/env is already complete"]

    (root / "env/.dlctl-complete").unlink()
    (root / "env/half").write_text("cut off here")
    run(here)
    assert not (root / "env/half").exists()
    assert not (root / "env.lock").exists()

    kept = run(site(tmp_path / "two", offline(wheels), python=made.python))
    assert kept.python == made.python
    assert not (tmp_path / "two/env").exists()


@pytest.mark.slow
def test_each_failure_is_one_sentence_with_a_next_step(tmp_path, wheels):
    def why(site: Site) -> tuple[str, str]:
        with pytest.raises(SiteError) as caught:
            run(site)
        return caught.value.message, caught.value.hint

    nowhere = ["--index-url", "http://127.0.0.1:9/simple", "--retries", "1"]
    sentence, hint = why(site(tmp_path / "a", nowhere))
    assert "does not reach the package index" in sentence and "environment.pip" in hint

    (tmp_path / "empty").mkdir()
    sentence, _ = why(site(tmp_path / "b", offline(tmp_path / "empty")))
    assert "pip could not install the packages: ERROR: No matching distribution" in sentence

    sentence, hint = why(site(tmp_path / "c", [], modules="[no-such-module]"))
    assert "no-such-module" in sentence and "environment.modules" in hint

    (tmp_path / "file").write_text("")
    sentence, _ = why(site(tmp_path / "file/root", []))
    assert "can't be made" in sentence

    (tmp_path / "d/env").mkdir(parents=True)
    (tmp_path / "d/env/mine").write_text("precious")
    sentence, _ = why(site(tmp_path / "d", offline(wheels)))
    assert "was not created by dlctl" in sentence
    assert (tmp_path / "d/env/mine").read_text() == "precious"

    (tmp_path / "e/env.lock").mkdir(parents=True)
    sentence, hint = why(site(tmp_path / "e", offline(wheels)))
    assert "another setup" in sentence and str(tmp_path / "e/env.lock") in hint


def test_without_a_python_or_space_it_says_what_it_found(tmp_path, wheels):
    old = tmp_path / "bin"
    old.mkdir()
    fake = "#!/bin/sh\ncase $2 in *version_info\\[:3\\]*) echo 3.6.8 ;; *) exit 1 ;; esac\n"
    names = ["python3", *(f"python3.{minor}" for minor in range(10, 15))]
    for path in [*(old / name for name in names)]:
        path.write_text(fake)
        path.chmod(0o755)
    script = setup_script(site(tmp_path / "r", offline(wheels)))
    script = script.replace("/usr/bin/python3 /usr/local/bin/python3", "/none/python3")
    end = LocalTransport().run(f"PATH={str(old)!r}:/usr/bin:/bin\n{script}", timeout_s=60)
    with pytest.raises(SiteError, match=r"no Python 3.10 or newer: found 3.6.8 \(.*/bin/python3\)"):
        parse_setup("here", end.exit_code, end.text, end.error_text)
    script = setup_script(site(tmp_path / "r", offline(wheels)))
    script = script.replace("needed_kib=3145728", "needed_kib=99999999999999")
    end = LocalTransport().run(script, timeout_s=60)
    with pytest.raises(SiteError, match="there is too little space at .* MiB are free"):
        parse_setup("here", end.exit_code, end.text, end.error_text)
    assert not (tmp_path / "r/env").exists(), "nothing was created before"


@pytest.mark.slow
def test_variables_and_bash_lines_of_the_site_hold_in_the_setup(tmp_path, wheels):
    (tmp_path / "links").symlink_to(wheels)
    here = site(
        tmp_path / "r",
        ["--no-index"],
        setup='["[[ a == a ]] && echo noise"]',
        variables=f"{{PIP_FIND_LINKS: {tmp_path}/links}}",
    )
    assert run(here).python == f"{tmp_path}/r/env/bin/python"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_container_sees_the_folders_that_are_there_beside_the_sites_own(tmp_path, shell):
    """Apptainer starts nothing if one is missing, and the preflight could not say which."""
    folder = tmp_path / "a b"
    folder.mkdir()
    functions = shell_environment(EnvironmentSettings(container=["env"]), [f"{folder}", "/nowhere"])
    script = f"set -eu\npython=/opt/bin/python3\n{functions}\nin_container"
    for own in ("APPTAINER_BIND", "SINGULARITY_BIND"):
        shown = subprocess.run([shell, "-c", script], env={own: "/scratch", "PATH": os.defpath},
                               capture_output=True, text=True, check=True).stdout  # fmt: skip
        found = re.findall(r"(?m)^(APPTAINER|SINGULARITY)_BIND=(.*)", shown)
        assert set(found) == {(name, f"/scratch,{folder}") for name in ("APPTAINER", "SINGULARITY")}
        assert "APPTAINERENV_PREPEND_PATH=/opt/bin\n" in shown


def test_the_packages_are_those_of_the_extra_node():
    names = {line.split(">")[0] for line in node_requirements()}
    assert names == set(NODE_VERSIONS)
    assert {line.split(">")[0] for line in node_requirements(gpus=True)} - names == {"nvidia-ml-py"}


def test_an_answer_that_was_cut_off_is_no_success():
    with pytest.raises(SiteError, match="exit code 137: Killed"):
        parse_setup("far", 137, "dlctl-note making\n", "noise\nKilled\n")
    with pytest.raises(SiteError, match="exit code 0"):
        parse_setup("far", 0, "", "")


def test_cuda_is_expected_where_the_site_has_gpus(tmp_path):
    here = site(tmp_path, [])
    assert not wants_cuda(here) and "CUDA" in setup_advice(here)
    gpus = here.model_copy(update={"partitions": {"g": Partition(gpus_per_node=4)}})
    assert wants_cuda(gpus) and not setup_advice(gpus)


def test_the_scripts_pass_shellcheck(tmp_path):
    nasty = site(tmp_path / "it's $(here)", ["--find-links", "a 'b"], modules='["m\'1"]')
    script = setup_script(site(tmp_path, ["--find-links", "a"], modules="[m]"))
    inner = script.split("DLCTL_SCRIPT_ENDS_HERE")[1].partition("\n")[2]
    for text in (script, inner):
        check_script(text)
    check_syntax(setup_script(nasty))


def test_torch_is_the_version_that_dlctl_is_tested_with_unless_the_site_names_one(tmp_path):
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", pinned_torch())
    assert f" {pinned_torch()} " in setup_script(site(tmp_path, []))
    other = setup_script(site(tmp_path, ["torch==2.9.*"]))
    assert pinned_torch() not in other
    assert "'torch==2.9.*'" in other


@pytest.fixture
def local_site(tmp_path, wheels, monkeypatch):
    """The shipped site `local`, as dlctl's Python has it that lacks torch."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "links").symlink_to(wheels)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))


def test_a_complete_python_of_dlctl_stays_that_of_the_site_local(local_site, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(make_node_python(tmp_path)))
    answer = setup_site("local")
    assert answer.python == sys.executable
    assert answer.notes == [f"{sys.executable} already has everything"]
    assert find_site("local").shipped


@pytest.mark.slow
def test_an_environment_for_the_site_local_is_told_and_its_file_is_true(local_site, monkeypatch):
    own_python = sys.executable
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    answer = setup_site("local")
    file = find_site("local")
    assert not file.shipped
    assert answer.notes[-1] == (
        f"wrote {file.path}, which takes the place of the site that dlctl ships; "
        "`dlctl sites remove local` undoes it"
    )
    assert f"  python: {answer.python}  # by `dlctl sites setup`\n" in file.path.read_text()
    assert "runs dlctl" not in file.path.read_text()
    version = subprocess.check_output(
        [answer.python, "-c", "import torch; print(torch.__version__)"]
    )
    assert version.decode().strip() == "2.13"
    ((command, _),) = commands_in(answer.notes[-1])
    subprocess.run([own_python, "-m", "dlctl", *command.split()], check=True)
    assert find_site("local").shipped


@pytest.mark.parametrize("is_made", [True, False])
def test_a_setup_without_inodes_names_the_command_that_shows_it(small_disk, is_made):
    """It told of another setup, or of a folder that one may write to."""
    small, root = small_disk("nr_inodes=40"), "ro ot"
    if is_made:
        (small / root).mkdir()
    fill(small, 0)
    with pytest.raises(SiteError) as caught:
        run(site(small / root, []))
    command = re.search(r"df -[hi] '.*?'", caught.value.hint)
    assert command, caught.value
    shown = subprocess.run(command[0], shell=True, check=True, capture_output=True, text=True)
    assert "100%" in shown.stdout
