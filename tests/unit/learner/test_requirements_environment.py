"""A manifest's requirements: the module really runs pip, with tiny wheels instead of an index."""

import json
import os
import signal
import subprocess
import venv
from pathlib import Path

import pytest
from repository import REPOSITORY
from wheels import make_wheel

from learner.requirements import _explained


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whe els")
    make_wheel(folder, "torch", "2.12", {"torch.py": "__version__ = '2.12'\n"})
    make_wheel(folder, "torch", "2.13", {"torch.py": "__version__ = '2.13'\n"})
    make_wheel(folder, "useful", "1.0", {
        "useful.py": "import torch\ndef main(): print('useful', torch.__version__)\n",
        "useful-1.0.dist-info/entry_points.txt": "[console_scripts]\nuse = useful:main\n",
    }, needs=("torch>=2",))  # fmt: skip
    make_wheel(folder, "eager", "1.0", {"eager.py": ""}, needs=("torch==2.13",))
    return folder


class Site:
    """A site whose Python has torch 2.12, and pip."""

    def __init__(self, folder, wheels):
        self.root = folder / "ro ot"
        venv.EnvBuilder(symlinks=True).create(folder / "env")
        self.python = folder / "env/bin/python"
        packages = next((folder / "env").glob("lib/python*/site-packages"))
        (packages / "torch.py").write_text("__version__ = '2.12'\n")
        info = packages / "torch-2.12.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12\n")
        (info / "entry_points.txt").write_text("[console_scripts]\nrun = useful:main\n")
        (self.python.with_name("run")).write_text(f"#!{self.python}\n")
        pips = Path(__import__("pip").__file__).parents[1]
        (packages / "pip").symlink_to(pips / "pip")
        self.options = ["--no-index", "--find-links", str(wheels)]
        self.folder = self.root / "environments/abc"

    def start(self, *lines, options=None, **more):
        asked = [self.folder, json.dumps(self.options if options is None else options), *lines]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        env = kept | {"PYTHONPATH": str(REPOSITORY), "PIP_CONFIG_FILE": os.devnull} | more
        return subprocess.Popen(
            [self.python, "-m", "learner.requirements", *asked], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def install(self, *lines, **more):
        process = self.start(*lines, **more)
        out, self.said = process.communicate(timeout=60)
        return json.loads(out)["installed"] if process.returncode == 0 else None

    def prints(self, *argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def site(tmp_path, wheels):
    return Site(tmp_path, wheels)


def test_an_environment_has_the_requirements_and_all_that_the_site_has(site):
    assert site.install("useful") is True, site.said
    code = "import useful, torch, sys; print(useful.__file__, torch.__file__, sys.prefix, sep='|')"
    useful, torch, prefix = site.prints(site.folder / "bin/python", "-c", code).strip().split("|")
    assert Path(useful).is_relative_to(site.folder)
    assert Path(torch).is_relative_to(site.python.parents[1])
    assert prefix == str(site.folder)
    for script in ("use", "run"):
        assert site.prints(site.folder / "bin" / script) == "useful 2.12\n"
    assert {path.name for path in site.folder.parent.iterdir()} == {"abc", "abc.log"}


@pytest.mark.slow
def test_it_is_made_once_and_again_when_the_site_has_changed(site):
    assert site.install("useful") is True, site.said
    mark = site.folder / "mark"
    mark.touch()
    assert (site.install("useful"), site.said) == (False, "")
    assert mark.exists()
    for path in list(site.folder.glob("lib/python*/site-packages/useful*/*")):
        path.unlink()
    assert site.install("useful") is True, "a file system may purge old files"
    assert not mark.exists()
    assert site.prints(site.folder / "bin/use") == "useful 2.12\n"
    mark.touch()
    for info in site.python.parents[1].glob("lib/python*/site-packages/torch-2.12.dist-info"):
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.14\n")
        info.rename(info.with_name("torch-2.14.dist-info"))
    assert site.install("useful") is True, site.said
    assert not mark.exists()
    assert {path.name for path in site.folder.parent.iterdir()} == {"abc", "abc.log"}


def test_two_at_a_time_and_a_killed_one_leave_one_whole_environment(site, wait_until):
    killed = site.start("useful")
    parts = site.folder.parent
    wait_until(lambda: parts.exists() and list(parts.glob(".abc.*/pyvenv.cfg")), what="a part")
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert not site.folder.exists()
    (abandoned,) = parts.glob(".abc.*")
    os.utime(abandoned, (0, 0))
    both = [site.start("useful") for _ in range(2)]
    outcomes = [process.communicate(timeout=60) for process in both]
    assert [json.loads(out)["installed"] for out, _ in outcomes] == [True, True]
    assert site.prints(site.folder / "bin/use") == "useful 2.12\n"
    assert {path.name for path in parts.iterdir()} == {"abc", "abc.log"}


@pytest.mark.parametrize(("lines", "said"), [
    (["nothing-of-this-name"], "No matching distribution found for nothing-of-this-name"),
    (["eager"], "The site has torch==2.12."),
    (["torch==2.13"], "The site has torch==2.12."),
    (["git+file:///no/such"], "fatal: '/no/such' does not appear to be a git repository"),
])  # fmt: skip
def test_what_pip_refuses_is_one_sentence_and_leaves_nothing(site, lines, said):
    assert site.install(*lines) is None
    error = site.said.splitlines()[-2:]
    assert error[0].startswith("error: pip could not install them: ")
    assert said in error[0]
    assert str(site.folder.with_suffix(".log")) in error[1]
    assert {path.name for path in site.folder.parent.iterdir()} == {"abc.log"}


def test_a_package_that_does_not_build_is_told_with_its_own_error(tmp_path):
    """The last line that pip prints is `hint: See above for details.`"""
    said = """\
  error: subprocess-exited-with-error
  \xd7 python setup.py egg_info did not run successfully.
  \u2570\u2500> [2 lines of output]
      Traceback (most recent call last):
      ModuleNotFoundError: No module named 'nothing_here'
      [end of output]
  note: This error originates from a subprocess, and is likely not a problem with pip.
error: metadata-generation-failed

\xd7 Encountered error while generating package metadata.
\u2570\u2500> See above for output.
hint: See above for details.
"""
    told = _explained(said, tmp_path / "log").message
    assert told == "pip could not install them: ModuleNotFoundError: No module named 'nothing_here'"


@pytest.mark.parametrize(
    "said",
    [
        "ERROR: 404 Client Error for url: https://me:t0ken@host/simple/useful/",
        "ERROR: HTTP error 401 while getting https://t0ken@host/simple/ and https://a:b@host/x\n",
    ],
)
def test_the_credential_of_a_sites_own_index_is_not_told(tmp_path, said):
    """Of the site's pip.conf: pips before 24 print it."""
    told = _explained(said, tmp_path / "log").message
    assert "t0ken" not in told and "a:b" not in told and "https://host/simple/" in told


def test_an_index_that_cannot_be_reached_is_told_with_the_way_without_it(site):
    nowhere = ["--index-url", "http://127.0.0.1:9/simple", "--retries", "1"]
    assert site.install("useful", options=nowhere) is None
    assert "error: the package index can't be reached" in site.said
    assert "environment.pip: [--no-index, --find-links, FOLDER]" in site.said


def test_a_users_own_settings_of_pip_do_not_lead_elsewhere(site, tmp_path):
    assert site.install("useful", PIP_TARGET=str(tmp_path / "other"), PIP_USER="1") is True
    assert not (tmp_path / "other").exists()
    assert site.prints(site.folder / "bin/use") == "useful 2.12\n"


def test_a_root_that_cannot_be_written_is_one_sentence(site):
    site.root.write_text("not a folder")
    assert site.install("useful") is None
    assert f"error: {site.folder.parent} can't be written: Not a directory" in site.said
    assert "Traceback" not in site.said
