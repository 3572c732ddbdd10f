"""What dlctl is started in may be broken: no output, no current folder, no home folder."""

import os
import subprocess
import sys

import pytest

RUN = f"exec {sys.executable} -m dlctl list"
WHERE = f"exec {sys.executable} -m dlctl status"


def run(script, env):
    return subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True,
                          check=False, timeout=60)  # fmt: skip


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_fault(xdg, closed):
    """`dlctl submit >&-` submitted, and ended with an internal error."""
    end = run(f"{RUN} {closed}", xdg.env)
    assert (end.returncode, "internal error" in end.stderr) == (0, False), end


def test_a_current_folder_that_is_gone_is_said(xdg, tmp_path):
    end = run(f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {WHERE}", xdg.env)
    assert (end.returncode, end.stderr) == (1, (
        "error: the current folder is gone: somebody has removed it\n"
        "  hint: cd to another folder\n"
    ))  # fmt: skip


def test_a_user_without_a_home_is_told_so():
    if os.getuid() != 0:
        pytest.skip("only root can run a program as a user that does not exist")
    end = run(f"cd / && exec setpriv --reuid 54321 --clear-groups {RUN[5:]}",
              {"PATH": os.environ["PATH"]})  # fmt: skip
    assert (end.returncode, "there is no home folder: HOME is not set" in end.stderr) == (1, True)
