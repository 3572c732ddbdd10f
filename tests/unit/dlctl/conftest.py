"""What several rooms of the login side share."""

import hashlib
import subprocess

import pytest
from login_side import Scene
from typer.testing import CliRunner

from dlctl import contract
from dlctl.cli import main
from dlctl.files.archive import Entry


@pytest.fixture
def run():
    """`run("list")`: the command in this process, where a test can replace its parts."""
    return lambda *arguments: CliRunner().invoke(main.app, list(arguments))


@pytest.fixture
def small_runtime(monkeypatch):
    """What nodes run is one file; to send and compare all of it takes longer than most tests."""
    name, content = "learner/supervisor/__main__.py", b"pass\n"
    sent = contract.SentFile(hashlib.sha256(content).hexdigest(), len(content), "f", name)
    index = contract.index_text([sent])
    entries = [Entry(name, content), Entry(contract.SENT_INDEX, index)]
    for module in ("request.request", "request.build", "upkeep.prune"):
        found = (contract.index_digest(index), entries)
        monkeypatch.setattr(f"dlctl.{module}.runtime_entries", lambda found=found: found)


@pytest.fixture
def scene(tmp_path, small_runtime):
    """A folder, a record, and a site on this machine with a scripted scheduler."""
    return Scene(tmp_path)


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk("size=8m")` → an empty folder that is a file system of its own; needs root."""
    folder = tmp_path / "small"

    def mount(options):
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", folder]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("only root can mount a small file system")
        return folder

    yield mount
    subprocess.run(["umount", "-l", folder], capture_output=True)
