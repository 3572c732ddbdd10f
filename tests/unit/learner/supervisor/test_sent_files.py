"""Files of a job that a site purges: kept fresh, restored, or named."""

import dataclasses
import hashlib
import os
import time
from pathlib import Path

import pytest
from node_job import Job

from dlctl import contract
from dlctl.contract import State
from learner.supervisor.sent_files import Keeper, check_code


def indexed(job):
    """Give a job's code an index, as dlctl sends it."""
    files = [
        contract.SentFile(
            hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size, "f", path.name
        )
        for path in job.code.iterdir()
    ]
    index = contract.index_text(files)
    (job.code / contract.SENT_INDEX).write_bytes(index)
    job.write_plan(code_digest=contract.index_digest(index))
    return job


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path, 'touch "$LOG_DIR/ran"')
    job.write("train.py", "print(1)")
    job.write("data\n.txt", "1 2 3")
    return indexed(job)


@pytest.mark.parametrize("name", ["train.py", "data\n.txt"])
def test_a_training_without_one_of_its_files_does_not_begin(job, name):
    (job.code / name).unlink()
    verdict = job.run()
    assert (verdict.state, verdict.hint) == (
        State.FAILED, "Send your folder again and continue: dlctl resume --code "
        + job.plan.training_id,
    )  # fmt: skip
    assert repr(name) in verdict.reason
    assert not (job.dir / contract.LOGS / "ran").exists()


def test_changed_code_is_refused_at_first_and_told_later(job):
    """A program may write to its own folder while it runs."""
    job.write("train.py", "print(2)")
    stored = Path(job.plan.root, "store", job.plan.code_digest, contract.SENT_INDEX)
    stored.parent.mkdir(parents=True)
    stored.write_text("index")
    outcome, _ = check_code(job.plan, job.dir, 1)
    assert outcome is not None
    assert stored.read_bytes() == b"", "the site's copy may be damaged: dlctl sends it again"
    assert "'train.py'" in outcome.reason
    assert check_code(job.plan, job.dir, 2) == (None, "changed since it was sent: 'train.py'")
    assert check_code(dataclasses.replace(job.plan, code_digest="0" * 64), job.dir, 1)[0] is None


def test_a_plan_that_was_purged_comes_back_while_the_job_runs(job):
    """Its loss once ended the running job: FAILED, "Its job directory is gone"."""
    plan = (job.dir / contract.PLAN).read_bytes()
    job.write_plan(framework=dataclasses.replace(
        job.plan.framework,
        command='rm "$MODEL_DIR/../plan.json"; echo gone >"$LOG_DIR/ran"; '
        'while [ ! -e "$MODEL_DIR/../plan.json" ]; do sleep 0.1; done'))  # fmt: skip
    verdict = job.run()
    assert verdict.state is State.COMPLETED, verdict.reason
    restored = contract.from_json(contract.Plan, (job.dir / contract.PLAN).read_bytes())
    assert restored == job.plan
    assert plan != (job.dir / contract.PLAN).read_bytes()


def test_files_of_a_running_job_are_touched_but_not_its_results(job, tmp_path):
    runtime = tmp_path / "runtime" / "x"
    runtime.mkdir(parents=True)
    (job.dir / contract.results_dir(1)).mkdir()
    (job.code / contract.RESULTS).mkdir()
    result = job.dir / contract.results_dir(1) / "model.pt"
    files = [
        job.code / contract.RESULTS / "plot.py", job.code / "train.py", job.dir / contract.PLAN,
        runtime / "a.py", runtime / contract.SENT_INDEX,
    ]  # fmt: skip
    for path in (*files, result):
        path.touch()
        os.utime(path, (5, 5))
    plan = dataclasses.replace(job.plan, runtime_dir=str(runtime))
    keeper = Keeper(plan, job.dir, 1, touch_every_s=0.0)
    assert keeper.keep() == []
    assert keeper._thread is not None
    keeper._thread.join()
    assert all(path.stat().st_mtime > 5 for path in files)
    assert files[3].stat().st_mtime == files[4].stat().st_mtime
    assert result.stat().st_mtime == 5


def test_fresh_files_keep_their_time_so_that_python_need_not_compile_them_again(job, tmp_path):
    runtime = tmp_path / "runtime" / "x"
    runtime.mkdir(parents=True)
    an_hour_ago = time.time() - 3600
    for path in (job.code / "train.py", runtime / "a.py"):
        path.touch()
        os.utime(path, (an_hour_ago, an_hour_ago))
    plan = dataclasses.replace(job.plan, runtime_dir=str(runtime))
    Keeper(plan, job.dir, 1).touch()
    assert (runtime / "a.py").stat().st_mtime == pytest.approx(an_hour_ago)
    assert (job.code / "train.py").stat().st_mtime == pytest.approx(an_hour_ago)


def test_a_changed_file_is_output_even_after_all_files_were_touched(job):
    """A model that is saved in place of the one that was sent is as large as that."""
    claim = job.dir / contract.claim(1)
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.write_text("7")
    job.write("train.py", "print(3)")
    for path in (claim, *job.code.iterdir()):
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    Keeper(job.plan, job.dir, 1).touch()
    assert contract.own_output(job.dir) == {"train.py": 8}
