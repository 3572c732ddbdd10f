"""The batch script: one line stays one line, and what it does under a real bash."""

import hashlib
import json
import os
import subprocess
from dataclasses import replace

import pytest
from login_side import FAKE_PYTHON, MANIFEST, make_site, plan_of

from dlctl import contract
from dlctl.contract import State, Verdict
from dlctl.errors import PlanError
from dlctl.plan.render import render
from dlctl.scheduler.sbatch import sbatch_options

WEIRD = 'it\'s a "root" $(touch pwned) é'


def test_sbatch_gets_every_planned_option():
    site = make_site(more="partitions: {p: {cpus_per_node: 4, max_time: 2d}}")
    options = sbatch_options(plan_of(learners=3, cpus=2, memory="1000MiB", time="25h", site=site))
    assert options == [
        "--nodes=2", "--ntasks=3", "--ntasks-per-node=2", "--cpus-per-task=2", "--mem=2000M",
        "--time=1-01:00:00", "--partition=p", "--signal=B:USR2@120", "--requeue",
        "--propagate=NONE", "--open-mode=append",
    ]  # fmt: skip


def test_with_a_parameter_server_the_loss_of_a_node_does_not_end_the_job():
    plan = plan_of(MANIFEST + "parameter_server: {}\n", learners=2)
    options = sbatch_options(plan)
    assert options[-4:-2] == ["--requeue", "--no-kill"]
    assert "--no-kill" not in sbatch_options(plan_of(learners=2))
    assert "--mem=954M" in sbatch_options(plan_of(memory="1GB")), "it is rounded up"


@pytest.mark.parametrize("place", ["partition", "constraint", "gres", "extra"])
def test_an_option_with_a_control_character_is_refused(place):
    plan, told = plan_of(), f"the sbatch option {place} contains a control character"
    for character in "\n\r\x1b\x85\u2028\0\t":
        text = f"a{character}#SBATCH --uid=0"
        batch = replace(plan.batch, **{place: [f"--{text}"] if place == "extra" else text})
        with pytest.raises(PlanError, match=told):
            render(replace(plan, batch=batch))
            pytest.fail(f"rendered with {character!r}")


def test_a_comment_stays_in_its_line():
    script = render(replace(plan_of(), name="a\n#SBATCH --uid=0\rb\u2028c\x1b[31m"))
    assert [line for line in script.split("\n") if "--uid=0" in line][0].startswith("# Training")
    assert "\x1b" not in script
    assert "\r" not in script


class Job:
    def __init__(self, folder, **site):
        self.root = folder / WEIRD
        self.dir = self.root / "jobs/digits-abcdefgh"
        self.python = folder / "my python"
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        environment = {"python": str(self.python)} | site
        self.site = make_site(json.dumps(str(self.root)), environment=json.dumps(environment))
        program = "print('hi')\n"
        digest = hashlib.sha256(program.encode()).hexdigest()
        index = contract.index_text(
            [contract.SentFile(digest, len(program), "f", "learner/a b.py")]
        )
        self.runtime = self.root / "runtime" / contract.index_digest(index)
        (self.runtime / "learner").mkdir(parents=True)
        (self.runtime / "learner/a b.py").write_text(program)
        (self.runtime / contract.SENT_INDEX).write_bytes(index)
        self.plan = replace(plan_of(MANIFEST, site=self.site), runtime_dir=str(self.runtime))

    def run(self, job_id="7", plan=None, **env):
        return subprocess.run(
            ["bash", "-c", render(plan or self.plan), "job.sbatch", "1"], text=True,
            capture_output=True, timeout=60, cwd=self.root,
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": job_id, **env},
        )  # fmt: skip

    def verdict(self):
        return contract.read_record(Verdict, self.dir / contract.verdict_file(1))

    def ran(self):
        path = self.root / "ran"
        return path.read_text().splitlines() if path.exists() else []


def test_weird_roots_are_only_words(tmp_path):
    job = Job(tmp_path)
    assert job.run().returncode == 0
    assert job.ran() == ["digits-abcdefgh 1"]
    assert (job.dir / contract.claim(1)).read_text() == "7\n"
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(("setup", "command"), [
    (["source /nowhere/activate", "true"], "source /nowhere/activate"),
    (["cd /", "false", "true"], "false"), (["true | grep -q x"], "grep -q x"),
    (["if false; then", "  :", "else", "  :", "fi", 'for x in a; do', '  echo "$x"', "done"], None),
    (["[ -f /nowhere ] && source /nowhere", "false || true", "f() { false; true; }", "f"], None),
    (["source ./inner.sh", "cat <<END", "text", "END"], None),
])  # fmt: skip
def test_a_line_of_the_sites_setup_that_fails_ends_the_job(tmp_path, setup, command):
    """The training ran in another Python than the site's file chose, and was COMPLETED."""
    job = Job(tmp_path, setup=setup)
    (job.root / "inner.sh").write_text("false\ntrue\n")
    done = job.run(SHELLOPTS="errexit:xtrace", CDPATH="/tmp")
    assert done.stderr.count("+ ") == 1, "it begins in a known state"
    if command is None:
        assert done.returncode == 0, done.stderr
        assert job.ran() == ["digits-abcdefgh 1"]
    else:
        verdict = job.verdict()
        assert f"environment.setup failed on {os.uname().nodename}: `{command}`" in verdict.reason
        assert verdict.hint.endswith("a line that may fail ends in: || true")
        assert (done.returncode, job.ran()) == (1, [])


def test_a_second_job_of_the_attempt_does_nothing(tmp_path):
    job = Job(tmp_path)
    job.run("7")
    (job.dir / contract.verdict_file(1)).unlink()
    second = job.run("8")
    assert (second.returncode, second.stdout) == (
        0,
        "dlctl: attempt 1 runs as job 7; nothing to do\n",
    )
    assert job.ran() == ["digits-abcdefgh 1"]
    assert job.verdict() is None


def test_a_job_that_was_requeued_goes_on_after_its_newest_attempt(tmp_path):
    job = Job(tmp_path)
    for count in "01":
        assert job.run("7", SLURM_RESTART_COUNT=count).returncode == 0
    begin_next(job, "7")
    assert job.run("7", SLURM_RESTART_COUNT="2").returncode == 0
    assert job.ran() == ["digits-abcdefgh 1", "digits-abcdefgh 1 requeued",
                         "digits-abcdefgh 2 requeued"]  # fmt: skip


def test_a_job_that_was_requeued_leaves_the_attempt_of_another_job_alone(tmp_path):
    job = Job(tmp_path)
    job.run("7")
    begin_next(job, "8")
    again = job.run("7", SLURM_RESTART_COUNT="1")
    assert (again.returncode, again.stdout) == (
        0, "dlctl: job 7 was requeued, and attempt 2 is not its own; nothing to do\n",
    )  # fmt: skip
    assert job.ran() == ["digits-abcdefgh 1"]


@pytest.mark.parametrize(("answer", "ran"), [
    (None, ["digits-abcdefgh 1 requeued"]), ("-15\n0\n", ["digits-abcdefgh 1 requeued"]),
    ("0\n2\n8\n", []),
])  # fmt: skip
def test_a_job_that_was_ended_while_it_submitted_goes_on_itself(tmp_path, answer, ran):
    """It once left the training to a job that did not exist."""
    job = Job(tmp_path)
    job.run("7")
    begin_next(job)
    if answer is not None:
        (job.dir / contract.submit_answer(2)).write_text(answer)
    assert job.run("7", SLURM_RESTART_COUNT="1").returncode == 0
    assert job.ran()[1:] == ran


def begin_next(job, job_id=""):
    (job.dir / contract.attempt_dir(2)).mkdir(parents=True)
    (job.dir / contract.submit_begin(2)).write_text("digits-abcdefgh.2\n")
    if job_id:
        (job.dir / contract.claim(2)).write_text(f"{job_id}\n")


def test_a_job_that_was_requeued_before_it_began_runs(tmp_path):
    job = Job(tmp_path)
    assert job.run("7", SLURM_RESTART_COUNT="1").returncode == 0
    assert job.ran() == ["digits-abcdefgh 1"]


def test_a_python_that_can_t_run_is_a_verdict_with_a_hint(tmp_path):
    job = Job(tmp_path)
    job.python.chmod(0o644)
    assert job.run().returncode == 1
    verdict = job.verdict()
    assert (verdict.state, verdict.job_id, verdict.attempt) == (State.FAILED, "7", 1)
    assert "no Python 3.10 or newer" in verdict.reason
    assert verdict.hint == "run: dlctl sites setup testbed"
    assert verdict.finished_at > 0


@pytest.mark.parametrize("harm", ["python", "runtime"])
@pytest.mark.parametrize("sign", ["cancel", "COMPLETING"])
def test_a_check_that_was_killed_with_its_job_says_nothing(tmp_path, sign, harm):
    """Seen after a cancel in a job's first second: SIGTERM ended Python, which was then missed."""
    job, commands = Job(tmp_path), tmp_path / "bin"
    if sign == "cancel":
        (job.dir / contract.CONTROL).mkdir(parents=True)
        (job.dir / contract.CANCEL_REQUEST).touch()
    else:
        commands.mkdir()
        (commands / "squeue").write_text(f"#!/bin/sh\necho {sign}\n")
        (commands / "squeue").chmod(0o755)
    if harm == "python":
        job.python.chmod(0o644)
    else:
        (job.runtime / "learner/a b.py").write_text("")
    assert job.run(PATH=f"{commands}:{os.environ['PATH']}").returncode == 1
    assert job.verdict() is None and (job.runtime / contract.SENT_INDEX).read_bytes()


def test_a_job_that_runs_again_and_can_t_begin_leaves_the_verdict_alone(tmp_path):
    job = Job(tmp_path)
    job.run("7")
    told = contract.to_json(Verdict(1, "7", State.COMPLETED, "done"))
    (job.dir / contract.verdict_file(1)).write_text(told)
    job.python.chmod(0o644)
    assert job.run("7", SLURM_RESTART_COUNT="1").returncode == 1
    assert (job.dir / contract.verdict_file(1)).read_text() == told


def test_the_scripts_verdict_is_json_whatever_it_contains(tmp_path):
    job = Job(tmp_path, modules=["open mpi's"], setup=['PS1="$CONDA_IS_NOT_SET$PS1"'])
    loaded = {"BASH_FUNC_module%%": "() { return 0; }"}
    assert job.run(**loaded).returncode == 0, "setup may read variables that nobody set"
    assert len(job.ran()) == 1
    for harmed, env, said in (
        (job.plan, {"BASH_FUNC_module%%": "() { return 1; }"},
         "the module open mpi's can't be loaded"),
        (replace(job.plan, environment=replace(
            job.plan.environment, python='/no "py"\\\t\x01\néthon')), loaded, '/no "py"\\   éthon'),
    ):  # fmt: skip
        (job.dir / contract.claim(1)).unlink()
        assert job.run(plan=harmed, **env).returncode == 1
        assert said in job.verdict().reason


def test_a_runtime_that_was_changed_or_purged_in_part_does_not_run(tmp_path):
    job = Job(tmp_path)
    program, index = job.runtime / "learner/a b.py", job.runtime / contract.SENT_INDEX
    sent = index.read_bytes()
    program.write_text("print('ho')\n")
    assert job.run().returncode == 1
    assert "is no longer what was sent: learner/a b.py: FAILED" in job.verdict().reason
    assert job.verdict().hint == "dlctl sends it again: dlctl resume digits-abcdefgh"
    (job.dir / contract.claim(1)).unlink()
    index.write_bytes(sent)
    program.unlink()
    assert job.run().returncode == 1
    assert "learner/a b.py: FAILED open or read" in job.verdict().reason
    (job.dir / contract.claim(1)).unlink()
    index.write_text("")
    assert job.run().returncode == 1
    assert ".dlctl-index: FAILED" in job.verdict().reason
    (job.dir / contract.claim(1)).unlink()
    job.runtime.rename(job.root / "purged")
    assert job.run().returncode == 1
    assert job.verdict().hint == "run: dlctl resume digits-abcdefgh"
    assert job.ran() == []


@pytest.mark.parametrize("harm", ["a flipped bit", "another module"])
def test_a_damaged_runtime_is_marked_so_that_it_is_sent_again(tmp_path, harm):
    """The login side compares sizes and times: a flipped bit once failed every later job, too."""
    job = Job(tmp_path)
    program = job.runtime / "learner/a b.py"
    before = program.stat()
    if harm == "a flipped bit":
        program.write_bytes(bytes([program.read_bytes()[0] ^ 1]) + program.read_bytes()[1:])
        os.utime(program, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        (job.runtime / "torch.py").write_text("print('planted')\n")
    assert job.run().returncode == 1
    told = "learner/a b.py: FAILED" if harm == "a flipped bit" else "torch.py was not sent"
    assert job.verdict().reason.endswith(f"is no longer what was sent: {told}")
    # An index that is gone altogether is that of an older version: `doctor` passes it over.
    assert (job.runtime / contract.SENT_INDEX).read_bytes() == b""
    assert job.ran() == []


def test_what_python_and_nfs_leave_in_a_runtime_is_no_damage(tmp_path):
    job = Job(tmp_path)
    (job.runtime / "learner/__pycache__").mkdir()
    for name in ("learner/__pycache__/a.pyc", "learner/.nfs0000000000a1b2c300000001"):
        (job.runtime / name).write_text("a file that is removed while it is open")
    assert job.run().returncode == 0
    assert len(job.ran()) == 1


@pytest.mark.parametrize("place", [".", "runtime", "jobs", "learner", "learner/a b.py"])
@pytest.mark.parametrize("how", ["chmod", "chown"])
def test_a_folder_that_others_can_write_does_not_run(tmp_path, place, how):
    if how == "chown" and os.geteuid():
        pytest.skip("only root can give a file away")
    job = Job(tmp_path)
    (job.root / "jobs").mkdir()
    path = (job.runtime if place.startswith("learner") else job.root) / place
    if how == "chmod":
        path.chmod(0o777)
    else:
        os.chown(path, 65534, 65534)
    assert job.run().returncode == 1
    reason = job.verdict().reason
    assert reason.startswith(f"{path} ")
    assert reason.endswith(": other users could make this job run their code")
    assert job.ran() == []


@pytest.mark.parametrize("place", ["environments", "env", "queue", "."])
def test_a_python_that_another_user_could_have_planted_is_never_started(tmp_path, place):
    job = Job(tmp_path)
    planted = job.root / "environments/0123/bin/python"
    planted.parent.mkdir(parents=True)
    planted.write_text('#!/bin/sh\ntouch "$0.ran"\n')
    planted.chmod(0o755)
    (job.root / place).mkdir(exist_ok=True)
    (job.root / place).chmod(0o777)
    environment = replace(job.plan.environment, python=str(planted), site_python=str(job.python))
    assert job.run(plan=replace(job.plan, environment=environment)).returncode == 1
    assert job.verdict().reason.startswith(f"{job.root / place} can be written by other users")
    assert not list(planted.parent.glob("*.ran"))


def test_what_a_job_writes_is_the_users_alone_unless_the_site_shares_it(tmp_path):
    job = Job(tmp_path)
    assert job.run().returncode == 0
    assert (job.dir / contract.claim(1)).stat().st_mode & 0o777 == 0o600
    shared = replace(job.plan, umask=f"{make_site(more='share: group').umask:03o}")
    (job.dir / contract.claim(1)).unlink()
    assert job.run(plan=shared).returncode == 0
    assert (job.dir / contract.claim(1)).stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("there", [False, True])
def test_a_job_directory_that_can_t_be_written_starts_nothing(tmp_path, there):
    job = Job(tmp_path)
    if there:  # not even root writes there
        (job.dir / "attempts").mkdir(parents=True)
        (job.dir / "attempts/1").symlink_to("/proc/self")
    else:
        job.dir.parent.mkdir()
        job.dir.symlink_to("/proc/self/fd")
    end = job.run()
    assert end.returncode == 1
    assert job.ran() == []
    assert ("can't be written on" in end.stderr) is there
