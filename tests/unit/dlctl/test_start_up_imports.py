"""Each command loads what it uses and nothing else, also on Windows and macOS."""

import os
import subprocess
import sys

import pytest
from repository import REPOSITORY, SUPPORT

NODE_SIDE = {"torch", "numpy", "mpi4py", "h5py", "watchdog", "learner", "psrv"}
# Loads the command as its console script does, and prints at the end what was loaded. typer's own
# coercion of options loads pydantic (since 0.29), so that it says nothing about dlctl.
PROGRAM = """\
import sys
from dlctl.cli.main import main
try:
    main()
finally:
    with open({answer!r}, "w") as file:
        file.write("\\n".join(name for name, module in sys.modules.items() if module is not None))
"""


@pytest.fixture
def loaded(tmp_path, xdg):
    """`loaded("list")` → the modules that the command loads, by their whole names."""

    def run(*arguments, cwd=tmp_path):
        answer = tmp_path / "modules"
        program = PROGRAM.format(answer=str(answer))
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=cwd, env=xdg.env, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return set(answer.read_text().split("\n"))

    return run


@pytest.mark.unmeasured
@pytest.mark.parametrize(("command", "loads", "others"), [
    ("--help", "typer",
     "yaml pydantic paramiko jinja2 sqlite3 starlette uvicorn websockets asyncio dlctl.series "
     "dlctl.lifecycle"),
    ("list", "sqlite3", "dlctl.cli.manifests dlctl.cli.logs dlctl.cli.models yaml paramiko jinja2 "
     "rich dlctl.manifest.model dlctl.sites.files dlctl.lifecycle dlctl.request.build"),
    ("render manifest.yml", "jinja2",
     "paramiko rich sqlite3 dlctl.lifecycle dlctl.transport.ssh"),
    ("submit manifest.yml", "sqlite3 yaml jinja2 dlctl.transport.local",
     "paramiko cryptography rich asyncio invoke dlctl.transport.ssh dlctl.scheduler.slurm "
     "dlctl.cli.views.training dlctl.outputs.fetch dlctl.logs.reader dlctl.site_admin.discovery "
     "dlctl.doctor.at_site"),
])  # fmt: skip
def test_a_command_loads_what_it_uses_and_no_more(loaded, dlctl, tmp_path, command, loads, others):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "manifest.yml").write_text("name: a\nframework: {name: own, command: 'true'}\n")
    modules = loaded(*command.split(), cwd=folder)
    try:
        assert set(loads.split()) <= modules
        assert not modules & {*others.split(), *NODE_SIDE}
        if command == "--help":
            assert not [name for name in modules if name.startswith("dlctl.contract.measured.")]
            assert dlctl("-h", ok=True).stdout.strip() == dlctl().stderr.strip()
    finally:
        if "submit" in command:
            dlctl("logs", "--follow", cwd=folder, ok=True)  # until it has ended: it leaves nothing


@pytest.mark.unmeasured
def test_ssh_loads_no_asyncio(tmp_path):
    """paramiko wants `invoke`, and with it asyncio and unittest.mock, for `Match exec` alone."""
    program = (
        "import shutil, sys, dlctl.transport.ssh\n"
        "loaded = {'invoke', 'asyncio', 'unittest.mock'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "from pathlib import Path\n"
        "from dlctl.sites.files import TransportSettings\n"
        "there = TransportSettings(kind='ssh', host='there')\n"
        "shutil.which = lambda _: None # no ssh client\n"
        "target = dlctl.transport.ssh.target_of(there, Path(sys.argv[1]))\n"
        "assert target.user == 'me', target\n"
    )
    config = tmp_path / "config"
    config.write_text("Match exec true\n  User me\n")
    done = subprocess.run(
        [sys.executable, "-c", program, str(config)], capture_output=True, text=True,
        env=dict(os.environ, PYTHONPATH=str(REPOSITORY)), timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_the_command_loads_prints_nothing(tmp_path, xdg):
    """The first library that it loads is one whose import meets the signal."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n"
    )
    program = "import sys; from dlctl.__main__ import main; sys.exit(main())"  # its console script
    done = subprocess.run(
        [sys.executable, "-c", program, "list"], cwd=tmp_path, env=xdg.env, capture_output=True,
        text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# Windows and macOS: no `fcntl`, no `fork`, no `/proc`, other signal numbers -----------------------

ONLY_UNIX = {"dlctl.contract.ground.interfaces", "dlctl.terminal.screen"}
"""What runs on nodes only, and what `output.has_whole_screen` keeps from being loaded."""
IMPORTS = """
import importlib, pkgutil, no_unix
no_unix.pytest_configure()
import dlctl
for module in pkgutil.walk_packages(dlctl.__path__, "dlctl."):
    if module.name != "dlctl.__main__":
        try:
            importlib.import_module(module.name)
        except (ImportError, AttributeError) as error:
            print(module.name)
"""


def run(*arguments):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(REPOSITORY)])}
    return subprocess.run([sys.executable, *arguments], env=env, cwd=REPOSITORY, text=True,
                          capture_output=True, timeout=300)  # fmt: skip


def test_every_module_of_the_login_side_loads_without_unix():
    done = run("-c", IMPORTS)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == ONLY_UNIX


@pytest.mark.parametrize("folder", [
    "sites",
    *(pytest.param(name, marks=pytest.mark.long)
      for name in ("request", "manifest", "plan", "series", "record")),
])  # fmt: skip
def test_the_unit_tests_pass_without_unix(folder):
    done = run("-m", "pytest", "-q", "-p", "no_unix", "-p", "no:cacheprovider", "-x",
               "-k", "not limited_by_this_machine", f"tests/unit/dlctl/{folder}")  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
