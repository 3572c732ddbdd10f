"""What is wrong with a site is told in one sentence; no job is lost, none runs twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from hints import programs_in
from trainings import (
    REPOSITORY,
    begin,
    change_site,
    count_of,
    node_of,
    run,
    state_of,
    submit,
    wait_for_state,
    write_counter,
    write_training,
)
from waiting import wait_until

from dlctl import contract

# MPI is not used by the command; what the preflight found out stands in its report.
HELLO = {"command": 'echo "hello of $RANK of $WORLD_SIZE"; env >"$RESULT_DIR/env-$RANK"'}


# The wrong PMI -----------------------------------------------------------------------------------


@pytest.mark.first
def test_a_wrong_pmi_stops_before_training(dlctl, cluster_site, xdg):
    changed = change_site(cluster_site, xdg.config, launcher={"kind": "srun", "mpi": "none"})
    folder = write_training(dlctl.cwd, HELLO, learners=2)
    done, training_id = run(dlctl, changed, folder)
    assert done.exit_code == 10, (done.stdout, done.stderr)
    shown = dlctl("show", training_id, "--json", ok=True).json
    assert "the plan has 2 learners" in shown["reason"]
    assert "MPI.COMM_WORLD.size is 1" in shown["reason"]
    assert shown["verdict"]["kind"] == "site"
    assert shown["hint"].startswith("srun and the MPI library speak different PMIs")
    assert "launcher.mpi" in shown["hint"]
    ((_, command),) = programs_in(shown["hint"])
    ended = cluster_site.cluster.ssh(command)
    assert "pmix" in ended.stdout + ended.stderr, (command, ended)
    assert shown["learners"] == []
    assert "Traceback" not in done.stderr + dlctl("logs", training_id).stdout


# What Slurm and the site file refuse -------------------------------------------------------------


def test_a_partition_that_slurm_refuses(dlctl, cluster_site, xdg):
    partitions = {"closed": {"nodes": 4}, "nowhere": {"nodes": 4}}
    changed = change_site(cluster_site, xdg.config, partitions=partitions)
    for name in partitions:
        folder = write_training(dlctl.cwd / name, HELLO, scheduler={"partition": name})
        done = dlctl("submit", "manifest.yml", "--site", changed.name, cwd=folder)
        assert done.exit_code == 7, done.stderr
        assert "Slurm refused the job" in done.stderr
        assert "Traceback" not in done.stderr
        known = state_of_latest(dlctl, folder)
        assert known["state"] == "FAILED"
        assert "refused" in known["reason"]
    assert cluster_site.cluster.user("squeue", "-h") == ""


def state_of_latest(dlctl, folder):
    return dlctl("status", "--json", cwd=folder, ok=True).json


# The user's environment, over there and here -----------------------------------------------------

NOISY = """\
echo "Welcome to the cluster; your quota is 93 % full"
echo "and a warning" >&2
export SBATCH_PARTITION=nowhere SBATCH_TIMELIMIT=1 SBATCH_ACCOUNT=nobody SLURM_NNODES=3
export SLURM_NTASKS=7 SLURM_CPUS_PER_TASK=9 SBATCH_OUTPUT=/dev/null SQUEUE_FORMAT=%i
export SQUEUE_STATES=PD SACCT_FORMAT=jobid SLURM_MPI_TYPE=none SLURM_TIMELIMIT=1 SBATCH_REQUEUE=1
export SLURM_CPU_BIND=quiet
export SBATCH_EXPORT=NONE SLURM_EXPORT_ENV=NONE PYTHONPATH=/tmp/nowhere PYTHONHOME= CDPATH=/tmp
alias ls='ls --color=always' cd='echo no'
"""


def test_a_noisy_bashrc_and_inherited_settings_change_nothing(dlctl, cluster_site):
    cluster = cluster_site.cluster
    bashrc = cluster.home / ".bashrc"
    bashrc.write_text(NOISY)
    bashrc.chmod(0o644)
    inherited = {
        "SBATCH_PARTITION": "nowhere", "SBATCH_TIMELIMIT": "1", "SLURM_NTASKS": "7",
        "SLURM_CONF": "/nowhere", "SBATCH_ACCOUNT": "nobody",
    }  # fmt: skip
    try:
        assert "Welcome" in cluster.ssh("true").stdout
        folder = write_training(dlctl.cwd, HELLO, learners=2)
        training_id = submit(dlctl, cluster_site, folder, env=inherited)
        done = dlctl("logs", training_id, "--follow", env=inherited, ok=True)
        known = state_of(dlctl, training_id)
        assert known["state"] == "COMPLETED"
        job = dict(
            item.split("=", 1)
            for item in cluster.user("scontrol", "show", "job", known["job_id"]).split()
            if "=" in item
        )
        assert (job["Partition"], job["TimeLimit"]) == ("debug", "00:05:00")
        assert (job["NumTasks"], job["CPUs/Task"], job["Requeue"]) == ("2", "1", "1")
        assert "Welcome" not in done.stdout
        dlctl("fetch", "results", training_id, "--to", "r", cwd=folder, ok=True)
        assert (folder / "r/env-1").exists()
        # Where CDPATH was exported, models "can't be stored", and the doctor cried wolf.
        made = dlctl("models", "create", "--from", training_id, "--json", ok=True).json
        dlctl("models", "delete", made["model_id"], "--yes", ok=True)
        dlctl("models", "gc", "--site", cluster_site.name, "--older-than", "0s", ok=True)
        checks = dlctl("doctor", cluster_site.name, "--json").json
        assert "broken" not in {each["state"] for each in checks}, checks
    finally:
        bashrc.unlink()


# Slurm's daemons ---------------------------------------------------------------------------------


def test_without_accounting_the_state_is_still_right(dlctl, cluster_site):
    folder = write_training(
        dlctl.cwd, {"command": 'while [ ! -e "$RESULT_DIR/go" ]; do sleep 0.1; done'}
    )
    cluster_site.cluster.dbd_stop()
    training_id = submit(dlctl, cluster_site, folder)
    wait_for_state(dlctl, training_id, "TRAINING")
    (cluster_site.job_dir(training_id) / "results/go").touch()
    wait_for_state(dlctl, training_id, "COMPLETED")


def test_a_node_that_is_cut_off_for_a_moment(dlctl, cluster_site):
    """Shorter than Slurm's patience: the job continues and nothing is said wrong meanwhile."""
    cluster = cluster_site.cluster
    training_id = submit(dlctl, cluster_site, write_counter(dlctl.cwd, 120))
    wait_until(lambda: count_of(cluster_site.job_dir(training_id)) > 3, 90)
    node = node_of(dlctl, training_id)
    cluster.node_cut(node)
    assert state_of(dlctl, training_id)["state"] == "TRAINING"
    cluster.node_heal(node)
    wait_for_state(dlctl, training_id, "COMPLETED")


def test_a_node_that_is_cut_off_computes_on_until_its_successor_trains(dlctl, cluster_site):
    """The old attempt sees the shared files all the time, and Slurm's controller never."""
    cluster = cluster_site.cluster
    training_id, job_dir = begin(dlctl, cluster_site, write_counter(dlctl.cwd, 320, retries=1))
    wait_until(lambda: count_of(job_dir) > 3, 90)
    node = node_of(dlctl, training_id)
    found = subprocess.run(["pgrep", "-f", training_id], capture_output=True, text=True)
    old = [int(pid) for pid in found.stdout.split()]
    cluster.node_cut(node)
    at = count_of(job_dir)
    wait_until(lambda: count_of(job_dir) > at + 10, 60)  # it computes on
    # Slurm gives the node up and runs the job elsewhere; the old processes end before it trains.
    wait_until((job_dir / contract.claim(2)).exists, 120)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old), 60)
    cluster.node_heal(node)
    wait_for_state(dlctl, training_id, "COMPLETED")
    first = contract.read_record(contract.Verdict, job_dir / contract.verdict_file(1))
    assert (first.kind, first.action.attempt) == ("node_lost", 2), first
    log = dlctl("logs", training_id, ok=True).stdout
    assert state_of(dlctl, training_id)["attempt"] == 2
    assert log.count("done at 320") == 1


@pytest.mark.first
@pytest.mark.costs(12)
def test_a_job_that_was_given_up_and_wakes_up_late_changes_nothing(dlctl, cluster_site):
    """SIGSTOP, NODE_FAIL, resume, COMPLETED, SIGCONT: `fetch` brought the old model, exit 0."""
    cluster = cluster_site.cluster
    command = """\
if [ "$DLCTL_ATTEMPT" = 1 ]; then
  touch "$LOG_DIR/began"; while [ ! -e "$LOG_DIR/go" ]; do sleep 0.1; done
fi
echo "attempt $DLCTL_ATTEMPT" >"$RESULT_DIR/model.pt"
"""
    folder = write_training(dlctl.cwd, {"command": command})
    training_id, job_dir = begin(dlctl, cluster_site, folder)
    wait_until((job_dir / "logs/began").exists, 90)
    node = node_of(dlctl, training_id)
    found = subprocess.run(["pgrep", "-f", training_id], capture_output=True, text=True)
    frozen = [int(pid) for pid in found.stdout.split()]
    assert len(frozen) >= 3  # the supervisor, srun, the watchdog
    cluster.exec("pkill", "-STOP", "-x", "slurmd", node=node)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    wait_for_state(dlctl, training_id, "FAILED", timeout_s=150)
    dlctl("resume", training_id, "--follow", ok=True)
    (job_dir / "logs/go").touch()
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in frozen), 60)
    cluster.exec("pkill", "-CONT", "-x", "slurmd", node=node)
    verdict = contract.read_record(contract.Verdict, job_dir / contract.verdict_file(1))
    kinds = contract.VerdictKind
    assert verdict is None or verdict.kind in (kinds.SUPERSEDED, kinds.NODE_LOST), verdict
    assert state_of(dlctl, training_id)["state"] == "COMPLETED"
    dlctl("fetch", training_id, cwd=folder, ok=True)
    assert (folder / f"results/{training_id}/model.pt").read_text() == "attempt 2\n"


# On the login node -------------------------------------------------------------------------------


def test_dlctl_on_a_login_node(cluster):
    """The local transport with Slurm: no ssh in between, and none installed would be needed."""
    home = cluster.home / "on login"
    home.mkdir()
    for name in ("dlctl", "learner", "psrv", "templates", "site_configs"):
        subprocess.run(["cp", "-R", str(REPOSITORY / name), str(home)], check=True)
    site = {
        "transport": {"kind": "local"}, "root": str(home / "root"),
        "scheduler": {"kind": "slurm"}, "launcher": {"kind": "srun", "mpi": "pmix"},
        "environment": {"python": "auto"},
    }  # fmt: skip
    (home / "config/dlctl/sites").mkdir(parents=True)
    (home / "config/dlctl/sites/here.yml").write_text(json.dumps(site))
    write_training(home / "work", HELLO, learners=2)
    if os.getuid() == 0:
        subprocess.run(["chown", "-R", f"--reference={cluster.home}", str(home)], check=True)

    def dlctl(*arguments):
        variables = (
            f"XDG_CONFIG_HOME={home}/config", f"XDG_STATE_HOME={home}/state",
            f"PYTHONPATH={home}", "NO_COLOR=1",
        )  # fmt: skip
        argv = ["env", "-C", str(home / "work"), *variables]
        return cluster.user(*argv, str(cluster.node_python), "-m", "dlctl", *arguments)

    try:
        said = dlctl("submit", "manifest.yml", "--site", "here", "--follow")
        assert "hello of 1 of 2" in said
        state = json.loads(dlctl("status", "--json"))
        assert state["state"] == "COMPLETED"
        dlctl("fetch", "results", "--to", "brought")
        assert (home / "work/brought/env-0").exists()
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)
