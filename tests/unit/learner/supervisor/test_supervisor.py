"""The supervisor as the job script runs it, with one learner or with plain processes."""

import shlex
import signal
import sys

import pytest
from node_job import SAVER, SLEEPER, TRAINING_ID, Job, alive, printed_pid

from dlctl import contract
from dlctl.contract import DataStore, ResultsIndex, State, VerdictKind
from learner.supervisor.attempt import Supervisor
from learner.supervisor.control import Control, EndRequest
from learner.system.signals import HaltFlag

PY = shlex.quote(sys.executable)


def test_completes_with_indexed_results(tmp_path):
    job = Job(tmp_path, f"{PY} train.py")
    job.write("train.py", "import os; open(os.environ['RESULT_DIR'] + '/m odel', 'w').write('ab')")
    verdict = job.run()
    assert (verdict.state, job.exit_code) == (State.COMPLETED, 0), job.output
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
            "`requirements` in the manifest, then: dlctl resume t-",
        ),
        ("kill -9 $$", "signal 9, from outside, or because the machine ran out of", "resume t-"),
    ],
)
def test_failure_names_cause_and_hint(tmp_path, command, reason, hint):
    job = Job(tmp_path, command)
    verdict = job.run()
    assert (verdict.state, job.exit_code) == (State.FAILED, 1)
    assert reason in verdict.reason
    assert hint in verdict.hint
    assert verdict.evidence.rank == 0
    assert verdict.evidence.last_lines == [x for x in job.log().splitlines() if x]
    assert "Traceback" not in verdict.reason
    path = f"its whole log is {job.dir}/attempts/1/learner-0.log"
    assert (path in job.output) is ("See its whole log" not in job.output)
    assert "  | " not in job.output


def test_a_secret_is_masked_where_the_watchdog_died_too(tmp_path):
    """The supervisor reads the log of a learner itself that was killed with its watchdog."""
    secret = tmp_path / "token"
    job = Job(tmp_path, "echo token=$API_TOKEN; kill -9 $PPID $$",
              secret_env={"API_TOKEN": f"file:{secret}"})  # fmt: skip
    secret.write_text("hunter2-hunter2")
    secret.chmod(0o600)
    verdict = job.run()
    assert "token=***" in verdict.evidence.last_lines
    assert "hunter2" not in job.output


@pytest.mark.slow
def test_a_failure_that_the_exit_code_does_not_tell_is_remarked(tmp_path):
    """COMPLETED all the same: the exit code is the program's word."""
    job = Job(tmp_path, f"{shlex.quote(sys.executable)} train.py 2>&1 | tee log.txt")
    job.write("train.py", "print('epoch 1')\nraise ValueError('no labels')\n")
    verdict = job.run()
    assert verdict.state is State.COMPLETED
    assert verdict.reason.startswith(
        "The learner ended with exit code 0; but the log of learner 0 ends with a traceback "
        "(ValueError: no labels); framework.command pipes the program into tee"
    )


def test_when_logs_grow_is_noted(tmp_path):
    job = Job(tmp_path, "echo a; sleep 1.2; echo b")
    logs = [job.dir / contract.job_output(1), job.dir / contract.learner_log(1, 0)]
    logs[0].parent.mkdir(parents=True, exist_ok=True)
    with logs[0].open("w") as output:
        verdict = job.finish(job.start(output))
    assert (verdict.state, job.exit_code) == (State.COMPLETED, 0)
    files = [job.dir / contract.times_file(str(log.relative_to(job.dir))) for log in logs]
    job_notes, learner_notes = (
        list(contract.parse_notes(path.read_bytes().splitlines())) for path in files
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


def store_of(root, **folders):
    return {"data_stores": [DataStore("s", "mount_volume", path=str(root), **folders)]}


FAULTS = {
    "no data": (
        lambda root: Job(root, "true", **store_of(root, training_data="not here")),
        "not here' (data store 's') is not there", "",
    ),
    "no secret": (
        lambda root: Job(root, "true", secret_env={"TOKEN": "env:NOT_SET_ANYWHERE"}),
        "NOT_SET_ANYWHERE", "",
    ),
    "no launcher": (
        lambda root: Job(root, "true", launch=contract.Launch("srun", ["no-such-srun"])),
        "'no-such-srun'", "here",
    ),
    "too few processes": (
        lambda root: Job.on_fake_srun(root, 1, "true", resources={"learners": 3}),
        "The plan has 3 learners, but srun started 1", "",
    ),
    "results that can't be indexed": (
        lambda root: Job(root, 'mkdir -p "$RESULT_DIR/../results.json/x"'),
        "Training ended well, but its results can't be indexed: ",
        f"then run: dlctl resume {TRAINING_ID} (it does not train again)",
    ),
    "results that can't be stored": (
        lambda root: Job(root, 'touch "$RESULT_DIR/y"', **store_of(root, training_results="file")),
        "can't be stored in data store 's'", "dlctl fetch results",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_beside_the_program_fails_the_attempt_with_its_cause(tmp_path, fault):
    make, reason, hint = FAULTS[fault]
    (tmp_path / "file").write_text("no folder")
    verdict = make(tmp_path).run()
    assert verdict.state is State.FAILED
    assert reason in verdict.reason and hint in verdict.hint


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        (contract.PLAN, "{}", "Plan.training_id is missing"),
        (contract.results_dir(1), "a file where a folder has to be", "FileExistsError"),
    ],
)
def test_a_crash_of_the_supervisor_leaves_a_verdict(tmp_path, path, text, reason):
    job = Job(tmp_path, "true")
    (job.dir / path).write_text(text)
    verdict = job.run()
    assert verdict.state is State.FAILED and reason in verdict.reason


@pytest.mark.first("more follows", "dies of the signal")
@pytest.mark.parametrize(
    ("program", "tail"),
    [(SAVER, ""), (SAVER, " | cat"), (SAVER, "; touch more"), (SLEEPER, "; touch more")],
    ids=["alone", "piped", "more follows", "dies of the signal"],
)
def test_a_halt_request_saves_and_halts(tmp_path, program, tail):
    job = Job(tmp_path, f"{PY} train.py{tail}")
    job.write("train.py", program)
    process = job.start()
    pid = printed_pid(job)
    job.ask(contract.HALT_REQUEST)
    verdict = job.finish(process)
    assert (verdict.state, job.exit_code) == (State.HALTED, 0), job.output
    assert f"dlctl resume {TRAINING_ID}" in verdict.hint
    assert (job.dir / contract.CHECKPOINTS / "saved-0").exists() == (program == SAVER)
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
    assert job.exit_code == (0 if state is State.HALTED else 1)
    assert not alive(pid)


class LateControl:
    """A control whose request comes late: the job gets SIGTERM after its steps."""

    def __init__(self, requested):
        self.looks = 0
        self.requested = requested

    def request(self, *, fresh=False):
        self.looks += 1
        return self.requested if self.looks > 3 else None

    def wait(self, timeout_s):
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
    verdict = Supervisor(job.dir, 1, job.plan, control).run()
    assert verdict.state is state
    assert verdict.reason == reason or not reason
    early = Supervisor(job.dir, 1, job.plan, control).ended_early()
    assert (early is not None) is bool(reason)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_cancel_that_came_since_the_last_look_is_seen_by_a_fresh_one(tmp_path, fresh):
    job = Job(tmp_path, "true")
    control = Control(job.dir, job.plan, HaltFlag())
    assert control.request() is None
    (job.dir / contract.CONTROL).mkdir(exist_ok=True)
    job.ask(contract.CANCEL_REQUEST)
    assert (control.request(fresh=fresh) is not None) is fresh


def test_worlds_of_size_one_are_refused_with_both_numbers(tmp_path):
    pytest.importorskip("mpi4py.MPI")
    job = Job.on_fake_srun(tmp_path, 2, "touch ran")
    verdict = job.run()
    assert (verdict.state, job.exit_code) == (State.FAILED, 1), job.output
    assert "2 worlds of size 1" in verdict.reason
    assert "the plan has 2 learners" in verdict.reason
    assert "launcher.mpi" in verdict.hint and "srun --mpi=list" in verdict.hint
    assert not (job.code / "ran").exists()


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
