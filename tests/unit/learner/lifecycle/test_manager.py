"""Begin the next attempt: once, by the first who can, and never after a person's request."""

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from repository import REPOSITORY
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Lifecycle, Plan, State, Status, Verdict, VerdictKind, to_json
from learner.errors import SiteFault
from learner.job.batch import batch_system
from learner.job.context import plan_left
from learner.lifecycle import manager
from learner.lifecycle.history import newest_checkpoint
from learner.lifecycle.manager import conclude, follow
from learner.lifecycle.next_attempt import begin, reduced

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --time=4:00:00
#SBATCH --mem=512M
#SBATCH --begin=now+9
set -u
"""


class Job:
    def __init__(self, folder, submit="echo 8", **lifecycle):
        self.dir = folder
        plan = make_plan(job_dir=str(folder), runtime_dir=str(REPOSITORY))
        self.plan = replace(
            plan, resources=replace(plan.resources, time_s=600, halt_margin_s=30),
            lifecycle=Lifecycle(**{"backoff_s": 0.01, **lifecycle}),
        )  # fmt: skip
        (folder / contract.attempt_dir(1)).mkdir(parents=True)
        (folder / contract.CONTROL).mkdir()
        (folder / contract.CHECKPOINTS / "step-000000000007").mkdir(parents=True)
        (folder / contract.MANIFEST).write_text("name: t\n")
        (folder / contract.SCRIPT).write_text(SCRIPT)
        (folder / contract.SUBMIT_NEXT).write_text(f"echo @NEXT@ >>asked; {submit}\n")
        self.now = time.time()
        status = Status("supervisor", 0, 1, State.TRAINING, started_at=self.now - 50)
        contract.write_whole(folder / contract.status_file(1, "supervisor", 0), to_json(status))
        self.said = []

    def conclude(self, kind, left_s=500.0, *, in_job=True, is_fresh=False, **verdict):
        """Judge the first attempt, which has failed unless told otherwise."""
        fields = {"state": State.FAILED, "reason": "why", "finished_at": self.now, **verdict}
        self.verdict, following = conclude(
            self.dir, self.plan, Verdict(1, "7", kind=kind, **fields),
            left_s, in_job=in_job, is_fresh=is_fresh,
        )  # fmt: skip
        assert self.verdict.action is not None
        return self.verdict.action, following

    def end(self, kind, **more):
        """Judge it, and begin what follows."""
        action, following = self.conclude(kind, **more)
        self.runs_here = following is not None and follow(following, self.said.append)
        return action

    def on(self, scheduler):
        self.plan = replace(self.plan, batch=replace(self.plan.batch, scheduler=scheduler))
        return self

    def read(self, name):
        return (self.dir / name).read_text()


def test_a_link_of_a_chain_is_submitted_by_the_job_that_ends(tmp_path):
    job = Job(tmp_path, total_time_s=300)
    assert job.end(VerdictKind.TIME_LIMIT, state=State.HALTED).starter == "job"
    assert (job.verdict.progress, job.verdict.used_s, job.runs_here) == (7, 50, False)
    assert job.read("asked") == "2\n" and job.said[-1] == "It is job 8."
    assert job.read(contract.submit_begin(2)) == f"{job.plan.training_id}.2\n"
    assert job.read(contract.submit_answer(2)) == "0\n2\n8\n"
    plan = contract.read_record(Plan, tmp_path / contract.plan_file(2))
    assert plan is not None and plan.resources.time_s == 250
    script = job.read(contract.script_file(2))
    assert "#SBATCH --nodes=2\n" in script and "--begin" not in script
    assert script.count("--time=") == 1 and "#SBATCH --time=0:04:10\n" in script


def test_a_supervisor_that_dies_while_it_stores_is_succeeded_without_a_checkpoint(tmp_path):
    """It once said: there is no checkpoint to go on from; `retries: 3` would begin again."""
    job = Job(tmp_path)
    (tmp_path / contract.CHECKPOINTS / "step-000000000007").rmdir()
    action, following = job.conclude(VerdictKind.UNKNOWN)
    assert following is None and "there is no checkpoint" in action.why
    contract.write_whole(tmp_path / contract.plan_file(1), to_json(job.plan))
    done = Verdict(1, "7", State.COMPLETED, "All learners ended.")
    contract.write_whole(tmp_path / contract.trained_file(1), to_json(done))
    action = job.end(VerdictKind.UNKNOWN)
    assert action.goes_on and action.why == "retry 1 of 3, which only stores the results"


def test_a_fault_is_retried_in_the_same_job(tmp_path):
    job = Job(tmp_path)
    assert job.end(VerdictKind.UNKNOWN).starter == "in_allocation"
    assert job.runs_here and job.read(contract.claim(2)) == "7\n"
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(("kind", "left_s"), [
    (VerdictKind.UNKNOWN, 60.0), (VerdictKind.NODE_LOST, 500.0), (VerdictKind.SCHEDULER, 500.0),
])  # fmt: skip
def test_another_job_is_needed_if_this_one_is_of_no_use(tmp_path, kind, left_s):
    job = Job(tmp_path)
    job.end(kind, left_s=left_s)
    assert not job.runs_here and job.read("asked") == "2\n"


@pytest.mark.parametrize("starters", [[], ["job"]])
def test_what_slurm_has_put_back_is_left_to_slurm(tmp_path, starters):
    """A job beside one that an administrator holds would get around the hold."""
    job = Job(tmp_path, **({"starters": [*starters, "client"]} if starters else {})).on("slurm")
    back = contract.Evidence(scheduler_state="REQUEUED", scheduler_reason="held")
    action = job.end(VerdictKind.PREEMPTED, state=State.HALTED, evidence=back)
    assert (action.starter, job.runs_here) == ("requeue", False)
    assert job.said[-1] == "This job is in the queue again, and starts it."
    assert not (tmp_path / "asked").exists()
    assert not (tmp_path / contract.submit_begin(2)).exists()
    _, following = conclude(tmp_path, job.plan, job.verdict, 500.0, is_fresh=True)
    assert following is not None and follow(following, job.said.append)


def test_a_purge_of_the_attempt_before_ends_no_chain(tmp_path):
    """It removed manifest and script, too, while a requeued job was held: none is needed here."""
    job = Job(tmp_path)
    for name in (contract.MANIFEST, contract.SCRIPT):
        (tmp_path / name).unlink()
    assert job.end(VerdictKind.UNKNOWN).starter == "in_allocation"
    assert job.runs_here and contract.read_record(Plan, tmp_path / contract.plan_file(2))


def test_the_plan_of_an_attempt_is_another_ones_if_a_purge_has_removed_it(tmp_path):
    job = Job(tmp_path)
    contract.write_whole(tmp_path / contract.plan_file(1), to_json(job.plan))
    assert plan_left(tmp_path, 2) == job.plan
    (tmp_path / contract.plan_file(1)).unlink()
    with pytest.raises(SiteFault) as lost:
        plan_left(tmp_path, 2)
    assert lost.value.hint.endswith(f"dlctl resume --code {tmp_path.name}")


def test_without_its_runtime_no_attempt_begins_in_the_same_job(tmp_path):
    """It was purged: the next dlctl sends it again."""
    job = Job(tmp_path)
    job.plan = replace(job.plan, runtime_dir=str(tmp_path / "purged"))
    assert job.end(VerdictKind.UNKNOWN).starter == "client"
    assert not (tmp_path / "asked").exists()


def test_a_node_that_may_not_submit_leaves_it_to_the_client(tmp_path):
    job = Job(tmp_path, "echo 'sbatch: error: Access denied' >&2; exit 1")
    job.end(VerdictKind.NODE_LOST)
    assert "Access denied" in job.said[-2] and "next dlctl command" in job.said[-1]
    assert not (tmp_path / contract.submit_begin(2)).exists()
    assert begin(tmp_path, 1, job.plan, contract.Action(contract.Next.RETRY, ""))


def test_only_one_begins_the_next_attempt(tmp_path):
    job = Job(tmp_path)
    action = contract.Action(contract.Next.RETRY, "")
    assert [begin(tmp_path, 1, job.plan, action) for _ in range(3)] == [True, False, False]
    assert not list((tmp_path / contract.attempt_dir(2)).glob(".sent*"))
    job.end(VerdictKind.UNKNOWN)
    assert job.said[-1] == "Somebody else has begun attempt 2." and not job.runs_here


def test_an_attempt_that_dlctl_has_claimed_does_not_run(tmp_path):
    """`dlctl cancel` claims an attempt that has begun, so that no job ever runs it."""
    job = Job(tmp_path)
    (tmp_path / contract.attempt_dir(2)).mkdir()
    (tmp_path / contract.claim(2)).write_text(f"{contract.NOBODY}\n")
    job.end(VerdictKind.UNKNOWN)
    assert job.said[-1] == "Somebody else has claimed attempt 2." and not job.runs_here


@pytest.mark.parametrize("request_file", [contract.HALT_REQUEST, contract.CANCEL_REQUEST])
def test_a_person_ends_the_chain(tmp_path, request_file):
    job = Job(tmp_path)
    _, following = job.conclude(VerdictKind.UNKNOWN)
    (tmp_path / request_file).write_text("")  # comes after the decision
    assert following is not None and not follow(following, job.said.append)
    assert job.said[-1] == "A person ended the training."
    assert not (tmp_path / contract.submit_begin(2)).exists()


def test_a_job_that_slurm_has_taken_from_the_node_begins_nothing(tmp_path, monkeypatch):
    """The node was cut from the network; Slurm runs the job again on another one."""
    job = Job(tmp_path)
    answers, squeue = tmp_path / "answers", tmp_path / "bin/squeue"
    answers.mkdir()
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\nfor f in {answers}/*; do . $f; rm $f; exit $code; done\n")
    squeue.chmod(0o755)
    job.plan = replace(job.plan, launch=contract.Launch("srun", [f"{tmp_path}/bin/srun"]))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    for said, elsewhere in (
        (["echo 'Unable to contact slurm controller' >&2; code=1", "echo n2; code=0"], True),
        (["echo 'slurm_load_jobs error: Invalid job id specified' >&2; code=1"], True),
        (["echo n/a; code=0"], True),  # it waits in the queue again
        (["echo n1; code=0"], False),
    ):
        for number, answer in enumerate(said):
            (answers / f"{number}").write_text(answer)
        job.end(VerdictKind.UNKNOWN)
        assert job.runs_here is not elsewhere
        if elsewhere:
            assert job.said[-1] == "Slurm has taken the job from this node: it goes on elsewhere."
            assert not (tmp_path / contract.submit_begin(2)).exists()


def test_a_container_without_slurms_commands_holds_nothing_up(tmp_path, monkeypatch):
    job = Job(tmp_path)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("PATH", str(tmp_path))
    job.end(VerdictKind.UNKNOWN)
    assert job.runs_here


def test_options_of_a_batch_script_are_replaced_and_removed():
    plan = make_plan(time_s=3600)
    avoiding = replace(plan, batch=replace(plan.batch, exclude=["n1", "n2"]))
    changed = batch_system(plan).script_of(SCRIPT, avoiding, 0.0)
    assert changed == (
        "#!/bin/bash\n#SBATCH --time=1:00:00\n# dlctl-avoid: n1,n2\n#SBATCH --nodes=2\nset -u\n"
    )
    assert batch_system(plan).script_of(changed, avoiding, 0.0).count("dlctl-avoid") == 1
    assert "#SBATCH --begin=now+30\n" in batch_system(plan).script_of(changed, plan, 30.0)


def test_a_programs_own_checkpoints_count_by_their_time(tmp_path):
    """One that is overwritten below a folder is progress; what is still being written is not."""
    assert newest_checkpoint(tmp_path) == (-1, 0.0)
    file = tmp_path / contract.CHECKPOINTS / "last/model.pt"
    file.parent.mkdir(parents=True)
    hidden = file.with_name(".model.pt.new")
    file.touch()
    hidden.touch()
    for path, written_s in ((hidden, 3e9), (file, 2e9), (file.parent, 1e9)):
        os.utime(path, (written_s, written_s))
    assert newest_checkpoint(tmp_path) == (2_000_000_000, 2e9)


def test_an_attempt_with_fewer_learners_keeps_the_shape_of_the_rest():
    plan = make_plan()
    resources = replace(
        plan.resources, learners=5, nodes=3, learners_per_node=[2, 2, 1], first_ranks=[0, 2, 4]
    )
    argv = ["/opt/srun", "--mpi=pmix", "--nodes=3", "--ntasks=5", "--kill-on-bad-exit=1"]
    plan = replace(
        plan, resources=resources, launch=contract.Launch("srun", argv),
        lifecycle=Lifecycle(min_learners=3),
    )  # fmt: skip
    hosts = ["a", "b", "c"]
    fewer = reduced(plan, 4, hosts, ["c", "a"])
    assert fewer is not None and fewer.lifecycle is not None
    assert (fewer.resources.learners, fewer.resources.nodes) == (3, 2)
    assert (fewer.resources.learners_per_node, fewer.resources.first_ranks) == ([2, 1], [0, 2])
    assert fewer.launch.argv == [
        "/opt/srun", "--nodes=2", "--ntasks=3", "--nodelist=a,c", "--overlap", "--mpi=pmix",
        "--kill-on-bad-exit=1",
    ]  # fmt: skip
    assert fewer.lifecycle.whole_attempt == 4
    mpirun = replace(plan, launch=contract.Launch("mpirun", ["mpirun", "-n", "5", "--mca", "a"]))
    for _ in range(2):  # a second node is lost
        mpirun = reduced(mpirun, 4, hosts, ["c", "a"])
        assert mpirun is not None
        assert mpirun.launch.argv == ["mpirun", "-n", "3", "--host", "a:2,c:1", "--mca", "a"]
        mpirun = replace(mpirun, resources=resources)
    assert reduced(plan, 4, hosts, ["c"]) is None, "fewer than min_learners"
    assert reduced(plan, 4, hosts, hosts) is None and reduced(plan, 4, hosts, []) is None
    again = reduced(replace(fewer, lifecycle=replace(fewer.lifecycle, min_learners=1)), 5,
                    ["a", "c"], ["c"])  # fmt: skip
    assert again is not None and again.lifecycle is not None
    assert (again.resources.learners, again.lifecycle.whole_attempt) == (1, 4)


@pytest.mark.parametrize("starters", [["in_allocation", "requeue", "client"], ["job"]])
def test_the_login_side_submits_whatever_the_nodes_may(tmp_path, starters):
    job = Job(tmp_path, starters=starters)
    job.end(VerdictKind.GPU_ERROR, left_s=None, in_job=False, finished_at=1.0)
    assert not job.runs_here
    assert job.read("asked") == "2\n" and job.said[-1] == "It is job 8."


def test_a_submit_command_that_is_gone_begins_nothing(tmp_path):
    job = Job(tmp_path)
    _, following = job.conclude(VerdictKind.NODE_LOST, finished_at=1.0)
    assert following is not None
    (tmp_path / contract.SUBMIT_NEXT).unlink()
    follow(following, job.said.append)
    assert "the submit command can't be run" in job.said[-2]
    assert not (tmp_path / contract.submit_begin(2)).exists()


@pytest.mark.parametrize("error", [
    "Socket timed out on send/recv operation", "Zero Bytes were transmitted or received",
    "Unexpected message received", "(killed)",
])  # fmt: skip
def test_a_submission_whose_end_is_unknown_is_looked_for_by_name(tmp_path, error):
    end = "kill -9 $$" if error == "(killed)" else f"echo 'sbatch: error: {error}' >&2; exit 1"
    job = Job(tmp_path, end)
    job.end(VerdictKind.NODE_LOST)
    assert job.said[-1] == "It is job (not known yet)."
    assert (tmp_path / contract.submit_begin(2)).exists()


def test_a_local_job_does_not_wait_for_a_retry_that_comes_after_its_limit(tmp_path):
    job = Job(tmp_path, backoff_s=300.0).on("local")
    assert job.end(VerdictKind.NETWORK, left_s=100.0).starter == "client"
    assert "next dlctl command" in job.said[-1]


def test_a_retry_that_is_overdue_waits_no_second_time(tmp_path):
    action = contract.Action(contract.Next.RETRY, "", 2, not_before=5.0)
    concluded, _ = Job(tmp_path, backoff_s=300.0).conclude(
        VerdictKind.NETWORK, None, in_job=False, finished_at=1.0, action=action
    )
    assert concluded.not_before == 5.0


def test_an_attempt_in_the_same_job_ends_with_the_job_and_not_later(tmp_path):
    _, following = Job(tmp_path, backoff_s=100.0).conclude(VerdictKind.NETWORK, finished_at=1.0)
    assert following is not None and following.left_s < 430.0


def test_a_short_limit_stays_the_limit_of_the_next_job(tmp_path):
    job = Job(tmp_path, total_time_s=3000)
    job.plan = replace(job.plan, resources=replace(job.plan.resources, time_s=20))
    _, following = job.conclude(VerdictKind.TIME_LIMIT, state=State.HALTED)
    assert following is not None and following.plan.resources.time_s == 20


@pytest.mark.parametrize("total_s", [40, 3000])
def test_a_training_whose_time_is_used_up_is_told_one_way_on(tmp_path, total_s):
    """Its verdict said `dlctl resume`, and what follows said `dlctl resume --time`."""
    hint = "Continue with: dlctl resume t-1"
    job = Job(tmp_path, total_time_s=total_s)
    action = job.end(VerdictKind.TIME_LIMIT, state=State.HALTED, hint=hint)
    assert "dlctl" not in action.why
    if total_s == 40:
        hint = "Resume from the newest checkpoint, with more time: dlctl resume t-1 --time 1m20s"
    assert job.verdict.hint == hint


def test_who_has_saved_nothing_when_the_time_is_used_up_hears_that_all_begins_anew(tmp_path):
    """It was told to "go on", as if what it had trained were still there."""
    job = Job(tmp_path, total_time_s=40)
    job.end(VerdictKind.TIME_LIMIT, state=State.HALTED, made=contract.Made())
    assert job.verdict.hint == (
        "Resume from the beginning (there is no checkpoint), with more time: "
        "dlctl resume t-1 --time 1m20s"
    )


@pytest.mark.parametrize(("got", "starter"), [("n1", "client"), ("n2", "in_allocation")])
def test_a_job_that_got_the_bad_node_again_does_not_go_on(tmp_path, monkeypatch, got, starter):
    job = Job(tmp_path, starters=["requeue", "client"]).on("slurm")
    monkeypatch.setattr("learner.job.batch.slurm.Slurm.hosts", lambda _: [got])
    blamed = contract.Evidence("learner", 0, "n1")
    action, _ = job.conclude(VerdictKind.GPU_ERROR, is_fresh=True, evidence=blamed, progress=7)
    assert action.starter == starter


def test_a_job_that_is_ended_while_a_retry_waits_lets_another_job_begin_it(tmp_path, monkeypatch):
    job = Job(tmp_path, backoff_s=60.0)
    action, following = job.conclude(VerdictKind.NETWORK, finished_at=1.0)
    assert action.starter == "in_allocation" and following is not None
    monkeypatch.setattr(manager, "time", SimpleNamespace(
        time=time.time, monotonic=time.monotonic, sleep=lambda _: pytest.fail("it waited")
    ))  # fmt: skip
    follow(replace(following, plan=job.on("slurm").plan), job.said.append, lambda: True)
    assert "It can't be started by in_allocation: the scheduler ends the job" in job.said
    assert job.said[-1] == "It is job 8."


@pytest.mark.parametrize("owner", ["", "8"])
def test_a_job_that_runs_again_takes_over_what_it_has_begun_unless_another_job_has(tmp_path, owner):
    job = Job(tmp_path, "kill -9 $$")
    assert job.end(VerdictKind.NODE_LOST).starter == "job"
    assert job.read(contract.submit_answer(2)).startswith("-9\n") and not job.runs_here
    if owner:
        (tmp_path / contract.claim(2)).write_text(owner)
    _, following = conclude(tmp_path, job.plan, job.verdict, 500.0, is_fresh=True)
    assert following is not None
    assert follow(following, job.said.append) == (not owner)
    assert job.read(contract.claim(2)).strip() == (owner or "7")


def test_a_signal_of_slurms_does_not_end_the_submission(tmp_path):
    job = Job(tmp_path, "kill $$; echo 8").on("slurm")
    job.end(VerdictKind.NODE_LOST)
    assert job.said[-1] == "It is job 8."


def test_a_local_job_at_its_limit_begins_the_next_link_at_once(tmp_path):
    job = Job(tmp_path).on("local")
    assert job.end(VerdictKind.TIME_LIMIT, state=State.HALTED, left_s=2.0).starter == "job"
    assert job.said[-1] == "It is job 8."
