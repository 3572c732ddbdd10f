"""Slurm's scripts, run against commands that tell what they got; its answers, as recorded."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from repository import RECORDED
from scheduler_plan import make_plan
from shell_check import SHELLS, check_script

from dlctl.errors import SchedulerUnavailable, SiteError, SubmitRejected, SubmitUnknown
from dlctl.scheduler import JobState, make_scheduler

RECORDED = RECORDED / "slurm"
SLURM = make_scheduler("slurm")


def recorded(name):
    """Exit code, standard output and error of a command on a real Slurm 22.05."""
    text = (RECORDED / f"{name}.txt").read_bytes().decode()
    found = re.fullmatch(r"exit (\d+)\n--- stdout\n(.*)--- stderr\n(.*)", text, re.DOTALL)
    return int(found[1]), found[2], found[3]


def scripts(slurm=SLURM):
    plan = make_plan(training_id="training-É $(x) 'y'", job_dir="/j", root="/r", runtime_dir="/rt")
    return {
        "submit": slurm.submit_script(plan, 3),
        "queue": slurm.queue_script("/r"),
        "history": slurm.history_script(["12", "13"]),
        "cancel": slurm.cancel_script("12_[1-3]", "/r"),
        "workers": f"group=w1 count=2\n{slurm.workers_script(plan, 'w/worker.sbatch', 'w')}",
        "alive": slurm.workers_alive_script(plan),
    }


# Scripts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", scripts())
def test_scripts_are_clean_posix_shell(name):
    for slurm in (SLURM, make_scheduler("slurm", path="/opt/my slurm/bin")):
        check_script(scripts(slurm)[name], expected="SC2016")


@pytest.fixture
def fake(tmp_path):
    """A folder of commands that write down their arguments, environment and folder."""
    folder = tmp_path / "b in"
    folder.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nout={str(tmp_path)!r}/{name}\nprintf "%s\\n" "$@" >"$out.argv"\n'
            'env >"$out.env"; pwd >"$out.pwd"; cat >"$out.stdin"\necho 77\n'
        )
        program.chmod(0o755)
    return make_scheduler("slurm", path=str(folder)), tmp_path


def run_script(text, cwd, shell="sh", **env):
    return subprocess.run([shell], input=text, text=True, cwd=cwd, capture_output=True,
                          env={**os.environ, **env}, timeout=60)  # fmt: skip


@pytest.mark.parametrize("shell", SHELLS)
def test_submission_reaches_sbatch_unharmed(fake, shell):
    slurm, tmp_path = fake
    job_dir = tmp_path / "we ird 100%j '$(x)é"
    job_dir.mkdir()
    training_id = "t-É $(touch x) 'y'"
    plan = make_plan(training_id=training_id, job_dir=str(job_dir))
    done = run_script(slurm.submit_script(plan, 2), job_dir, shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "77\n", "")
    argv = (tmp_path / "sbatch.argv").read_text().splitlines()
    folder = str(job_dir).replace("%", "%%")
    assert argv == [
        "--parsable", f"--job-name={training_id}.2",
        f"--comment=dlctl:{training_id}.2", f"--chdir={job_dir}",
        f"--output={folder}/attempts/2/slurm.out", "--open-mode=append",
        "attempts/2/job.sbatch", "2",
    ]  # fmt: skip
    assert (tmp_path / "sbatch.pwd").read_text().strip() == str(job_dir)
    assert (tmp_path / "sbatch.stdin").read_text() == ""
    assert list(job_dir.iterdir()) == []


def test_inherited_variables_can_not_change_a_job(fake):
    slurm, tmp_path = fake
    run_script(
        slurm.submit_script(make_plan(job_dir=str(tmp_path)), 1), tmp_path,
        SBATCH_PARTITION="evil", SLURM_NNODES="9", SQUEUE_FORMAT="%i", SCANCEL_INTERACTIVE="1",
        SBATCH_X="two\nSLURM_lines=1", SLURM_CONF="/etc/c", SLURM_JWT="jwt", SLURMISH="mine",
    )  # fmt: skip
    seen = (tmp_path / "sbatch.env").read_text()
    names = {line.partition("=")[0] for line in seen.splitlines()}
    kept = {n for n in names if n.startswith(("SBATCH", "SLURM", "SQUEUE", "SCANCEL", "SACCT"))}
    assert kept == {"SLURM_CONF", "SLURM_JWT", "SLURMISH"}


def test_a_folder_with_a_backslash_is_refused_in_words(fake):
    slurm, tmp_path = fake
    job_dir = tmp_path / "a\\b"
    job_dir.mkdir()
    done = run_script(slurm.submit_script(make_plan(job_dir=str(job_dir)), 1), job_dir)
    with pytest.raises(SubmitRejected, match="backslash"):
        slurm.parse_submit(done.returncode, done.stdout, done.stderr)
    assert not (tmp_path / "sbatch.argv").exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_workers_are_one_array_and_are_counted_by_their_comments(fake, shell):
    slurm, tmp_path = fake
    training_id = "t-É $(touch x) 'y'"
    plan = make_plan(training_id=training_id, job_dir=str(tmp_path))
    script = slurm.workers_script(plan, "w/worker.sbatch", "w")
    assert run_script(f"group=w2 count=3\n{script}", tmp_path, shell).stdout == "77\n"
    assert (tmp_path / "sbatch.argv").read_text().splitlines() == [
        "--parsable", "--array=0-2", f"--job-name={training_id}.w2",
        f"--comment=dlctl:{training_id}.w2", f"--chdir={tmp_path}",
        f"--output={tmp_path}/w/w2/%a.out", "--open-mode=append", "w/worker.sbatch", "w2",
    ]  # fmt: skip
    program = Path(slurm.path) / "squeue"
    rows = [f"dlctl:{training_id}.1 5 RUNNING", f"dlctl:{training_id}.w2 7_0 RUNNING",
            f"dlctl:{training_id}.w2 7_1 PENDING",
            "dlctl:other.w1 8_0 RUNNING", "(null) 10 RUNNING"]  # fmt: skip
    program.write_text("#!/bin/sh\ncat <<'end'\n" + "\n".join(rows) + "\nend\n")
    done = run_script(slurm.workers_alive_script(plan), tmp_path, shell)
    assert (done.stdout, done.stderr) == ("w2 7_0 RUNNING\nw2 7_1 PENDING\n", "")
    program.write_text("#!/bin/sh\nexit 1\n")
    assert run_script(slurm.workers_alive_script(plan), tmp_path, shell).returncode == 1


def test_listings_ask_for_fixed_fields(fake):
    slurm, tmp_path = fake
    run_script(slurm.queue_script("/r"), tmp_path)
    argv = (tmp_path / "squeue.argv").read_text().split("\n")
    assert "\036%i\037%j\037%T\037%r\037%N\037%k" in argv[3]
    assert argv[:3] == ["--noheader", "--states=all", f"--user={os.getuid()}"]
    run_script(slurm.history_script(["1", "2"]), tmp_path)
    argv = (tmp_path / "sacct.argv").read_text().split("\n")
    assert "--jobs=1,2" in argv
    assert "--delimiter=\037" in argv
    run_script(slurm.cancel_script("80+1", "/r"), tmp_path)
    assert (tmp_path / "scancel.argv").read_text() == "80+1\n"


def test_no_accounting_no_question_and_an_unknown_kind_is_an_error_of_the_site():
    assert make_scheduler("slurm", accounting=False).history_script(["1"]) is None
    assert SLURM.history_script([]) is None
    with pytest.raises(SiteError, match="'pbs'"):
        make_scheduler("pbs")


# Answers to a submission -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr", "job_id"),
    [
        (*recorded("sbatch-ok"), "14"),
        (*recorded("sbatch-ok-words"), "15"),
        (0, "123;cluster-2\n", "", "123"),
        (0, "*** Welcome! 5 days of uptime ***\n\n4242\nsee you\n", "", "4242"),
        (0, "7\n", "sbatch: warning: can't honor --ntasks-per-node\n", "7"),
        (0, "7\r\n", "", "7"),
        (1, "9\n", "sbatch: error: after the fact\n", "9"),
    ],
)
def test_accepted(exit_code, stdout, stderr, job_id):
    assert SLURM.parse_submit(exit_code, stdout, stderr) == job_id


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("bad-partition", "invalid partition specified: nosuch; Batch job submission failed:"
         " Invalid partition name specified", "scheduler.partition"),
        ("bad-constraint", "Invalid feature specification", "scheduler.constraint"),
        ("bad-gres", "Requested node configuration is not available", "fewer"),
        ("bad-gres-name", "Invalid generic resource (gres) specification", "scheduler.gres"),
        ("bad-time", "Invalid --time specification", "time"),
        ("bad-option", "unrecognized option '--no-such-option'", "scheduler.extra"),
        ("no-script", "Unable to open file nosuch.sh", ""),
        ("no-shebang", "does not look like a batch script", ""),
        ("bad-reservation", "Requested reservation is invalid", ""),
        ("too-much-memory", "Memory specification can not be satisfied", "less memory"),
    ],
)  # fmt: skip
def test_refused_with_slurms_own_sentence(name, said, hint):
    with pytest.raises(SubmitRejected) as caught:
        SLURM.parse_submit(*recorded(f"sbatch-{name}"))
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_a_controller_that_cannot_be_reached_has_queued_nothing():
    answer = recorded("sbatch-no-controller")
    with pytest.raises(SchedulerUnavailable, match="Unable to contact slurm controller"):
        SLURM.parse_submit(*answer)
    assert re.search(SLURM.not_now, answer[2], re.IGNORECASE)
    assert not re.search(SLURM.answer_lost, answer[2], re.IGNORECASE)


@pytest.mark.parametrize(
    ("exit_code", "stderr", "hint"),
    [
        (1, "sbatch: error: Batch job submission failed: Invalid account or account/partition"
         " combination specified\n", "scheduler.account"),
        (1, "sbatch: error: Batch job submission failed: Invalid qos specification\n", "qos"),
        (1, "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job"
         " submit limit, user's size and/or time limits)\n", "limits"),
        (1, "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing"
         " or exceeds some limit)\n", "`time`"),
        (1, "Dear user, you need a project\nsbatch: error: Unspecified error\n", ""),
        (127, "sh: 1: sbatch: not found\n", "scheduler path"),
    ],
)  # fmt: skip
def test_refusals_of_other_sites(exit_code, stderr, hint):
    with pytest.raises(SubmitRejected) as caught:
        SLURM.parse_submit(exit_code, "", stderr)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("exit_code", "stdout", "stderr"),
    [
        recorded("sbatch-timed-out"),
        (1, "", "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or"
         " received\n"),
        (1, "", "sbatch: error: Unable to contact slurm controller (connect failure)\nsbatch:"
         " error: Socket timed out on send/recv operation\n"),
        (0, "", ""),
        (0, "welcome\n", ""),
        (137, "", ""),
        (143, "", "sbatch: error: something before it was killed\n"),
        (1, "", "Connection to login closed by remote host.\n"),
    ],
)  # fmt: skip
def test_a_lost_answer_is_unknown(exit_code, stdout, stderr):
    with pytest.raises(SubmitUnknown, match=r"answer was lost"):
        SLURM.parse_submit(exit_code, stdout, stderr)


# Listings ----------------------------------------------------------------------------------------


def test_the_queue_as_recorded():
    jobs = {job.job_id: job for job in SLURM.parse_queue(*recorded("squeue-all"))}
    assert {"4_[1-3]", "7", "11", "14", "19"} <= set(jobs)
    done = jobs["11"]
    assert (done.name, done.state, done.nodes) == ("dl-tok.1", JobState.COMPLETED, "n1")
    assert (done.reason, done.comment) == ("", "dlctl:dl-tok.1")
    assert (jobs["12"].state, jobs["12"].reason) == (JobState.FAILED, "JobLaunchFailure")
    assert (jobs["4_[1-3]"].state, jobs["4_[1-3]"].reason) == (JobState.PENDING, "BeginTime")
    assert jobs["14"].state is JobState.RUNNING
    assert jobs["12"].comment == ""


def test_names_with_separators_and_newlines_do_not_break_the_queue():
    rows = "welcome\n\0361\037na|me\ttab\037RUNNING\037None\037n1\037(null)\n" \
           "\0362\037two\nlines\037PENDING\037Priority\037\037dlctl:t.1\n\0363\037cut"  # fmt: skip
    jobs = SLURM.parse_queue(0, rows, "")
    assert [(job.job_id, job.name) for job in jobs] == [("1", "na|me\ttab"), ("2", "two\nlines")]
    assert jobs[1].comment == "dlctl:t.1"
    assert SLURM.parse_queue(*recorded("squeue-no-user")) == []


@pytest.mark.parametrize("name", ["squeue-timed-out", "squeue-no-controller"])
def test_a_controller_that_is_away_says_nothing_about_jobs(name):
    with pytest.raises(SchedulerUnavailable, match="slurm_load_jobs error"):
        SLURM.parse_queue(*recorded(name))


def test_the_accounting_as_recorded():
    jobs = {job.job_id: job for job in SLURM.parse_history(*recorded("sacct-ids"))}
    assert (jobs["6"].state, jobs["6"].word) == (JobState.CANCELLED, "CANCELLED by 20001")
    assert (jobs["2"].state, jobs["2"].exit_code) == (JobState.FAILED, "3:0")
    assert jobs["1"].nodes == "n1"
    assert {"9+0", "9+1", "4_[1-3]"} <= set(jobs)
    assert "99999" not in jobs
    for failed in (recorded("sacct-down"), recorded("sacct-bad-field"), (127, "", "not found\n")):
        assert SLURM.parse_history(*failed) == [], "it knows nothing"


def test_a_cancel_by_nobody_is_slurms_own_doing():
    """As sacct of Slurm 22.05 says of a job after the controller had lost its state."""
    row = "7\037t.1\037CANCELLED\0370:0\037n1\0372026-11-29T00:34:15\0372026-11-29T00:34:16\n"
    (lost,) = SLURM.parse_history(0, row, "")
    assert (lost.state, lost.word, lost.state.final) == (JobState.DROPPED, "CANCELLED", True)
    (person,) = SLURM.parse_history(0, row.replace("CANCELLED", "CANCELLED by 0"), "")
    assert person.state is JobState.CANCELLED


def test_of_several_runs_the_newest_counts():
    def row(state, start):
        return f"5\037t.1\037{state}\0370:0\037n1\0372026-01-01T10:00:00\037{start}\n"

    for text in (
        row("NODE_FAIL", "2026-01-01T10:00:01") + row("COMPLETED", "2026-01-01T10:05:00"),
        row("COMPLETED", "2026-01-01T10:05:00") + row("NODE_FAIL", "2026-01-01T10:00:01"),
    ):
        assert [job.state for job in SLURM.parse_history(0, text, "")] == [JobState.COMPLETED]


@pytest.mark.parametrize("name", ["scancel-ok", "scancel-ended", "scancel-gone"])
def test_cancelling_a_job_that_is_gone_is_no_failure_but_a_controller_that_is_away_is(name):
    assert SLURM.parse_cancel(*recorded(name)) is None
    gone = "scancel: error: Kill job error on job id 5: Invalid job id specified\n"
    assert SLURM.parse_cancel(1, "", gone) is None
    for away in ("scancel-no-controller", "scancel-timed-out"):
        with pytest.raises(SchedulerUnavailable, match="scancel"):
            SLURM.parse_cancel(*recorded(away))
