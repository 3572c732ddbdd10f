"""What several rooms of the login side share."""

import subprocess

import pytest
from login_side import Scene


@pytest.fixture
def scene(tmp_path):
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
