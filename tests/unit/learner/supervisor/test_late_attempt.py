"""An attempt that was given up wakes up late: it must not win against its successor."""

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from node_job import PATIENCE_S, Job, wait_until
from repository import REPOSITORY

from dlctl import contract
from dlctl.contract import DataStore, ResultsIndex, State, Verdict, VerdictKind
from learner.job.directives import Orders
from learner.storage.index import write_index
from learner.storage.ownership import take_over


def run_attempt(job, attempt, **framework):
    """Run a later attempt, as the job script of a resumption does."""
    (job.dir / contract.attempt_dir(attempt)).mkdir(exist_ok=True)
    (job.dir / contract.submit_begin(attempt)).write_text("token")
    plan = dataclasses.replace(
        job.plan, framework=dataclasses.replace(job.plan.framework, **framework)
    )
    contract.write_whole(job.dir / contract.plan_file(attempt), contract.to_json(plan))
    job.start(attempt=attempt).communicate(timeout=PATIENCE_S)
    verdict = contract.read_record(Verdict, job.dir / contract.verdict_file(attempt))
    assert verdict is not None
    return verdict


def index_of(job, attempt):
    index = contract.read_record(ResultsIndex, job.dir / contract.results_index(attempt))
    assert index is not None
    return {file.path: file.size_bytes for file in index.files}


def group_of(process):
    """Return a supervisor and its descendants, which lead sessions of their own."""
    found = [process.pid]
    for pid in found:
        children = Path(f"/proc/{pid}/task/{pid}/children")
        found += [int(child) for child in children.read_text().split()]
    return found


def signal_all(number, pids):
    """Send a signal to processes; one that waits for a moment (`sleep`) may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def test_an_attempt_that_slept_in_training_publishes_nothing(tmp_path):
    """SIGSTOP, NODE_FAIL, resume, COMPLETED, SIGCONT: `fetch` once brought the old model."""
    store = DataStore("s", "mount_volume", str(tmp_path), None, "out")
    old = ('touch "$LOG_DIR/began"; while [ ! -e "$LOG_DIR/go" ]; do sleep 0.05; done; '
           'echo old >"$RESULT_DIR/model.pt"; touch "$LOG_DIR/late"')  # fmt: skip
    job = Job(tmp_path, old, data_stores=[store])
    with job.start() as late:
        wait_until((job.dir / contract.LOGS / "began").exists)
        frozen = group_of(late)
        signal_all(signal.SIGSTOP, frozen)
        verdict = run_attempt(job, 2, command='printf newer >"$RESULT_DIR/model.pt"')
        assert verdict.state is State.COMPLETED
        (job.dir / contract.LOGS / "go").touch()
        signal_all(signal.SIGCONT, reversed(frozen))
        late.communicate(timeout=PATIENCE_S)
    first = contract.read_record(Verdict, job.dir / contract.verdict_file(1))
    assert first is not None
    assert first.state is not State.COMPLETED
    assert (job.dir / contract.results_dir(2) / "model.pt").read_text() == "newer"
    assert (job.dir / contract.RESULTS / "model.pt").read_text() == "newer"
    assert index_of(job, 2) == {"model.pt": 5}
    assert (tmp_path / "out" / job.plan.training_id / "model.pt").read_text() == "newer"


def test_the_index_of_a_late_attempt_is_not_that_of_its_successor(tmp_path):
    job = Job(tmp_path, 'echo old >"$RESULT_DIR/model.pt"')
    assert job.run().state is State.COMPLETED
    before = index_of(job, 1)
    (job.dir / contract.attempt_dir(2)).mkdir()
    take_over(job.dir, 2, lambda: None)
    (job.dir / contract.results_dir(2) / "model.pt").write_text("newer")
    write_index(job.dir / contract.attempt_dir(2))
    write_index(job.dir / contract.attempt_dir(1))  # what a late supervisor does
    assert index_of(job, 1) == {}
    assert before == {"model.pt": 4}
    top = contract.read_record(ResultsIndex, job.dir / contract.RESULTS_INDEX)
    assert top is not None
    assert [file.size_bytes for file in top.files] == [5]


@pytest.mark.parametrize("between", ["nothing", "a full disk", "an early end"])
def test_results_of_a_lost_attempt_are_copied_so_that_it_can_t_write_into_them(
    tmp_path, monkeypatch, between
):
    """An attempt between that failed, with a verdict, changes nothing: it took nothing over."""
    for attempt in (1, 2, 3):
        (tmp_path / contract.attempt_dir(attempt)).mkdir(parents=True)
    first = take_over(tmp_path, 1, lambda: None)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (first / "log.csv").open("w") as late:
        late.write("1\n")
        late.flush()
        if between == "a full disk":
            with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
                patched.setattr(shutil, "copy2", full)
                take_over(tmp_path, 2, lambda: None)
        if between != "nothing":
            verdict = Verdict(2, "8", State.FAILED, "The file system is full.")
            contract.write_whole(tmp_path / contract.verdict_file(2), contract.to_json(verdict))
        third = take_over(tmp_path, 3, lambda: None)
        late.write("2\n")
    assert (third / "log.csv").read_text() == "1\n"
    assert not first.exists() or between != "nothing"


@pytest.mark.slow
def test_a_training_whose_storing_was_lost_is_not_trained_again(tmp_path):
    (tmp_path / "out").write_text("no folder")
    store = DataStore("s", "mount_volume", str(tmp_path), None, "out")
    job = Job(tmp_path, 'echo x >>"$LOG_DIR/runs"; echo 1 >"$RESULT_DIR/y"', data_stores=[store])
    assert job.run().state is State.FAILED
    (tmp_path / "out").unlink()
    verdict = run_attempt(job, 2)
    assert verdict.state is State.COMPLETED
    assert (job.dir / contract.LOGS / "runs").read_text() == "x\n"
    assert index_of(job, 2) == {"y": 2}
    assert (tmp_path / "out" / job.plan.training_id / "y").read_text() == "1\n"
    plan = job.plan
    job.plan = dataclasses.replace(plan, code_digest="f" * 64)
    assert run_attempt(job, 3).state is State.COMPLETED  # new code
    assert (job.dir / contract.LOGS / "runs").read_text() == "x\nx\n"
    job.plan = plan  # the results are no longer those of attempt 1
    assert run_attempt(job, 4).state is State.COMPLETED
    assert (job.dir / contract.LOGS / "runs").read_text() == "x\nx\nx\n"


def test_a_result_that_can_t_be_read_is_left_out():
    """It once made a finished training FAILED, and `resume` train again."""
    folder = Path("/var/tmp", f"dlctl-test-{os.getpid()}")  # whose parents anybody may search
    (folder / contract.RESULTS / "closed").mkdir(parents=True)
    for name in ("good", "secret", "closed/file"):
        (folder / contract.RESULTS / name).write_text(name)
    (folder / contract.RESULTS / "secret").chmod(0)
    (folder / contract.RESULTS / "closed").chmod(0)
    try:
        if os.geteuid():
            write_index(folder)
        else:
            _write_index_as_nobody(folder)
        index = contract.read_record(ResultsIndex, folder / contract.RESULTS_INDEX)
        assert index is not None
        assert [file.path for file in index.files] == ["good"]
        assert sorted(index.left_out) == ["closed", "secret"]
    finally:
        (folder / contract.RESULTS / "closed").chmod(0o700)
        shutil.rmtree(folder)


def _write_index_as_nobody(folder):
    """Write the index as a user whom permissions bind: root reads everything."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, 65534, 65534)
    if (child := os.fork()) == 0:
        try:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            write_index(folder)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("judged", [False, True])
def test_a_superseded_attempt_says_so(tmp_path, judged):
    """Unless the one who went on has judged it: that kind counts for the retries."""
    job = Job(tmp_path, "sleep 60")
    theirs = Verdict(1, "7", State.FAILED, "The node n1 was lost.", kind="node_lost")
    with job.start() as process:
        wait_until((job.dir / contract.learner_log(1, 0)).exists)
        if judged:
            contract.write_whole(job.dir / contract.verdict_file(1), contract.to_json(theirs))
        (job.dir / contract.attempt_dir(2)).mkdir()
        (job.dir / contract.submit_begin(2)).write_text("token")
        said, _ = process.communicate(timeout=PATIENCE_S)
    found = contract.read_record(Verdict, job.dir / contract.verdict_file(1))
    assert found is not None
    if judged:
        assert found == theirs and "was judged without this supervisor" in said
    else:
        assert (found.kind, found.state) == (VerdictKind.SUPERSEDED, State.CANCELLED)
        assert "later attempt has taken over" in found.reason


def test_an_order_is_not_answered_by_an_attempt_that_was_succeeded(tmp_path):
    (tmp_path / contract.CONTROL).mkdir()
    (tmp_path / contract.attempt_dir(2)).mkdir(parents=True)
    for number in (1, 2):
        order = contract.to_json(contract.Order(save=True))
        contract.write_whole(tmp_path / contract.order_file(number), order)
    orders = Orders(tmp_path, 1)
    assert orders.due(0, 5) == 2
    orders.answer(1, 5, "")
    (tmp_path / contract.submit_begin(2)).write_text("token")
    orders.answer(2, 6, "")
    answers = [tmp_path / contract.order_answer(number) for number in (1, 2)]
    assert [path.exists() for path in answers] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "state", "reason"), [
    ("exit 0", State.COMPLETED, "The learner ended with exit code 0."),
    ("echo 'ValueError: no'; exit 1", State.FAILED, "failed with exit code 1: ValueError: no"),
])  # fmt: skip
def test_a_runtime_that_is_purged_while_a_training_runs_is_not_missed(tmp_path, end, state, reason):
    """The verdict once ended in `ModuleNotFoundError: No module named 'learner.supervisor…'`."""
    runtime = tmp_path / "runtime"
    for room in ("dlctl", "learner", "psrv"):
        shutil.copytree(REPOSITORY / room, runtime / room,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
    waits = 'touch "$LOG_DIR/began"; while [ ! -e "$LOG_DIR/go" ]; do sleep 0.05; done; '
    job = Job(tmp_path, waits + end, data_stores=[
        DataStore("s", "mount_volume", str(tmp_path), None, "out")])  # fmt: skip
    job.write_plan(runtime_dir=str(runtime))
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "learner.supervisor", str(job.dir), "1"], cwd=runtime,
        env={**job.env, "PYTHONPATH": str(runtime)}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        wait_until((job.dir / contract.LOGS / "began").exists)
        status = job.dir / contract.status_file(1, "learner", 0)
        first = status.read_text()
        wait_until(lambda: status.read_text() != first)  # it has loaded what it needs
        aside = runtime.rename(tmp_path / "aside")  # it may still be writing compiled modules
        shutil.rmtree(aside, ignore_errors=True)
        (job.dir / contract.LOGS / "go").touch()
        verdict = job.finish(process)
    assert (verdict.state, verdict.reason.endswith(reason)) == (state, True), job.output
