"""The same scenarios on both schedulers, so that neither can lie about the other.

`slurm` needs a fixture `cluster` with `run(script) -> (exit code, stdout, stderr)`, which runs
POSIX shell text as the user on the login host, and `home`, a shared folder that the user owns.
"""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dlctl import contract
from dlctl.scheduler import JobState, make_scheduler

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "unit"))
from scheduler_plan import make_plan  # noqa: E402

WAIT_S = 120
STRANGE = "we ird 100%j '$(x)é"


class Here:
    """This machine, as the transport `local` would use it."""

    def run(self, script):
        done = subprocess.run(["sh"], input=script, text=True, capture_output=True, timeout=WAIT_S)
        return done.returncode, done.stdout, done.stderr


class Site:
    def __init__(self, scheduler, machine, root):
        self.scheduler, self.machine, self.root = scheduler, machine, root
        self.ids = []

    def submit(self, script, training_id="t-1", attempt=1, **plan):
        job_dir = f"{self.root}/{STRANGE}/{training_id}"
        resources = "#SBATCH --time=5 --ntasks=1 --no-requeue\n"
        self.machine.run(
            f"mkdir -p {shlex.quote(job_dir)}/attempts/{attempt} && cd {shlex.quote(job_dir)} &&"
            f" printf %s {shlex.quote('#!/bin/bash' + chr(10) + resources + script)} "
            f" >{contract.script_file(attempt)}"
        )
        self.plan = make_plan(
            training_id=training_id, job_dir=job_dir, root=self.root,
            runtime_dir=str(REPOSITORY), **plan,
        )  # fmt: skip
        text = self.scheduler.submit_script(self.plan, attempt)
        answer = self.machine.run(f"cd {shlex.quote(job_dir)} || exit 99\n{text}")
        self.ids.append(self.scheduler.parse_submit(*answer))
        return self.ids[-1]

    def job(self, job_id):
        listed = self.scheduler.parse_queue(
            *self.machine.run(self.scheduler.queue_script(self.root))
        )
        return next((job for job in listed if job.job_id == job_id), None)

    def until(self, job_id, done):
        deadline = time.monotonic() + WAIT_S
        while not ((job := self.job(job_id)) and done(job)):
            assert time.monotonic() < deadline, f"waited {WAIT_S} s for {job_id}, last seen: {job}"
            time.sleep(0.1)
        return job

    def end(self, job_id):
        return self.until(job_id, lambda job: job.state.final)

    def cancel(self, job_id):
        answer = self.machine.run(self.scheduler.cancel_script(job_id, self.root))
        self.scheduler.parse_cancel(*answer)

    def output(self, attempt=1):
        path = f"{self.plan.job_dir}/{contract.job_output(attempt)}"
        return self.machine.run(f"cat {shlex.quote(path)}")[1]


@pytest.fixture(params=["local", pytest.param("slurm", marks=pytest.mark.cluster)])
def site(request, tmp_path):
    if request.param == "local":
        scheduler = make_scheduler("local", python=sys.executable, runtime_dir=str(REPOSITORY))
        site = Site(scheduler, Here(), str(tmp_path))
    else:
        try:
            cluster = request.getfixturevalue("cluster")
        except pytest.FixtureLookupError:
            pytest.skip("no fixture `cluster` yet")
        root = f"{cluster.home}/schedulers-{time.time_ns()}"
        site = Site(make_scheduler("slurm"), cluster, root)
    yield site
    for job_id in site.ids:
        site.cancel(job_id)
        site.end(job_id)
    site.machine.run(f"rm -rf {shlex.quote(site.root)}")


def test_a_job_runs_in_its_folder_and_appends_its_output(site):
    job_id = site.submit('echo "arg=$1 id=${SLURM_JOB_ID:-$DLCTL_JOB_ID}"; pwd')
    job = site.end(job_id)
    assert (job.state, job.name, job.comment) == (JobState.COMPLETED, "t-1.1", "dlctl:t-1.1")
    assert site.output().splitlines() == [f"arg=1 id={job_id}", site.plan.job_dir]


def test_each_attempt_is_its_own_job_and_a_nonzero_exit_code_is_failed(site):
    first = site.end(site.submit("echo $1", attempt=1))
    second = site.end(site.submit("echo $1; exit 3", attempt=2))
    assert (first.name, second.name) == ("t-1.1", "t-1.2")
    assert site.output(2) == "2\n"
    assert (second.state, second.reason) == (JobState.FAILED, "NonZeroExitCode")


def test_cancel_ends_a_running_job_and_is_repeatable(site):
    job_id = site.submit("sleep 600")
    site.until(job_id, lambda job: job.state is JobState.RUNNING)
    site.cancel(job_id)
    assert site.end(job_id).state is JobState.CANCELLED
    site.cancel(job_id)
    site.cancel("999999")


def test_a_lost_answer_is_found_by_its_token(site):
    job_id = site.submit("sleep 600", training_id="lost-1")
    answer = site.machine.run(site.scheduler.queue_script(site.root))
    tokens = {job.comment: job.job_id for job in site.scheduler.parse_queue(*answer)}
    assert tokens["dlctl:lost-1.1"] == job_id


def test_the_history_knows_the_exit_code_if_it_knows_the_job(site):
    job_id = site.submit("exit 5")
    listed = site.end(job_id)
    question = site.scheduler.history_script([job_id])
    if question is None:
        assert listed.exit_code == "5:0"
        return
    known = {job.job_id: job for job in site.scheduler.parse_history(*site.machine.run(question))}
    if job_id in known and known[job_id].state.final:  # the accounting may lag behind
        assert (known[job_id].state, known[job_id].exit_code) == (JobState.FAILED, "5:0")
