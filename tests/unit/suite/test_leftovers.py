"""What a run leaves behind is found: a check that can't fail would be none."""

import os
import secrets
import subprocess
import tempfile
from pathlib import Path

from leftovers import SESSION_VARIABLE, common_files, session_processes


def test_files_that_are_left_in_common_folders_are_found():
    before = common_files()
    shared = Path("/dev/shm", f"dlctl-{secrets.token_hex(8)}")
    shared.touch()
    folder = tempfile.mkdtemp(prefix="dlctl-", dir="/tmp")
    found = common_files() - before
    shared.unlink()
    Path(folder).rmdir()
    assert {str(shared), folder} <= found
    assert not common_files() & {str(shared), folder}


def test_a_process_that_is_left_is_found_by_its_session():
    token = secrets.token_hex(8)
    with subprocess.Popen(["sleep", "60"], env={**os.environ, SESSION_VARIABLE: token}) as process:
        found = session_processes(token)
        process.kill()
    assert [line.split(":")[0] for line in found] == [f"process {process.pid}"]
    assert not session_processes(token)
