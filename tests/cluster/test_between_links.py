"""One job of a training ends, the next one begins: faults of Slurm, nodes that submit nothing."""

from __future__ import annotations

import pytest
from trainings import (
    COUNTER,
    assert_no_step_twice,
    change_site,
    submit,
    verdict,
    wait_for_state,
    write_counter,
)  # fmt: skip
from waiting import wait_until

from dlctl import contract

SAVES_ON_A_SIGN = COUNTER.replace(
    "def halt(*_):\n    save()",
    "sign = pathlib.Path(os.environ['JOB_STATE_DIR'], 'sign')\ndef halt(*_):\n"
    "    while not sign.exists():\n        time.sleep(0.05)\n    save()",
)
"""Counts, and when it is to end, waits for a file, so that a test can do something before."""


def jobs_of(cluster, training_id):
    """Return the ids of the training's jobs that Slurm knows, those that have ended, too."""
    lines = cluster.exec("squeue", "-h", "-t", "all", "-o", "%A %j").splitlines()
    return {line.split()[0] for line in lines if line.split()[1].startswith(f"{training_id}.")}


@pytest.fixture
def start(dlctl, cluster_site, xdg):
    """Submit a program that counts, in jobs of so many seconds; the ending job submits the next."""

    def submitted(goal, limit_s, program=COUNTER, starters=(), **keys):
        limits = {"debug": {"max_time": f"{limit_s}s", "nodes": 4, "cpus_per_node": 2}}
        only = {"scheduler": {"next_attempt": [*starters, "client"]}} if starters else {}
        site = change_site(cluster_site, xdg.config, partitions=limits, **only)
        asked = {"time": "5m", "retry": {"backoff": "1s"}} | keys
        folder = write_counter(dlctl.cwd, goal, program, **asked)
        training_id = submit(dlctl, site, folder, "--partition", "debug")
        return training_id, site.job_dir(training_id)

    return submitted


def assert_a_chain(dlctl, training_id, job_dir, starters):
    """Check that each step was done once, by attempts in jobs of their own."""
    last = max(int(path.name) for path in (job_dir / "attempts").iterdir())
    links = [verdict(job_dir, n) for n in range(1, last)]
    assert {(each.state, each.kind) for each in links} == {("HALTED", "time_limit")}
    assert {each.action.starter for each in links} <= set(starters), links
    assert_no_step_twice(dlctl("logs", training_id, ok=True).stdout)
    jobs = {(job_dir / contract.claim(n)).read_text().strip() for n in range(1, last + 1)}
    assert len(jobs) == last > 1
    return jobs


def test_a_controller_that_hangs_while_the_ending_job_submits(dlctl, cluster, start):
    """The job's sbatch times out, and the controller reads its request when it wakes up."""
    training_id, job_dir = start(250, 24, SAVES_ON_A_SIGN)
    wait_until((job_dir / contract.directive_file(1)).exists, 60)
    cluster.ctld_hang()
    (job_dir / contract.JOB_STATE / "sign").touch()
    wait_until((job_dir / contract.submit_begin(2)).exists, 60)
    wait_until((job_dir / contract.submit_answer(2)).exists, 60)
    cluster.ctld_resume()
    said = (job_dir / contract.submit_answer(2)).read_text()
    assert not said.startswith("0\n"), "sbatch was to time out"
    assert wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=150)["attempt"] >= 2
    jobs = assert_a_chain(dlctl, training_id, job_dir, ["job", "client"])
    assert jobs_of(cluster, training_id) <= jobs, "a job that no attempt ran in"


def test_slurms_signal_alone_ends_a_link(dlctl, cluster, start):
    """Somebody shortens the job's limit to a minute: only Slurm knows of it, and signals."""
    training_id, job_dir = start(600, 600, time="10m")
    wait_until((job_dir / "checkpoints/count-0").exists, 60)
    job_id = (job_dir / contract.claim(1)).read_text().strip()
    cluster.exec("scontrol", "update", f"JobId={job_id}", "TimeLimit=1")
    wait_until(lambda: verdict(job_dir, 1), 90)
    wait_until((job_dir / contract.claim(2)).exists, 60)  # nobody looks
    ended = verdict(job_dir, 1)
    assert (ended.state, ended.kind, ended.action.starter) == ("HALTED", "time_limit", "job")
    assert ended.reason.startswith("The scheduler signalled that the time limit is near")
    dlctl("cancel", training_id, ok=True)


def test_a_requeue_by_an_administrator_is_no_failure(dlctl, cluster, start):
    """Slurm ends the job and queues it again: the training goes on in it, or in a new one, once."""
    training_id, job_dir = start(130, 600, retries=0)
    wait_until((job_dir / "checkpoints/count-0").exists, 60)
    job_id = (job_dir / contract.claim(1)).read_text().strip()
    cluster.exec("scontrol", "requeue", job_id)
    wait_until(lambda: verdict(job_dir, 1), 60)
    assert wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=200)["attempt"] == 2
    assert verdict(job_dir, 1).kind == "preempted"


@pytest.mark.parametrize("then", ["release", "scancel"])
def test_a_job_that_somebody_requeues_and_holds_stays_held(dlctl, cluster, start, then):
    """A job beside it would get around an administrator's hold."""
    training_id, job_dir = start(130, 600, retries=0)
    wait_until((job_dir / "checkpoints/count-0").exists, 60)
    job_id = (job_dir / contract.claim(1)).read_text().strip()
    cluster.exec("scontrol", "requeuehold", job_id)
    wait_until(lambda: verdict(job_dir, 1), 60)
    state = "PENDING job requeued in held state"
    wait_until(lambda: cluster.user("squeue", "-h", "-j", job_id, "-o", "%T %r").strip() == state)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert known["state"] == "QUEUED"
    who = f"in job {job_id}, which waits in the queue: you or an administrator requeued and held it"
    assert who in known["reason"], known
    assert f"scontrol release {job_id}" in known["hint"]
    assert jobs_of(cluster, training_id) == {job_id}
    if then == "scancel":
        cluster.exec("scancel", job_id)
        wait_until(lambda: jobs_of(cluster, training_id) == {job_id}, 60)
        ended = wait_for_state(dlctl, training_id, "CANCELLED")
        assert "the job that was to start attempt 2 was cancelled" in ended["reason"]
        assert not (job_dir / contract.submit_begin(2)).exists()
        return
    cluster.exec("scontrol", "release", job_id)
    assert wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=200)["attempt"] == 2
    assert (job_dir / contract.claim(2)).read_text().strip() == job_id


@pytest.mark.parametrize(("holder", "why", "todo"), [
    ("exec", "an administrator holds it", "ask the site's administrators"),
    ("user", "you, or a program of yours, holds it", "scontrol release"),
])  # fmt: skip
def test_who_holds_a_job_that_waits_is_said(dlctl, cluster, cluster_site, holder, why, todo):
    folder = write_counter(dlctl.cwd, 5)
    cluster.user("sbatch", "-N4", "-c2", "--wrap", "sleep 60")
    training_id = submit(dlctl, cluster_site, folder)
    getattr(cluster, holder)("scontrol", "hold", dlctl.record(training_id).job_id)
    wait_until(lambda: why in dlctl("status", training_id, "--json").json["reason"], 60)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert (known["state"], todo in known["hint"]) == ("PENDING", True), known
    dlctl("cancel", training_id, ok=True)


@pytest.mark.long  # it takes a minute until nobody believes in the silent supervisor
def test_a_controller_that_has_lost_its_state_ends_no_training(dlctl, cluster, start):
    """Slurm knows the job no more; the accounting calls it CANCELLED, by nobody."""
    training_id, job_dir = start(150, 600, retries=2)
    wait_until((job_dir / "checkpoints/count-0").exists, 60)
    job_id = (job_dir / contract.claim(1)).read_text().strip()
    path = job_dir / contract.status_file(1, "supervisor", 0)
    node = int(contract.read_record(contract.Status, path).host.removeprefix("n"))
    config = cluster.exec("scontrol", "show", "config")
    folder = next(line.split("=")[1].strip() for line in config.splitlines()
                  if line.startswith("StateSaveLocation"))  # fmt: skip
    cluster.ctld_stop()
    cluster.exec("sh", "-c", f"rm -f {folder}/job_state* {folder}/last_*")
    cluster.ctld_start()
    said = ["sacct", "-X", "-D", "-n", "-P", "-o", "State", "-j", job_id]
    wait_until(lambda: "CANCELLED" in cluster.user(*said).split("\n"), 90)
    cluster.exec("sh", "-c", f"pkill -KILL -f 'job[s]/{training_id}' || true", node=node)
    known = wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=300)
    assert known["attempt"] == 2
    lost = verdict(job_dir, 1)
    assert (lost.kind, lost.action.kind) == ("scheduler", "retry"), lost
    assert lost.reason.startswith("Slurm itself ended the job, as when its controller has lost")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_node_ends_no_training_whichever_it_is(dlctl, cluster, start, rank):
    """Slurm runs the job again, because its first node is lost, or another one.

    In that moment the supervisor submits the next job, if it lives, and is killed with its sbatch.
    """
    training_id, job_dir = start(200, 600, learners=2, nodes=2)
    (job_dir / contract.SUBMIT_NEXT).write_text("while :; do sleep 1; done\n")
    wait_until(lambda: all((job_dir / f"checkpoints/count-{n}").exists() for n in (0, 1)), 90)
    path = job_dir / contract.status_file(1, "learner", rank)
    host = contract.read_record(contract.Status, path).host
    cluster.node_kill(int(host.removeprefix("n")))
    claim = job_dir / contract.claim(2)
    wait_until(claim.exists, 150, what="attempt 2, with nobody looking")
    assert claim.read_text() == (job_dir / contract.claim(1)).read_text()
    known = wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=200)
    assert known["attempt"] == 2
    lost = verdict(job_dir, 1)
    assert (lost.kind, lost.action.kind, lost.action.starter) == ("node_lost", "retry", "requeue")
    assert (lost.evidence.host, lost.action.exclude) == (host, [host])
    log = dlctl("logs", training_id, ok=True).stdout
    assert log.count("begins at 0") == 2, "each learner began once from the beginning"


def completed(job_dir):
    """Return whether any attempt has completed; nobody asks dlctl, which would look."""
    attempts = range(1, 1 + len(list(job_dir.glob("attempts/*"))))
    return any((each := verdict(job_dir, n)) and each.state == "COMPLETED" for n in attempts)


def test_a_job_that_asks_slurm_for_another_run_is_both_links(dlctl, start):
    """On a busy machine a job needs half of its 30 s to begin, and there are more links."""
    training_id, job_dir = start(260, 30, starters=["requeue"], time="3m")
    wait_until(lambda: verdict(job_dir, 1), 60)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert known["state"] in ("QUEUED", "PENDING", "DEPLOYING"), known
    wait_until(lambda: completed(job_dir), 240)
    known = dlctl("status", training_id, "--json", ok=True).json
    assert known["state"] == "COMPLETED", known
    links = [verdict(job_dir, number) for number in range(1, known["attempt"])]
    assert {(each.kind, each.action.starter) for each in links} == {("time_limit", "requeue")}
    assert {each.job_id for each in links} == {known["job_id"]}
    assert_no_step_twice(dlctl("logs", training_id, ok=True).stdout)


def test_a_node_is_asked_who_can_start_the_next_attempt(dlctl, cluster_site):
    checks = dlctl("doctor", cluster_site.name, "--deep", "--json").json
    told = {each["name"]: each for each in checks}
    next_attempt, paths = told["chaining"], told["paths of the service"]
    assert next_attempt["state"] == paths["state"] == "ok", told
    assert "can submit jobs" in next_attempt["evidence"]
    assert "programs can see /mnt/data, /mnt/results and /job on n" in paths["evidence"]
