"""The local queue with real processes. Every wait is bounded; every job is ended and looked for."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from repository import REPOSITORY
from zygote import light

from dlctl.contract.ground.processes import started as start_time
from dlctl.scheduler import JobState
from dlctl.scheduler.rows import parse_rows
from learner.local_queue.records import Queue, QueuedJob

PROGRAM = REPOSITORY / "learner" / "localqueue.py"
WAIT_S = 60


def wait_for(question, what):
    deadline = time.monotonic() + WAIT_S
    while not (answer := question()):
        assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}"
        time.sleep(0.05)
    return answer


class Bench:
    def __init__(self, folder):
        self.root, self.folder = folder / "ro ot", folder
        self.count = 0

    def call(self, verb, *arguments, env=None):
        return light().run(
            PROGRAM, verb, f"--root={self.root}", *arguments, env=env, timeout_s=WAIT_S
        )

    def arguments(self, script, token=None, **options):
        self.count += 1
        job_dir = self.folder / f"jöb {self.count}"
        job_dir.mkdir()
        (job_dir / "job.sbatch").write_text("#!/bin/bash\n" + script + "\n")
        options = {"total_cpus": 2, "kill_wait_s": 0.5, **options}
        return [
            f"--token={token or f't.{self.count}'}", f"--job-dir={job_dir}", "--script=job.sbatch",
            "--attempt=1", "--output=attempts/1/slurm.out",
            *(f"--{name.replace('_', '-')}={value}" for name, value in options.items()),
        ]  # fmt: skip

    def submit(self, script, token=None, env=None, **options):
        done = self.call("submit", *self.arguments(script, token, **options), env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self):
        done = self.call("list")
        assert (done.returncode, done.stderr) == (0, "")
        return {job.job_id: job for job in parse_rows(done.stdout)}

    def wait(self, job_id, *states):
        return wait_for(
            lambda: (job := self.jobs()[job_id]).state in states and job, f"{job_id} in {states}"
        )

    def end(self, job_id):
        return wait_for(
            lambda: (job := self.jobs()[job_id]).state.final and job, f"end of {job_id}"
        )

    def record(self, job_id):
        paths = list((self.root / "queue").glob(f"*/{int(job_id):09d}.json"))
        return json.loads(paths[0].read_text())

    def output(self, number=1):
        path = self.folder / f"jöb {number}" / "attempts/1/slurm.out"
        return path.read_text() if path.exists() else ""

    def pid_in(self, name):
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"), name)
        pid = int(path.read_text())
        return pid, start_time(pid)

    def alive(self):
        """Every process that belongs to this bench: runners and jobs."""
        mark = os.fsencode(str(self.root))
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if not (entry.name.isdigit() and start_time(int(entry.name))):
                    continue
                if mark in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    for job_id, job in bench.jobs().items():
        if not job.state.final:
            bench.call("cancel", job_id)
    wait_for(lambda: not bench.alive(), "all processes to be gone")


def test_a_job_runs_in_its_folder_without_a_terminal(bench):
    job_id = bench.submit('echo "arg=$1 id=$DLCTL_JOB_ID"; pwd; cat; tty; exit 0')
    job = bench.end(job_id)
    assert (job.state, job.exit_code, job.name) == (JobState.COMPLETED, "0:0", "t.1")
    lines = bench.output().splitlines()
    assert lines[:2] == [f"arg=1 id={job_id}", str(bench.folder / "jöb 1")]
    assert lines[2:] == ["not a tty"]


@pytest.mark.parametrize(("script", "exit_code"), [("exit 7", "7:0"), ("kill -KILL $$", "0:9")])
def test_a_failed_job_keeps_its_exit_code(bench, script, exit_code):
    job = bench.end(bench.submit(script))
    assert (job.state, job.exit_code, job.reason) == (JobState.FAILED, exit_code, "NonZeroExitCode")


def test_a_token_is_submitted_once(bench):
    first = bench.submit("echo ran", token="same.1")
    assert bench.submit("echo ran", token="same.1") == first
    bench.end(first)
    assert bench.submit("echo ran", token="same.1") == first
    assert len(bench.jobs()) == 1
    assert bench.output(1) == "ran\n"
    assert bench.output(2) == bench.output(3) == ""


def test_simultaneous_submissions_get_different_ids(bench):
    calls = [
        subprocess.Popen(
            [sys.executable, "-I", PROGRAM, "submit", f"--root={bench.root}",
             *bench.arguments("true", token=f"x{number % 4}.1")],
            stdout=subprocess.PIPE,
        )
        for number in range(8)
    ]  # fmt: skip
    ids = [int(call.communicate(timeout=WAIT_S)[0]) for call in calls]
    assert sorted(set(ids)) == [1, 2, 3, 4]
    assert ids[:4] == ids[4:]
    assert all(bench.end(str(job_id)).state is JobState.COMPLETED for job_id in set(ids))


def test_jobs_wait_in_order_for_their_cpus(bench):
    gate = bench.folder / "gate"
    wait = f"while [ ! -e {gate} ]; do sleep 0.05; done"
    log = bench.folder / "order"
    small = bench.submit(f"{wait}; echo small >>{log}", cpus=1)
    bench.wait(small, JobState.RUNNING)
    wide = bench.submit(f"echo wide >>{log}", cpus=99)  # capped at the machine's two
    late = bench.submit(f"echo late >>{log}", cpus=1)  # would fit, but the wide one is first
    jobs = bench.jobs()
    assert (jobs[wide].state, jobs[wide].reason) == (JobState.PENDING, "Resources")
    assert jobs[late].state is JobState.PENDING
    gate.touch()
    for job_id in (small, wide, late):
        assert bench.end(job_id).state is JobState.COMPLETED
    assert log.read_text().split() == ["small", "wide", "late"]


def test_two_jobs_that_fit_run_together(bench):
    meet = 'touch "{0}"; while [ ! -e "{1}" ]; do sleep 0.05; done'
    a, b = bench.folder / "a", bench.folder / "b"
    ids = [bench.submit(meet.format(a, b)), bench.submit(meet.format(b, a))]
    assert [bench.end(job_id).state for job_id in ids] == [JobState.COMPLETED] * 2


@pytest.mark.slow
def test_usr2_comes_before_the_time_limit_ends_a_job(bench):
    script = "trap 'echo usr2; exec true' USR2\nwhile :; do sleep 0.05; done"
    assert bench.end(bench.submit(script, time_s=60, halt_margin_s=57)).state is JobState.COMPLETED
    assert bench.output() == "usr2\n"
    stubborn = bench.submit("trap '' TERM USR2; while :; do sleep 0.05; done", time_s=1)
    job = bench.end(stubborn)
    assert (job.state, job.reason, job.exit_code) == (JobState.TIMEOUT, "TimeLimit", "0:9")


ESCAPING = """trap '' TERM
setsid bash -c 'trap "" TERM; echo $$ >"{0}/escaped"; while :; do sleep 0.05; done' &
while :; do sleep 0.05; done"""


def test_cancel_ends_every_process_of_a_job(bench):
    job_id = bench.submit(ESCAPING.format(bench.folder))
    pid, started = bench.pid_in("escaped")
    assert bench.call("cancel", job_id).returncode == 0
    assert bench.end(job_id).state is JobState.CANCELLED
    assert start_time(pid) != started or started == 0
    assert bench.call("cancel", job_id).returncode == 0
    assert bench.call("cancel", "4711").returncode == 0


def test_cancel_asks_before_it_kills(bench):
    job_id = bench.submit(
        "trap 'echo asked; exit 0' TERM; echo up\nwhile :; do sleep 0.05; done", kill_wait_s=50
    )
    wait_for(lambda: "up" in bench.output(), "the job")
    bench.call("cancel", job_id)
    job = bench.end(job_id)
    # bash may also report its sleep as Terminated: the sleep belongs to the job.
    said = [line for line in bench.output().splitlines() if line != "Terminated"]
    assert (job.state, said) == (JobState.CANCELLED, ["up", "asked"])


def test_a_cancelled_waiting_job_leaves_the_queue(bench):
    first = bench.submit("sleep 600", cpus=2)
    second = bench.submit("echo never")
    bench.call("cancel", second)
    job = bench.jobs()[second]
    assert (job.state, bench.output(2)) == (JobState.CANCELLED, "")
    bench.call("cancel", first)
    assert bench.end(first).state is JobState.CANCELLED


def test_a_job_behind_another_waits_without_the_queues_lock(bench):
    """Two hundred that polled under the lock kept `submit` and `cancel` waiting for minutes."""
    jobs = [bench.submit("exec sleep 60", cpus=2) for _ in range(3)]
    bench.wait(jobs[0], JobState.RUNNING)
    for job in jobs[1:]:
        wait_for(lambda job=job: bench.record(job)["runner_start"], f"runner of {job}")
    queue = Queue(str(bench.root))
    last = QueuedJob(**bench.record(jobs[2]))
    assert queue.waiting_before(last.id) == int(jobs[1])
    assert queue.waiting_before(int(jobs[1])) is None, "the first is running"
    with queue.lock():
        queue.end(last, "CANCELLED", "cancelled", "0:0")
        wait_for(lambda: start_time(last.runner_pid) != last.runner_start, "end of its runner")


def test_a_job_does_not_overtake_an_older_one_whose_runner_is_still_starting(tmp_path):
    queue = Queue(str(tmp_path))
    older, younger = (
        QueuedJob(
            id=number, token=f"t.{number}", job_dir="", script="", attempt="", output="", cpus=1,
            total_cpus=2, time_s=None, halt_margin_s=0, kill_wait_s=0, host=queue.host,
            submitted_at=time.time(),
        )
        for number in (1, 2)
    )  # fmt: skip
    with queue.lock():
        queue.write(older)
        assert not queue.may_start(younger)
        assert queue.reap() == [], "another runner would not have the submitter's environment"
        queue.write(replace(older, submitted_at=time.time() - 3600))
        assert queue.may_start(younger), "a runner that never came may not block the queue"


def test_processes_that_a_job_leaves_behind_end_with_it(bench):
    job_id = bench.submit(f"setsid sleep 600 & echo $! >'{bench.folder}/escaped'; exit 0")
    pid, started = bench.pid_in("escaped")
    assert bench.end(job_id).state is JobState.COMPLETED
    assert start_time(pid) != started or started == 0


def test_a_killed_runner_ends_its_job(bench):
    job_id = bench.submit(ESCAPING.format(bench.folder))
    pid, started = bench.pid_in("escaped")
    record = wait_for(lambda: (r := bench.record(job_id))["batch_pid"] and r, "the batch pid")
    os.kill(record["runner_pid"], signal.SIGKILL)
    wait_for(lambda: not start_time(record["runner_pid"]), "the runner's end")
    job = bench.jobs()[job_id]
    assert (job.state, job.reason) == (JobState.FAILED, "the job's runner was killed")
    assert start_time(pid) != started or started == 0
    assert not start_time(record["batch_pid"])


@pytest.mark.parametrize("killed", [True, False])
def test_a_waiting_job_has_one_runner_and_another_if_that_was_killed(bench, killed):
    """Two calls of `list` at the same time may each start one."""
    gate = bench.folder / "gate"
    first = bench.submit(f"while [ ! -e {gate} ]; do sleep 0.05; done", cpus=2)
    bench.wait(first, JobState.RUNNING)
    second = bench.submit("echo ran once")
    pid = wait_for(lambda: bench.record(second)["runner_pid"], "the second runner")
    if killed:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not start_time(pid), "the runner's end")
    else:
        assert bench.call("run", second).returncode == 0  # ends at once, though it can't run yet
        assert bench.record(second)["runner_pid"] == pid
    gate.touch()
    assert bench.end(second).state is JobState.COMPLETED
    assert bench.output(2) == "ran once\n"


def test_after_a_reboot_running_jobs_are_lost_and_waiting_ones_run(bench):
    folder = bench.root / "queue" / "active"
    first = bench.submit("true")
    bench.end(first)
    old = {**bench.record(first), "id": 2, "token": "old.1", "state": "RUNNING",
           "boot_id": "another", "runner_pid": os.getpid(),
           "runner_start": start_time(os.getpid())}  # fmt: skip
    folder.joinpath("000000002.json").write_text(json.dumps(old))
    old |= {"id": 3, "token": "old.2", "state": "PENDING"}
    folder.joinpath("000000003.json").write_text(json.dumps(old))
    job = bench.jobs()["2"]
    assert (job.state, job.reason) == (JobState.NODE_FAIL, "the machine was restarted")
    assert bench.end("3").state is JobState.COMPLETED


def test_nothing_dies_with_the_terminal_or_the_submitter(bench):
    gate = bench.folder / "gate"
    arguments = bench.arguments(f"while [ ! -e {gate} ]; do sleep 0.05; done; echo survived")
    master, slave = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "-c", '"$@"; echo done; sleep 600', "-", sys.executable, "-I", PROGRAM, "submit",
         f"--root={bench.root}", *arguments],
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while b"done" not in seen:
        seen += os.read(master, 1000)
    bench.wait("1", JobState.RUNNING)
    os.close(master)
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait(WAIT_S)
    assert bench.jobs()["1"].state is JobState.RUNNING
    gate.touch()
    assert bench.end("1").state is JobState.COMPLETED
    assert bench.output() == "survived\n"


def test_another_launchers_variables_do_not_reach_a_job(bench):
    env = {**os.environ, "SLURM_JOB_ID": "5", "PMI_RANK": "1", "PMIX_RANK": "1", "RANK": "3",
           "OMPI_COMM_WORLD_SIZE": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "DLCTL_JOB_ID": "9",
           "OMPI_MCA_btl": "self", "MY_OWN": "kept", "RANKING": "kept"}  # fmt: skip
    job_id = bench.submit("env", env=env)
    bench.end(job_id)
    seen = dict(line.split("=", 1) for line in bench.output().splitlines() if "=" in line)
    assert not seen.keys() & {"SLURM_JOB_ID", "PMI_RANK", "PMIX_RANK", "RANK", "WORLD_SIZE",
                              "OMPI_COMM_WORLD_SIZE", "MASTER_ADDR"}  # fmt: skip
    assert (seen["OMPI_MCA_btl"], seen["MY_OWN"], seen["RANKING"]) == ("self", "kept", "kept")
    assert seen["DLCTL_JOB_ID"] == job_id


def test_a_job_may_submit_another_that_outlives_it(bench):
    inner = bench.arguments("sleep 0.5; echo inner")
    command = " ".join(f"'{a}'" for a in [sys.executable, "-I", PROGRAM, "submit",
                                         f"--root={bench.root}", *inner])  # fmt: skip
    outer = bench.submit(f"{command}; exit 0")
    assert bench.end(outer).state is JobState.COMPLETED
    assert bench.end("2").state is JobState.COMPLETED
    assert bench.output(1) == "inner\n"


def test_a_missing_script_is_refused(bench):
    arguments = bench.arguments("true")
    (bench.folder / "jöb 1" / "job.sbatch").unlink()
    done = bench.call("submit", *arguments)
    assert done.returncode == 3
    assert "does not exist" in done.stderr
    assert bench.jobs() == {}


def test_a_record_of_a_newer_version_blocks_no_job(bench):
    first = bench.submit("true")
    bench.end(first)
    (bench.root / "queue/active/000000009.json").write_text('{"schema": "from the future"}')
    assert bench.submit("true") == "10"
    assert bench.end("10").state is JobState.COMPLETED
