"""`dlctl doctor` names the link that is broken, on a real sshd and a real Slurm with real faults.

Each call inspects the site as `dlctl sites check` does, which starts torch there and takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from trainings import change_site, submit, wait_for_state, write_training

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


def links(dlctl, site, *options, **how):
    """Each link of the site by its name, and the exit code."""
    done = dlctl("doctor", site.name, *options, "--json", **how)
    assert done.exit_code in (0, 4), done
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert (done.exit_code == 4) is any(each["state"] == "broken" for each in found.values())
    return found


def broken(found):
    return [name for name, each in found.items() if each["state"] == "broken"]


@pytest.fixture
def shell(cluster):
    """Changes the login shell of the site's user."""
    if os.getuid() != 0:
        pytest.skip("only root can change the login shell of the cluster's user")
    file = cluster.folder / "etc/etc/passwd"
    before = file.read_text()

    def change(program):
        user = re.escape(cluster.user_name)
        file.write_text(re.sub(rf"(?m)^({user}:.*:)[^:\n]*$", rf"\g<1>{program}", before))

    yield change
    file.write_text(before)


@pytest.mark.parametrize("name", ["csh", "fish"])
def test_any_login_shell_will_do(dlctl, cluster_site, shell, name):
    program = shutil.which(name) or shutil.which(f"t{name}")
    if program is None:
        pytest.skip(f"no {name}: apt-get install {name}")
    shell(program)
    found = links(dlctl, cluster_site)
    assert broken(found) == []
    assert (found["shell"]["state"], found["shell"]["evidence"]) == (
        "ok", f"{program} starts /bin/sh",
    )  # fmt: skip
    assert found["partition debug"]["state"] == "ok"


def test_a_shell_that_runs_nothing_is_the_broken_link(dlctl, cluster_site, shell):
    shell("/usr/sbin/nologin")
    found = links(dlctl, cluster_site)
    assert broken(found) == ["shell"]
    assert found["log-in"]["state"] == "ok"
    assert {found[name]["state"] for name in ("python", "slurm", "accounting")} == {"skipped"}


def test_a_chatty_shell_and_a_clock_an_hour_off_are_told(dlctl, cluster_site):
    home = cluster_site.cluster.home
    files = {"fake/date": '#!/bin/sh\nexec /bin/date -d "1 hour ago" "$@"\n',
             ".bashrc": "echo Welcome to the cluster\nPATH=$HOME/fake:$PATH\n"}  # fmt: skip
    (home / "fake").mkdir()
    try:
        for name, text in files.items():
            (home / name).write_text(text)
            (home / name).chmod(0o755)
        found = links(dlctl, cluster_site)
    finally:
        (home / ".bashrc").unlink()
        shutil.rmtree(home / "fake")
    assert broken(found) == []
    assert found["shell"]["state"] == "warn"
    assert "Welcome to the cluster" in found["shell"]["evidence"]
    assert found["clock"]["state"] == "warn"
    assert "60 min behind" in found["clock"]["evidence"]


def test_a_changed_host_key_is_the_broken_link(dlctl, cluster_site, tmp_path):
    cluster = cluster_site.cluster
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"],
                   check=True)  # fmt: skip
    kind, key = (tmp_path / "key.pub").read_text().split()[:2]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{cluster.port} {kind} {key}\n")
    config = cluster.ssh_config.read_text()
    (tmp_path / "ssh_config").write_text(config.replace(str(cluster.known_hosts),
                                                    str(tmp_path / "known")))  # fmt: skip
    found = links(dlctl, cluster_site, env={"DLCTL_SSH_CONFIG": str(tmp_path / "ssh_config")})
    assert broken(found) == ["host key"]
    assert "CHANGED" in found["host key"]["evidence"]
    assert found["tcp"]["state"] == "ok" and found["log-in"]["state"] == "skipped"


def test_a_server_that_accepts_and_hangs(dlctl, cluster_site, xdg):
    site = change_site(cluster_site, xdg.config, transport={"connect_timeout_s": 2})
    cluster_site.cluster.ssh_hang()
    found = links(dlctl, site)
    assert broken(found) == ["tcp"]
    assert "says nothing" in found["tcp"]["evidence"]
    assert found["host key"]["evidence"] == "not tried: tcp is broken"


def test_a_name_and_a_port_that_are_wrong(dlctl, cluster_site, xdg):
    site = change_site(cluster_site, xdg.config, transport={"host": "no-such-host.invalid"})
    found = links(dlctl, site)
    assert broken(found) == ["name"] and found["tcp"]["state"] == "skipped"
    site = change_site(cluster_site, xdg.config, transport={"port": 1})
    assert broken(links(dlctl, site)) == ["tcp"]


def test_a_controller_that_is_down(dlctl, cluster_site):
    cluster_site.cluster.ctld_stop()
    found = links(dlctl, cluster_site, "--deep")
    assert broken(found) == ["partitions"]
    assert "Unable to contact slurm controller" in found["partitions"]["evidence"]
    assert found["account"]["state"] == "skipped" and found["job"]["state"] == "skipped"
    assert found["accounting"]["state"] == "ok"
    assert found["torch"]["state"] == "ok"


def test_an_accounting_that_is_down_is_a_warning(dlctl, cluster_site):
    cluster_site.cluster.dbd_stop()
    found = links(dlctl, cluster_site)
    assert broken(found) == []
    assert found["accounting"]["state"] == "warn"


def test_a_full_disk_is_told_before_and_by_the_job(dlctl, cluster_site, xdg):
    small = cluster_site.cluster.small_disk
    site = change_site(cluster_site, xdg.config, root=str(small / "dl"))
    try:
        cluster_site.cluster.user("sh", "-c", f"cat /dev/zero >{small}/fill 2>/dev/null || true")
        found = links(dlctl, site, "--deep")
    finally:
        cluster_site.cluster.user("sh", "-c", f"rm -rf {small}/*")
    assert found["root"]["state"] == "warn" and "0 B free" in found["root"]["evidence"]
    assert broken(found) == ["job"]
    assert "the disk is full" in found["job"]["evidence"]


# --deep -------------------------------------------------------------------------------------------


@pytest.mark.first
@pytest.mark.costs(30)
def test_a_job_proves_the_nodes_and_leaves_nothing(dlctl, cluster_site, tmp_path, monkeypatch):
    """Takes as long as two learners need to import torch."""
    bundle = tmp_path / "report.tgz"
    found = links(dlctl, cluster_site, "--deep", "--bundle", str(bundle),
                  env={"MY_API_TOKEN": "hunter2hunter2"})  # fmt: skip
    assert broken(found) == []
    told = {name: found[name]["evidence"] for name in found}
    assert "ran on n1, n2" in told["job"]
    assert told["launcher of nodes"] == "started 2 ranks, as asked for"
    assert told["mpi"] == "one world of 2 ranks"
    assert told["clocks of nodes"] == "n1, n2 agree with this machine"
    assert told["chaining"] == "n1 can submit jobs"
    assert "n1, n2 read what the login node wrote" in told["shared root"]
    assert found["gpus of nodes"]["state"] == "warn"  # promised; the test's torch has none
    assert list((cluster_site.root / "jobs").iterdir()) == []
    assert dlctl("list", "--json", ok=True).json == []
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
        texts = b"".join(archive.extractfile(name).read() for name in names)
    assert {"dlctl-doctor/versions.json", "dlctl-doctor/doctor.json",
            f"dlctl-doctor/sites/{cluster_site.name}.yml",
            "dlctl-doctor/job/attempts/1/slurm.out"} <= set(names)  # fmt: skip
    assert b"preflight of 2 learners" in texts and b"hunter2" not in texts
    again = dlctl("doctor", cluster_site.name, "--bundle", bundle)
    assert again.exit_code == 9 and "can't be written" in again.stderr


def test_two_worlds_of_one_rank_are_not_one_of_two(dlctl, cluster_site, xdg):
    site = change_site(cluster_site, xdg.config, launcher={"mpi": "none"})
    found = links(dlctl, site, "--deep")
    assert broken(found) == ["job", "mpi"]
    assert "2 worlds of 1 rank" in found["mpi"]["evidence"]
    assert "launcher.mpi" in found["mpi"]["fix"]
    assert found["launcher of nodes"]["state"] == found["shared root"]["state"] == "ok"


def test_a_root_that_nodes_do_not_see(dlctl, cluster_site, xdg):
    site = change_site(cluster_site, xdg.config, root="/tmp/dl-of-the-login-node")
    found = links(dlctl, site, "--deep")
    assert broken(found) == ["job", "shared root"]
    assert "nodes share" in found["shared root"]["fix"]


def test_a_node_whose_clock_is_an_hour_off(dlctl, cluster_site, xdg):
    """The library libfaketime stands for the clock: namespaces share the machine's."""
    if not FAKETIME.exists():
        pytest.skip("no libfaketime: apt-get install libfaketime")
    variables = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME": "-1h",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    site = change_site(cluster_site, xdg.config, environment={"variables": variables})
    found = links(dlctl, site, "--deep")
    assert found["clocks of nodes"]["state"] == "warn"
    assert "60 min behind" in found["clocks of nodes"]["evidence"]
    assert found["clock"]["state"] == "ok"


def test_logs_of_failed_trainings_are_in_the_bundle_and_their_programs_words_are_not(
    dlctl, cluster_site, tmp_path, wait_until
):
    folder = write_training(tmp_path / "job", {"command": "echo my secret recipe; exit 3"})
    training_id = submit(dlctl, cluster_site, folder)
    wait_for_state(dlctl, wait_until, training_id, "FAILED")
    dlctl("doctor", cluster_site.name, "--bundle", tmp_path / "r.tgz", ok=True)
    with tarfile.open(tmp_path / "r.tgz") as archive:
        names = archive.getnames()
        texts = b"".join(archive.extractfile(name).read() for name in names)
    assert f"dlctl-doctor/trainings/{training_id}/attempts/1/slurm.out" in names
    assert b"exit code 3" in texts
