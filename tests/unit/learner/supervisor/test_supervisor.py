"""The supervisor as the job script runs it, with one learner or with plain processes."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from node_job import SAVER, SLEEPER, Job, alive, kill, printed_pid, wait_until

from dlctl import contract
from dlctl.contract import (
    DataStore,
    HangPolicy,
    Lifecycle,
    Next,
    ResultsIndex,
    State,
    StopRules,
    VerdictKind,
)
from learner.supervisor.attempt import Supervisor
from learner.supervisor.control import Control, EndRequest
from learner.system.signals import HaltFlag

PY = shlex.quote(sys.executable)


def test_completes_with_indexed_results(tmp_path):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("train.py", "import os; open(os.environ['RESULT_DIR'] + '/m odel', 'w').write('ab')")
    verdict = job.run()
    assert (verdict.state, job.code_seen) == (State.COMPLETED, 0), job.output
    index = contract.read_record(ResultsIndex, job.dir / contract.RESULTS_INDEX)
    assert index.files == [
        contract.ResultFile(
            "m odel", 2, "fb8e20fc2e4c3f248c60c39bd652f3c1347298bb977b8b4d5903b85055620603"
        )
    ]
    assert job.status().state is State.COMPLETED
    assert job.status(role="supervisor").state is State.COMPLETED
    for word in ("DEPLOYING", "DOWNLOADING", "TRAINING", "STORING", "COMPLETED"):
        assert word in job.output


@pytest.mark.first("*nope_nope*", "no-such*", "echo*", "kill*")
@pytest.mark.parametrize(
    ("command", "reason", "hint"),
    [
        ("echo so it goes; exit 3", "exit code 3: so it goes", "dlctl logs"),
        ("no-such-program --x", "not found", "framework.command"),
        (
            f"{PY} -c 'import nope_nope'",
            "No module named 'nope_nope'",
            "`requirements` in the manifest and submit again: dlctl submit",
        ),
        ("kill -9 $$", "signal 9, perhaps by its memory limit (1 GiB", "--memory"),
    ],
)
def test_failure_names_cause_and_hint(tmp_path, command, reason, hint):
    job = Job(tmp_path, command)
    verdict = job.run()
    assert (verdict.state, job.code_seen) == (State.FAILED, 1)
    assert reason in verdict.reason
    assert hint in verdict.hint
    assert verdict.evidence.rank == 0
    assert verdict.evidence.last_lines == [x for x in job.log().splitlines() if x]
    assert "Traceback" not in verdict.reason
    path = f"its whole log is {job.dir}/attempts/1/learner-0.log"
    assert (path in job.output) is ("See its whole log" not in job.output)
    assert "  | " not in job.output


@pytest.mark.slow
def test_a_command_fails_at_its_users_line_not_in_a_package(tmp_path):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("net.py", "import json\ndef read():\n    return json.loads('{')\n")
    job.write("train.py", "import net\nnet.read()\n")
    verdict = job.run()
    assert ": net.py:3: json.decoder.JSONDecodeError: Expecting" in verdict.reason
    shown = "\n".join(verdict.evidence.last_lines)
    assert 'File "net.py", line 3, in read' in shown and "decoder.py" in job.log()
    assert "  … 3 calls in packages, the last at json/decoder.py:" in shown


@pytest.mark.slow
def test_a_full_disk_for_the_output_changes_no_verdict(tmp_path):
    job = Job(tmp_path, "true")
    job.env.pop("PYTHONUNBUFFERED", None)
    with Path("/dev/full").open("w") as full:
        verdict = job.finish(job.start(full))
    assert (verdict.state, job.code_seen) == (State.COMPLETED, 0)


@pytest.mark.slow
@pytest.mark.parametrize("full", [False, True])
def test_when_logs_grow_is_noted_and_a_full_disk_for_the_notes_does_no_harm(tmp_path, full):
    job = Job(tmp_path, "echo a; sleep 1.2; echo b")
    logs = [job.dir / contract.job_output(1), job.dir / contract.learner_log(1, 0)]
    notes = [job.dir / contract.times_file(str(log.relative_to(job.dir))) for log in logs]
    logs[0].parent.mkdir(parents=True, exist_ok=True)
    for path in notes:
        if full:
            path.symlink_to("/dev/full")
    with logs[0].open("w") as output:
        verdict = job.finish(job.start(output))
    assert (verdict.state, job.code_seen) == (State.COMPLETED, 0)
    if full:
        return
    job_notes, learner_notes = (
        list(contract.parse_notes(path.read_bytes().splitlines())) for path in notes
    )
    assert job_notes[-1][1] == logs[0].stat().st_size, "the verdict is noted, too"
    assert [size for _, size in learner_notes] == [2, 4]
    times = [time for time, _ in learner_notes]
    assert times[1] - times[0] > 0.9
    started = [time for time, size in job_notes if b"TRAINING" in logs[0].read_bytes()[:size]]
    assert started[0] < times[0] and times[1] < job_notes[-1][0]


def test_the_preflight_stops_a_syntax_error_in_the_model_file(tmp_path):
    job = Job(tmp_path, job="train.py")
    job.write("train.py", "import os\ndef build(:\n    pass\n")
    verdict = job.run()
    assert verdict.state is State.FAILED
    assert "train.py:2: SyntaxError" in verdict.reason
    assert "`def build(:`" in verdict.reason
    assert job.status() is None


def test_the_preflight_stops_missing_data(tmp_path):
    store = DataStore("s", "mount_volume", path=str(tmp_path), training_data="not here")
    verdict = Job(tmp_path, "true", data_stores=[store]).run()
    assert verdict.state is State.FAILED
    assert f"{str(tmp_path / 'not here')!r}" in verdict.reason
    assert "not there" in verdict.reason


def test_the_preflight_stops_a_missing_secret(tmp_path):
    verdict = Job(tmp_path, "true", secret_env={"TOKEN": "env:NOT_SET_ANYWHERE"}).run()
    assert verdict.state is State.FAILED
    assert "NOT_SET_ANYWHERE" in verdict.reason


def test_a_missing_launcher_is_named(tmp_path):
    job = Job(tmp_path, "true", launch=contract.Launch("srun", ["no-such-srun"]))
    verdict = job.run()
    assert verdict.state is State.FAILED
    assert "'no-such-srun'" in verdict.reason
    assert "here" in verdict.hint


def test_an_unreadable_plan_still_leaves_a_verdict(tmp_path):
    job = Job(tmp_path, "true")
    (job.dir / contract.PLAN).write_text("{}")
    verdict = job.run()
    assert verdict.state is State.FAILED
    assert "Plan.training_id is missing" in verdict.reason


def test_a_crash_of_the_supervisor_leaves_a_verdict(tmp_path):
    job = Job(tmp_path, "true")
    (job.dir / contract.results_dir(1)).write_text("a file where a folder has to be")
    verdict = job.run()
    assert verdict.state is State.FAILED
    assert "FileExistsError" in verdict.reason


@pytest.mark.slow
def test_one_store_serves_the_data_and_receives_the_results(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.txt").write_text("data")
    store = DataStore("s", "mount_volume", str(tmp_path), "in", "out")
    job = Job(tmp_path, 'cp "$DATA_DIR/x.txt" "$RESULT_DIR/y.txt"', data_stores=[store])
    assert job.run().state is State.COMPLETED, job.output
    assert (tmp_path / "out" / job.plan.training_id / "y.txt").read_text() == "data"


def test_results_that_cannot_be_indexed_fail_the_attempt(tmp_path):
    job = Job(tmp_path, 'mkdir -p "$RESULT_DIR/../results.json/x"')
    verdict = job.run()
    assert verdict.state is State.FAILED
    assert verdict.reason.startswith("Training ended well, but its results can't be indexed: ")
    assert verdict.hint.endswith(
        f"then run: dlctl resume {job.plan.training_id} (it does not train again)"
    )


def test_results_that_cannot_be_stored_fail_the_attempt(tmp_path):
    (tmp_path / "out").write_text("no folder")
    store = DataStore("s", "mount_volume", str(tmp_path), None, "out")
    verdict = Job(tmp_path, 'echo 1 >"$RESULT_DIR/y"', data_stores=[store]).run()
    assert verdict.state is State.FAILED
    assert "can't be stored in data store 's'" in verdict.reason
    assert "dlctl fetch results" in verdict.hint


@pytest.mark.first("; touch*")
@pytest.mark.parametrize("tail", ["", " | cat", "; touch more"])
def test_a_halt_request_saves_and_halts(tmp_path, tail):
    job = Job(tmp_path, f"{PY} train.py{tail}")
    job.write("train.py", SAVER)
    process = job.start()
    pid = printed_pid(job)
    job.ask(contract.HALT_REQUEST)
    verdict = job.finish(process)
    assert (verdict.state, job.code_seen) == (State.HALTED, 0), job.output
    assert f"dlctl resume {job.plan.training_id}" in verdict.hint
    assert (job.dir / contract.CHECKPOINTS / "saved-0").exists()
    assert not (job.code / "more").exists()
    assert not alive(pid)


@pytest.mark.slow
def test_a_program_that_ignores_the_halt_signal_ends_as_halted(tmp_path):
    deaf = "trap '' USR2 TERM; echo pid $$ ready; while :; do sleep 1; done"
    job = Job(tmp_path, deaf, resources={"halt_margin_s": 1})
    process = job.start()
    pid = printed_pid(job)
    job.ask(contract.HALT_REQUEST)
    verdict = job.finish(process)
    assert (verdict.state, verdict.reason) == (
        State.HALTED, "Halted on request, before all was saved.",
    )  # fmt: skip
    assert job.status().reason == "did not stop in time and was killed"
    assert not alive(pid)


def test_a_program_that_dies_of_the_halt_signal_ends_as_halted(tmp_path):
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"; touch more')
    process = job.start()
    pid = printed_pid(job)
    job.ask(contract.HALT_REQUEST)
    assert job.finish(process).state is State.HALTED
    assert not alive(pid)
    assert not (job.code / "more").exists()


@pytest.mark.slow
def test_a_program_that_reports_no_number_is_ended_and_not_retried(tmp_path):
    told = """{"step": 4, "metrics": {"loss": NaN}}"""
    job = Job(
        tmp_path, f"echo '{told}' >\"$DLCTL_PROGRESS_FILE\"; echo pid $$ ready; exec sleep 600",
        stop=StopRules(not_a_number=True), lifecycle=Lifecycle(retries=3),
    )  # fmt: skip
    process = job.start()
    pid = printed_pid(job)
    verdict = job.finish(process)
    assert (verdict.state, verdict.kind) == (State.FAILED, VerdictKind.NOT_A_NUMBER), job.output
    assert verdict.reason == "The loss is nan at step 4."
    assert verdict.action.kind is Next.STOP
    assert not alive(pid)


HANGS = """\
import os, pathlib, time
from learner.job.metrics import Progress
from learner.job.stacks import register
register()
progress = Progress(pathlib.Path(os.environ["DLCTL_PROGRESS_FILE"]))

def stall():
    time.sleep(600)

for step in range(1, 21):
    time.sleep(0.02)
    progress.update(step, 1, {}, force=True)
stall()
"""


@pytest.mark.slow
def test_a_learner_that_hangs_is_ended_with_its_stacks(tmp_path):
    job = Job(tmp_path, f"{PY} train.py", hang=HangPolicy(floor_s=1))
    job.write("train.py", HANGS)
    verdict = job.run()
    assert (verdict.state, verdict.kind) == (State.FAILED, VerdictKind.HUNG), job.output
    assert "at train.py:8 in stall" in verdict.reason
    text = (job.dir / contract.stacks_file(1, 0)).read_text()
    assert 'train.py", line 8 in stall' in text and "(sleeping)" in text  # what Linux knows
    assert job.status().state is State.CANCELLED


def test_a_near_time_limit_halts_the_training(tmp_path):
    job = Job(tmp_path, f"{PY} train.py", resources={"time_s": 3605, "halt_margin_s": 3600})
    job.write("train.py", SAVER)
    job.write_plan(resources=dataclasses.replace(job.plan.resources, time_s=3606))
    verdict = job.run()
    assert verdict.state is State.HALTED, job.output
    assert "time limit is near" in verdict.reason


@pytest.mark.parametrize(
    ("number", "cancel", "state", "reason"),
    [
        (signal.SIGUSR2, False, State.HALTED, "time limit is near"),
        (signal.SIGTERM, False, State.HALTED, "scheduler ended the job"),
        (signal.SIGTERM, True, State.CANCELLED, "ancelled on request"),
    ],
)
def test_signals_of_the_scheduler_end_the_attempt(tmp_path, number, cancel, state, reason):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("train.py", SAVER)
    process = job.start()
    pid = printed_pid(job)
    if cancel:
        job.ask(contract.CANCEL_REQUEST)
    process.send_signal(number)
    verdict = job.finish(process)
    assert verdict.state is state, job.output
    assert reason in verdict.reason
    assert job.code_seen == (0 if state is State.HALTED else 1)
    assert not alive(pid)


def test_a_learner_that_gets_sigterm_with_the_whole_job_has_not_failed(tmp_path):
    """Slurm ends a job this way if it does not track processes by cgroup."""
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"')
    process = job.start()
    pid = printed_pid(job)
    process.send_signal(signal.SIGTERM)
    os.kill(pid, signal.SIGTERM)
    verdict = job.finish(process)
    assert verdict.state is State.HALTED, job.output
    assert "scheduler ended the job" in verdict.reason


class LateControl:
    """A control whose request comes late: the job gets SIGTERM after its steps."""

    def __init__(self, requested: EndRequest) -> None:
        self.looks = 0
        self.requested = requested

    def request(self, *, fresh: bool = False) -> EndRequest | None:
        self.looks += 1
        return self.requested if self.looks > 3 else None

    def wait(self, timeout_s: float) -> None:
        pass


class EndedStep:
    exit_code = 143


@pytest.mark.parametrize(
    ("requested", "state", "reason"),
    [
        (EndRequest("halt", "the scheduler ended the job", 9.0, terminated=True), State.HALTED,
         "The scheduler ended the job, before the learners started."),
        (EndRequest("stop", "cancelled on request", 9.0, VerdictKind.CANCELLED), State.CANCELLED,
         "Cancelled on request, before the learners started."),
        (EndRequest("halt", "halted on request", 9.0), State.FAILED, ""),
    ],
)  # fmt: skip
def test_a_preflight_ended_with_the_whole_job_has_not_failed(
    tmp_path, monkeypatch, requested, state, reason
):
    """A preflight that SIGTERM ends proves nothing about the site's MPI."""
    monkeypatch.setattr("learner.supervisor.steps.whole_step", lambda *_: EndedStep())
    job = Job.on_fake_srun(tmp_path, 2, "true")
    control = LateControl(requested)
    verdict = Supervisor(job.dir, 1, job.plan, control).run()  # type: ignore[arg-type]
    assert verdict.state is state
    assert verdict.reason == reason or not reason
    early = Supervisor(job.dir, 1, job.plan, control).ended_early()  # type: ignore[arg-type]
    assert (early is not None) is bool(reason)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cancel_that_came_since_the_last_look_is_seen_by_a_fresh_one(tmp_path, fresh):
    job = Job(tmp_path, "true")
    control = Control(job.dir, job.plan, HaltFlag())
    assert control.request() is None
    (job.dir / contract.CONTROL).mkdir(exist_ok=True)
    job.ask(contract.CANCEL_REQUEST)
    assert (control.request(fresh=fresh) is not None) is fresh


def test_no_learner_outlives_a_killed_supervisor(tmp_path):
    job = Job(tmp_path, f'{PY} -c "{SLEEPER}"')
    process = job.start()
    pid = printed_pid(job)
    kill(process.pid)
    process.communicate()
    wait_until(lambda: not alive(pid))
    wait_until(lambda: not alive(job.status().pid))


def test_worlds_of_size_one_are_refused_with_both_numbers(tmp_path):
    pytest.importorskip("mpi4py.MPI")
    job = Job.on_fake_srun(tmp_path, 2, "touch ran")
    verdict = job.run()
    assert (verdict.state, job.code_seen) == (State.FAILED, 1), job.output
    assert "2 worlds of size 1" in verdict.reason
    assert "the plan has 2 learners" in verdict.reason
    assert "launcher.mpi" in verdict.hint and "srun --mpi=list" in verdict.hint
    assert not (job.code / "ran").exists()


def test_a_launcher_that_starts_too_few_processes_is_refused(tmp_path):
    job = Job.on_fake_srun(tmp_path, 1, "true")
    job.write_plan(resources=dataclasses.replace(job.plan.resources, learners=3))
    verdict = job.run()
    assert "The plan has 3 learners, but srun started 1" in verdict.reason


def test_odd_names_arrive_unchanged(tmp_path):
    root = tmp_path / "a b'\"$(x)\nü"
    root.mkdir()
    job = Job(root, f"{PY} -c 'import os; print(repr(os.environ[\"X\"]))'", env={"X": "q'\n\"é"})
    assert job.run().state is State.COMPLETED, job.output
    assert job.log() == repr("q'\n\"é") + "\n"


def test_user_files_do_not_shadow_dlctls_modules(tmp_path):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("typing.py", "raise SystemExit('shadowed typing')")
    job.write("learner.py", "name = 'mine'")
    job.write("train.py", "import learner; print(learner.name)")
    verdict = job.finish(job.start_afresh())
    assert verdict.state is State.COMPLETED, job.output + job.log()
    assert job.log() == "mine\n"


def test_an_attempt_that_was_given_up_stops_when_its_successor_begins(tmp_path):
    """A node that returns after a network partition must not train beside the new attempt."""
    job = Job(tmp_path, f"{PY} train.py")
    job.write("train.py", SLEEPER)
    begin = job.dir / contract.submit_begin(2)
    begin.parent.mkdir(parents=True)
    begin.write_text("token")
    verdict = job.run()
    assert verdict.state is State.CANCELLED
    assert "later attempt has taken over" in verdict.reason


ENDS_WITH_ITS_FOLDER = """\
import os, sys, time
print('pid', os.getpid(), 'ready', flush=True)
while os.path.exists(os.environ['RESULT_DIR']):
    time.sleep(0.05)
sys.exit(1)
"""


@pytest.mark.first("*time.sleep(600)*")
@pytest.mark.parametrize("program", [SLEEPER, ENDS_WITH_ITS_FOLDER])
def test_a_removed_job_directory_is_not_created_again(tmp_path, program):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("train.py", program)
    process = job.start()
    pid = printed_pid(job)
    job.dir.rename(tmp_path / "removed")
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert not alive(pid)
    assert not job.dir.exists()
