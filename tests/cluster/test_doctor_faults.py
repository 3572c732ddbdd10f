"""`dlctl doctor` names the link that is broken, on a real sshd and a real Slurm with real faults.

Each call inspects the site as `dlctl doctor` does, which starts torch there and takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile

import pytest
from hints import commands_in
from trainings import change_site, submit, wait_for_state, write_training


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


def test_any_login_shell_will_do(dlctl, cluster_site, shell):
    program = shutil.which("fish")
    if program is None:
        pytest.skip("no fish: apt-get install fish")
    shell(program)
    found = links(dlctl, cluster_site)
    assert broken(found) == []
    assert (found["shell"]["state"], found["shell"]["evidence"]) == (
        "ok", f"{program} starts /bin/sh",
    )  # fmt: skip
    assert found["partition debug"]["state"] == "ok"


def test_a_controller_that_is_down(dlctl, cluster_site):
    cluster_site.cluster.ctld_stop()
    found = links(dlctl, cluster_site, "--deep")
    assert broken(found) == ["partitions"]
    assert "Unable to contact slurm controller" in found["partitions"]["evidence"]
    assert found["account"]["state"] == "skipped" and found["job"]["state"] == "skipped"
    assert found["accounting"]["state"] == "ok"
    assert found["torch"]["state"] == "ok"


def test_a_site_that_was_just_added_agrees_with_its_file(dlctl, cluster_site):
    added = dlctl("sites", "add", "again", cluster_site.cluster.host, "--root", cluster_site.root,
                  "--python", cluster_site.python, "--json", ok=True).json  # fmt: skip
    assert added["scheduler"].startswith("Slurm 2") and "debug" in added["partitions"]
    assert added["launcher"].startswith("srun pmix") and added["not_answered"] == ""
    found = {each["name"]: each for each in dlctl("doctor", "again", "--json").json}
    assert broken(found) == []
    assert {found[name]["state"] for name in ("slurm", "partition debug", "account")} == {"ok"}
    assert {"local folders", "tcp"} <= set(found)  # by the connection that `sites add` opened


def test_a_partition_that_the_file_lacks_is_shown_by_the_command_that_is_printed(
    dlctl, cluster_site, xdg
):
    """The hint was `sites add --force`, which forgets root, Python and all that was set there."""
    debug = {"nodes": 4, "cpus_per_node": 2, "default": True}
    site = change_site(cluster_site, xdg.config)
    file = xdg.config / "dlctl/sites/changed.yml"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps(whole | {"partitions": {"debug": debug}}))
    write_training(dlctl.cwd, {"command": "true"}, time="1m")
    submit_there = ("submit", "--site", site.name, "--partition", "short")
    refused = dlctl(*submit_there)
    ((command, _),) = commands_in(refused.stderr)
    assert command == "doctor changed", refused
    assert "the file does not name short" in " ".join(dlctl(*command.split()).stdout.split())
    file.write_text(json.dumps(whole | {"partitions": {"debug": debug, "short": {}}}))
    dlctl(*submit_there, "--follow", ok=True)


def test_a_job_that_leaves_no_word_is_explained_by_the_logs_of_the_next(
    dlctl, cluster_site, xdg, tmp_path
):
    setup = {"setup": ['[ -z "$SLURM_JOB_ID" ] || exit 3']}
    site = change_site(cluster_site, xdg.config, environment=setup)
    found = links(dlctl, site, "--deep")
    assert broken(found) == ["job"]
    ((command, _),) = commands_in(found["job"]["fix"])
    assert command == "doctor changed --deep --bundle FILE", found["job"]
    bundle = tmp_path / "report.tgz"
    assert dlctl(*command.replace("FILE", str(bundle)).split()).exit_code == 4
    with tarfile.open(bundle) as archive:
        assert "dlctl-doctor/job/attempts/1/slurm.out" in archive.getnames()


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


def test_a_root_that_nodes_do_not_see(dlctl, cluster_site, xdg):
    root = f"/tmp/{cluster_site.root.name}"
    site = change_site(cluster_site, xdg.config, root=root)
    try:
        found = links(dlctl, site, "--deep")
    finally:
        shutil.rmtree(root)
    assert broken(found) == ["job", "shared root"]
    assert "nodes share" in found["shared root"]["fix"]


def test_logs_of_failed_trainings_are_in_the_bundle_and_their_programs_words_are_not(
    dlctl, cluster_site, tmp_path
):
    folder = write_training(tmp_path / "job", {"command": "echo my secret recipe; exit 3"})
    training_id = submit(dlctl, cluster_site, folder)
    wait_for_state(dlctl, training_id, "FAILED")
    dlctl("doctor", cluster_site.name, "--bundle", tmp_path / "r.tgz", ok=True)
    with tarfile.open(tmp_path / "r.tgz") as archive:
        names = archive.getnames()
        texts = b"".join(archive.extractfile(name).read() for name in names)
    assert f"dlctl-doctor/trainings/{training_id}/attempts/1/slurm.out" in names
    assert b"exit code 3" in texts
