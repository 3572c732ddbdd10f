"""dlctl on a system that is no Linux: a Python without what only Linux has, and no /proc."""

from __future__ import annotations

import subprocess
import sys
from urllib.request import urlopen

import pytest
from trainings import write_training

pytestmark = pytest.mark.slow
AS_ON_A_MAC = """
import os, select, signal, socket, sys
for module, names in {
    os: "sched_getaffinity posix_fadvise posix_fallocate memfd_create eventfd pidfd_open "
        "copy_file_range getxattr setxattr listxattr O_TMPFILE O_PATH O_DIRECT splice getrandom",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGPOLL",
    socket: "SO_PEERCRED AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""


@pytest.fixture
def mac(dlctl, tmp_path):
    """Return what starts dlctl there; what it prints comes as text."""
    for name in ("empty", "python"):
        (tmp_path / name).mkdir()
    (tmp_path / "python/sitecustomize.py").write_text(AS_ON_A_MAC)

    def start(*words):
        hide = ["sh", "-c", 'mount --bind "$0" /proc && exec "$@"', str(tmp_path / "empty")]
        return subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", *hide, sys.executable, "-m",
             "dlctl", *map(str, words)],
            cwd=dlctl.cwd, env=dlctl.env | {"PYTHONPATH": str(tmp_path / "python")}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    return start


def said(process, code=0):
    text = process.communicate(timeout=120)[0]
    assert process.returncode == code and "Traceback" not in text, text
    return text


def test_jobs_on_a_mac_are_refused_with_a_sentence_and_all_else_works(mac, local_site):
    for words in ("--help", "list", "init mine", "validate mine/manifest.yml", "sites list",
                  "render mine/manifest.yml", "search init s", "report --tag x"):  # fmt: skip
        said(mac(*words.split()))
    refusal = "error: the site local is this machine: jobs need Linux: there is no /proc/self/stat"
    for words in ("submit mine/manifest.yml", "submit --dry-run mine/manifest.yml",
                  "search start s/search.yml"):  # fmt: skip
        assert refusal in said(mac(*words.split()), 5)
    assert "scheduler        jobs need Linux" in said(mac("doctor", "local"), 4)
    assert not (local_site.root / "jobs").exists()


def test_a_mac_trains_on_a_cluster(mac, dlctl, cluster_site):
    program = {"command": 'for n in 1 2 3; do echo "step $n loss 0.$n"; sleep 1; done; '
                          'echo 1 >"$RESULT_DIR/made"'}  # fmt: skip
    write_training(dlctl.cwd, program)
    training_id = said(mac("submit", "manifest.yml", "--site", cluster_site.name)).split()[0]
    assert "learner-0 | step 3 loss 0.3" in said(mac("logs", "--follow", training_id))
    assert "COMPLETED" in said(mac("watch", training_id))
    assert "COMPLETED" in said(mac("list", "--watch"))
    said(mac("fetch", "results", training_id))
    assert (dlctl.cwd / "results" / training_id / "made").read_text() == "1\n"
    with mac("dashboard", "--no-browser") as pages:
        try:
            page = pages.stdout.readline().split("#")[0]
            assert b"<title>" in urlopen(page, timeout=60).read()
        finally:
            pages.terminate()
