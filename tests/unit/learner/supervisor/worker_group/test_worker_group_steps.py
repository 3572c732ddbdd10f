"""The worker group when steps end or can't start and nodes are lost, with scripted steps."""

from collections import defaultdict

import pytest
from worker_group_job import WorkerGroupJob

from dlctl import contract
from dlctl.contract import State, Status
from learner.errors import EXIT_NO_RESTART, UserFault
from learner.job.status import UNSAVED
from learner.supervisor.attempt import Supervisor
from learner.supervisor.control import EndRequest
from learner.supervisor.statuses import Statuses
from learner.supervisor.worker_group import group as group_module
from learner.supervisor.worker_group import nodes
from learner.supervisor.worker_group.group import WorkerGroup
from learner.supervisor.worker_group.shard_placement import make_secret


class FakeStep:
    """A step that ends when it is terminated, or when a test ends it."""

    def __init__(self, *_):
        self.exit_code = None
        self.said = []

    def words(self):
        return self.said

    def terminate(self):
        self.end(143)

    def kill(self):
        self.end(137)

    def end(self, code, *words):
        if self.exit_code is None:
            self.exit_code, self.said = code, [*words]


class FakeNodes:
    """Hosts, none of which is lost."""

    def __init__(self, nodes):
        self.hosts = [f"n{node}" for node in range(nodes)]

    def ask(self):
        pass

    def gone(self):
        return set()


class Played:
    """A worker group whose steps and clock the test controls."""

    def __init__(self, root, learners, nodes, **server):
        self.job = WorkerGroupJob(root, learners, nodes=nodes)
        asked = {**vars(self.job.plan.parameter_server), **server}
        self.job.write_plan(parameter_server=contract.ParameterServer(**asked))
        self.now = 0.0
        self.said = []
        self.cant_start = set()
        self.took_over = []
        """For each started server: does it take over existing shards?"""
        self.overlapped = []
        """For each started learner: does it share cores with ended steps?"""
        self.cleaned_by = []
        self.steps = defaultdict(list)
        (self.job.dir / contract.status_file(1, "server", 0)).parent.mkdir(parents=True)
        self.statuses = Statuses(self.job.dir, 1)
        self.group = WorkerGroup(
            self.job.plan, self.job.dir, self.statuses, FakeNodes(nodes),
            self.said.append, lambda: self.now,
        )  # fmt: skip

    def start(self, name):
        if name in self.cant_start:
            raise UserFault("The launcher 'srun' can't be started: no memory.")
        self.steps[name].append(FakeStep())
        return self.steps[name][-1]

    def poll(self, seconds=1.0, *, halting=False, terminated=False):
        request = (
            EndRequest("halt", "halted on request", 9.0, terminated=terminated)
            if halting or terminated
            else None
        )
        for _ in range(max(1, int(seconds))):
            self.now += 1.0
            self.group.poll(request, silent=False)

    def status(self, role, rank):
        return self.statuses.read(role, rank)

    def say(self, role, rank, state, **more):
        more.setdefault("started_at", self.now)
        path = self.job.dir / contract.status_file(1, role, rank)
        contract.write_whole(path, contract.to_json(Status(role, rank, 1, state, **more)))

    def end_learner(self, rank, state=State.COMPLETED, **more):
        self.say("learner", rank, state, **more)
        self.steps[f"learner {rank}"][-1].end(0)


@pytest.fixture
def play(tmp_path, monkeypatch):
    """Makes worker groups with scripted steps."""
    made = []

    class Made(Played):
        def __init__(self, *args, begun=True, **server):
            made.append(self)
            super().__init__(tmp_path, *args, **server)
            if begun:
                self.poll()

    def learner(*args, overlaps):
        made[-1].overlapped.append(overlaps)
        return made[-1].start(f"learner {args[4]}")

    def server(*args):
        made[-1].took_over.append(args[5])
        return made[-1].start(f"server {args[3]}")

    monkeypatch.setattr(group_module, "learner_step", learner)
    monkeypatch.setattr(group_module, "server_step", server)

    def cleaner(_plan, argv, *_):
        made[-1].cleaned_by.append(argv)
        return made[-1].start("cleaner")

    monkeypatch.setattr(nodes, "Step", cleaner)
    return Made


def test_servers_are_started_before_learners(play):
    job = play(2, 2, begun=False)
    assert sorted(job.steps) == ["server 0", "server 1"]
    job.poll()
    assert sorted(job.steps) == ["learner 0", "learner 1", "server 0", "server 1"]


@pytest.mark.parametrize(
    ("state", "more", "saved"),
    [
        (State.HALTED, {"exit_code": 85}, True),
        (State.HALTED, {"exit_code": 0}, True),
        (State.HALTED, {"signal": 12}, True),
        (State.HALTED, {"signal": 9}, False),
        (State.HALTED, {"signal": 15, "exit_code": 143}, False),
        (State.HALTED, {}, False),
        (State.FAILED, {"signal": 9, "reason": UNSAVED}, False),
    ],
)
def test_a_server_lost_while_halting_fails_the_training_unless_saved(play, state, more, saved):
    """If learner 0 can still save, the training halts; if not, it fails."""
    job = play(4, 2)
    job.steps["server 0"][0].end(EXIT_NO_RESTART, "/dev/shm can't hold the shards")
    job.poll(5, halting=True)
    assert [job.steps[f"learner {rank}"][0].exit_code for rank in range(4)] == [None] * 4
    for rank in (1, 2, 3):
        job.end_learner(rank, State.HALTED)
    job.end_learner(0, state, **more)
    job.poll(60, halting=True)
    assert job.group.exit_code == int(not saved)
    if not saved:
        assert "/dev/shm can't hold the shards" in job.group.failure.reason


def test_a_death_is_announced_once_the_file_system_is_back(play):
    """A restarted learner would wait for its turn, and the others of its round for that learner."""
    job = play(2, 1)
    told = job.job.dir / contract.restarted_file(1)
    told.symlink_to("/proc/none/restarted")  # it can't be made
    job.end_learner(1, State.FAILED, signal=9, pid=1)
    job.poll(5)
    assert len(job.steps["learner 1"]) == 2
    told.unlink()
    job.poll()
    assert told.exists()


@pytest.mark.parametrize("halting", [False, True])
def test_too_few_learners_left_by_a_lost_node_end_the_training(play, halting):
    """While halting, they stop nobody from saving."""
    job = play(4, 2, min_learners=3)
    for rank in (2, 3):
        job.steps[f"learner {rank}"][0].end(1, "srun: error: Node failure on n1")
    if halting:
        job.poll(halting=True)
        assert job.steps["learner 0"][0].exit_code is None and job.group.failure is None
        for rank in (0, 1):
            job.end_learner(rank, State.HALTED)
    job.poll(60, halting=halting)
    assert job.group.exit_code == int(not halting) and set(job.group.lost) == {2, 3}
    if not halting:
        assert "2 of 4 learners are left, min_learners is 3" in job.group.failure.reason
        assert "dlctl resume" in job.group.failure.hint


def test_learners_that_die_after_a_node_was_lost_wait_for_no_cores(play):
    """Slurm no longer knows which cores are free."""
    job = play(3, 3)
    job.say("learner", 0, State.FAILED, pid=5, signal=9)
    job.steps["learner 0"][-1].end(137)
    job.poll(3)
    job.steps["learner 2"][-1].end(1, "srun: error: Node failure on n2")
    job.poll()
    for rank in (0, 1):
        job.say("learner", rank, State.FAILED, pid=6, signal=9)
        job.steps[f"learner {rank}"][-1].end(137)
    job.poll(9)
    assert [len(job.steps[f"learner {rank}"]) for rank in range(3)] == [3, 2, 1]
    assert job.overlapped == [False] * 4 + [True] * 2


def test_chunks_of_a_learner_on_a_lost_node_are_given_out_again(play, monkeypatch):
    """Nothing waits for its step to end; while the cursor is in use, the attempt is repeated."""
    answers, expelled = [True, False], []

    def expel(path, number):
        expelled.append((path.name, number))
        return answers.pop()

    monkeypatch.setattr(group_module, "expel", expel)
    job = play(2, 2)
    (job.job.dir / contract.cursor_learner_file(1, 1)).write_text("7\n")
    step = job.steps["learner 1"][-1]
    step.terminate = step.kill = lambda: None
    job.steps["server 1"][-1].end(1, "srun: error: Node failure on n1")
    job.poll(2)
    assert job.group.lost and step.exit_code is None
    assert expelled == [("cursor", 7)] * 2


@pytest.mark.parametrize("later", [True, False])
def test_a_step_that_cannot_start_is_retried_and_then_given_up(play, later):
    job = play(3, 1, begun=False, min_learners=2)
    job.cant_start = {"learner 1"}
    job.poll()
    why = "The launcher 'srun' can't be started: no memory"
    assert job.said == [f"learner 1 on n0 waits 0.5 s: {why}."]
    if later:
        job.cant_start.clear()
    job.poll(20)
    assert len(job.steps["learner 1"]) == later and job.group.failure is None
    if not later:
        assert job.group.lost == {1: f"could not be started: {why}"}
        assert job.job.homes() == contract.Homes(2, [0], lost_learners=[1])


def test_a_server_that_cannot_start_fails_the_training_and_leaves_no_secret(play):
    job = play(2, 1)
    job.steps["server 0"][0].end(137)
    job.cant_start = {"server 0"}
    job.poll(120)
    assert job.group.exit_code == 1
    assert job.group.failure.reason.endswith(
        "can't continue: The launcher 'srun' can't be started: no memory."
    )
    job.group.close()
    assert not (job.job.dir / contract.server_secret(1)).exists()


def crash(job, lives, seconds, *, serves=True):
    """Let node 0's server live for a time and end, and repeat that."""
    for _ in range(lives):
        assert job.group.failure is None
        if serves:
            job.say("server", 0, State.TRAINING, reason="serves")
        job.poll(seconds)
        job.steps["server 0"][-1].end(1, "[server 0 on n0] it is all wrong")
        job.poll(40)  # waits that grow


@pytest.mark.parametrize("serves", [True, False])
def test_a_server_that_always_ends_is_given_up(play, serves):
    """One that never serves is given up however long it lives."""
    job = play(2, 1)
    crash(job, 5, 300, serves=serves)
    failure = job.group.failure
    assert failure.reason == (
        "The server on n0 failed 5 times in a row, each time within 10 min of its start, "
        "with exit code 1: it is all wrong"
    )
    name = job.job.plan.training_id
    assert failure.hint == (
        f"See why in server-0.log (dlctl logs {name}), then resume from the newest checkpoint: "
        f"dlctl resume {name}"
    )
    assert job.status("server", 0).state is State.FAILED


def test_a_server_that_dies_rarely_is_always_restarted(play):
    job = play(2, 1)
    for _ in range(3):
        crash(job, 4, 300)
        crash(job, 1, 601)
    assert job.group.failure is None


def test_the_status_of_a_server_shows_its_death(play):
    job = play(2, 1, begun=False)
    job.say("server", 0, State.TRAINING, reason="serves", pid=7)
    job.poll(40)
    job.steps["server 0"][0].end(137)
    job.poll()
    seen = job.status("server", 0)
    assert (seen.state, seen.pid) == (State.DEPLOYING, 0)
    assert seen.reason == "ended with exit code 137; restarting"
    job.poll(2)
    job.say("server", 0, State.TRAINING, reason="serves", pid=8)
    for rank in range(2):
        job.end_learner(rank)
    job.poll(60)
    assert job.group.exit_code == 0
    assert job.status("server", 0).state is State.CANCELLED


def test_the_server_of_a_lost_node_ends_as_failed(play):
    job = play(4, 2, begun=False)
    job.say("server", 1, State.TRAINING, reason="serves")
    job.poll()
    job.steps["learner 3"][0].end(1, "srun: error: Node failure on n1")
    job.poll()
    seen = job.status("server", 1)
    assert (seen.state, seen.reason) == (State.FAILED, "was lost with node n1")
    job.say("server", 1, State.COMPLETED, reason="ended with the training")  # it was only cut off
    for rank in (0, 1):
        job.end_learner(rank)
    job.poll(60)
    assert job.group.exit_code == 0
    assert job.status("server", 1) == seen


def test_a_step_whose_predecessor_holds_its_memory_is_retried_for_two_minutes(play):
    job = play(2, 1, min_learners=1)
    full = "srun: error: Unable to create step for job 7: Memory required by task is not available"
    job.steps["learner 1"][-1].end(1, full)  # counts as a death: it has never run
    job.poll(10)
    job.say("learner", 1, State.TRAINING, step=7)
    job.steps["learner 1"][-1].end(137)
    job.poll(10)
    assert 1 not in job.group.lost
    tries = 0
    while 1 not in job.group.lost and tries < 100:
        tries += 1
        job.steps["learner 1"][-1].end(1, full)
        job.poll(10)
    assert (tries, job.group.failure) == (25, None)


def test_a_server_takes_over_if_one_has_served_and_learners_run(play):
    """Without learners, or before it has served, a server creates the memory itself."""
    job = play(2, 1)
    job.steps["server 0"][-1].end(137)
    job.poll(2)
    job.say("server", 0, State.TRAINING)
    for _ in range(2):  # the second one dies before it serves
        job.steps["server 0"][-1].end(137)
        job.poll(10)
        job.say("server", 0, State.DEPLOYING)
    for rank in range(2):
        job.steps[f"learner {rank}"][-1].end(137)
    job.steps["server 0"][-1].end(137)
    job.cant_start = {"learner 0", "learner 1"}
    job.poll(2)
    job.poll(8)
    assert job.took_over == [False, False, True, True, False]


def test_a_server_that_removed_its_own_shards_creates_them_again(play):
    """Nobody needed its shards while the supervisor was silent."""
    job = play(2, 1)
    for state, code in ((State.TRAINING, 137), (State.CANCELLED, 0)):
        job.say("server", 0, state)
        job.steps["server 0"][-1].end(code)
        job.poll(10)
    assert job.took_over == [False, True, False]


@pytest.mark.parametrize("role", ["learner", "server"])
def test_the_death_of_a_begun_step_counts_whatever_srun_prints(play, role):
    """srun complains about a busy controller at each end; without this, restarts never stop."""
    job = play(2, 1)
    busy = "srun: error: slurm_receive_msg: Socket timed out on send/recv operation"
    for _ in range(10):
        job.say(role, 0, State.DEPLOYING, pid=77)
        job.steps[f"{role} 0"][-1].end(139, busy)
        job.poll(20)
    assert job.group.failure is not None
    assert len(job.steps[f"{role} 0"]) < 10


@pytest.mark.parametrize("name", ["learner 0", "server 0"])
def test_a_step_that_cannot_begin_while_the_controller_is_away_is_no_death(play, name):
    job = play(2, 1)
    away = (
        "srun: error: Unable to confirm allocation for job 58: Unable to contact slurm controller"
    )
    for count in range(1, 11):
        assert len(job.steps[name]) == count
        job.steps[name][-1].end(1, away, "srun: Check SLURM_JOB_ID environment variable.")
        job.poll(10)
    assert (job.group.failure, job.group.lost) == (None, {})


def test_nothing_is_restarted_once_the_whole_job_gets_sigterm(play):
    job = play(3, 2, min_learners=2)
    job.poll(terminated=True)
    job.say("learner", 0, State.FAILED, signal=15, reason="killed by signal 15")
    job.steps["learner 0"][0].end(143, "srun: forcing job termination")
    job.steps["server 1"][0].end(0, "srun: error: Timed out waiting for job step to complete")
    job.poll(20, terminated=True)
    assert job.group.exit_code is None  # the others still have time to save
    job.end_learner(1, State.HALTED)
    job.steps["learner 2"][0].end(137)
    job.steps["server 0"][0].end(137, "srun: error: Slurm job 7 has expired")
    job.poll(10, terminated=True)
    assert job.group.exit_code == 0
    assert {name: len(steps) for name, steps in job.steps.items()} == {
        "server 0": 1, "server 1": 1, "learner 0": 1, "learner 1": 1, "learner 2": 1,
    }  # fmt: skip
    ends = [job.status("learner", rank).state for rank in range(3)]
    assert ends == [State.CANCELLED, State.HALTED, State.CANCELLED]
    assert any("may be left on n0" in line for line in job.said)


@pytest.mark.parametrize(
    ("words", "life_s", "deaths", "said"),
    [
        ("srun: error: n0: task 0: Out Of Memory", 100, 3,
         "was killed by signal 9, out of memory, 3 times in a row, each within 10 min"),
        ("srun: error: n0: task 0: Killed", 10, 20,
         "was killed by signal 9, 20 times in a row, each within 60 s of its start"),
        ("srun: error: n0: task 0: Out Of Memory", 700, 0, ""),
        ("srun: error: n0: task 0: Killed", 100, 0, ""),
    ],
)  # fmt: skip
def test_a_learner_that_keeps_dying_is_given_up(play, words, life_s, deaths, said):
    """Even if each life trains on a chunk, that is seconds in a training of weeks."""
    job = play(3, 1, min_learners=2, begun=False)
    for count in range(deaths or 30):
        job.poll(life_s)
        assert (len(job.steps["learner 1"]), job.group.lost) == (count + 1, {})
        job.say("learner", 1, State.FAILED, pid=5, signal=9, metrics={"batches": 3.0})
        job.steps["learner 1"][-1].end(137, words)
    job.poll()
    assert list(job.group.lost) == [1] * bool(deaths)
    assert said in job.group.lost.get(1, "")
    assert all(("memory" in line) == ("Memory" in words) for line in job.said)
    assert job.group.failure is None


@pytest.mark.parametrize(
    ("rank", "least", "failure", "lost"),
    [
        (2, 2, "", [2]),
        (2, 3, "2 of 3 learners are left, min_learners is 3", [2]),
        (0, 1, "without finishing a chunk: it validates and saves.", [0]),
    ],
)
def test_a_learner_that_dies_without_progress_is_given_up(play, rank, least, failure, lost):
    job = play(3, 1, min_learners=least, begun=False)
    for _ in range(3):
        job.poll(5)
        job.end_learner(rank, State.FAILED, pid=5, signal=9)
    job.poll()
    assert list(job.group.lost) == lost
    assert bool(job.group.failure) == bool(failure)
    if failure:
        evidence = job.group.failure.evidence
        assert failure in job.group.failure.reason and "memory" in job.group.failure.hint
        assert (evidence.rank, evidence.signal) == (rank, 9)
    assert "3 times in a row without finishing a chunk" in job.group.lost[rank]


def test_a_user_error_ends_all_learners(play):
    job = play(2, 1)
    job.end_learner(1, State.FAILED, exit_code=1, last_lines=["ValueError: so it goes"])
    job.poll(60)
    assert len(job.steps["learner 1"]) == 1
    assert job.steps["learner 0"][0].exit_code == 143
    assert any(line.endswith("ending the others.") for line in job.said)


@pytest.mark.parametrize(("rank", "lives"), [(0, 2), (1, 1)])
def test_only_learner_0_is_restarted_while_halting(play, rank, lives):
    """A halt needs only learner 0, which saves. A watchdog that was killed, too, says nothing."""
    job = play(2, 1)
    job.say("learner", rank, State.TRAINING, pid=5)
    job.steps[f"learner {rank}"][0].end(137)
    job.poll(5, halting=True)
    assert len(job.steps[f"learner {rank}"]) == lives
    assert any("vanished: restarting it" in line for line in job.said) == (rank == 0)


@pytest.mark.parametrize("back", [True, False])
def test_removal_of_shared_memory_is_retried_or_reported(play, back):
    """Slurm's controller is away when a server is killed and the training ends."""
    job = play(2, 1)
    job.cant_start = {"server 0"}
    job.steps["server 0"][-1].end(137)
    for rank in range(2):
        job.end_learner(rank)
    job.poll(2)
    job.steps["cleaner"][-1].end(1, "srun: error: Unable to contact slurm controller.")
    job.poll()
    job.cant_start = set() if back else {"cleaner"}
    job.steps["cleaner"][-1].end(0 if back else 1, "srun: still away.")
    job.poll(20)
    assert job.group.exit_code == 0
    assert len(job.steps["cleaner"]) == 2
    left = "may be left on n0 (The launcher 'srun' can't be started: no memory)"
    assert [left in line for line in job.said if "shared memory" in line] == [True] * (not back)


def test_the_next_attempt_removes_what_a_killed_supervisor_left(tmp_path):
    job = WorkerGroupJob(tmp_path, 2)
    make_secret(job.dir, 1)
    (job.dir / contract.snapshot_file(1, 0)).touch()
    (job.dir / contract.attempt_dir(2)).mkdir()
    make_secret(job.dir, 2)
    supervisor = Supervisor(job.dir, 2, job.plan, None)
    supervisor._make_folders()
    assert list((job.dir / contract.server_dir(1)).iterdir()) == []
    assert (job.dir / contract.server_secret(2)).exists()
