"""All pairs: how one learner failed, and what its launcher, or MPI, then did to the other.

The lines of srun and mpirun are those of real runs: Slurm 22.05, Open MPI 4.1 and 5.0, torch 2.13.
`tests/cluster/test_blame.py` makes such ends happen.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from node_job import Job, status

from dlctl.contract import Launch, State, Status, VerdictKind
from dlctl.contract.launchers import LAUNCHERS as LAUNCHERS_OF
from dlctl.contract.programs.mpi_words import ABORTED, without_frames
from learner.errors import EXIT_HALTED
from learner.job.outcome import Outcome
from learner.job.status import STUCK, end_line, last_lines, with_end
from learner.supervisor.control import EndRequest
from learner.supervisor.statuses import Observed
from learner.supervisor.verdict import decide

K = VerdictKind


def traceback(error: str) -> list[str]:
    """Return what `last_lines` keeps of a traceback."""
    return ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', error]


@dataclass(frozen=True)
class How:
    """How the learner that is to be blamed ends, and what has to be said of it."""

    kind: VerdictKind
    says: str
    state: State = State.FAILED
    lines: tuple[str, ...] = ("epoch 1",)
    code: int | None = None
    signal: int | None = None

    @property
    def exit_code(self) -> int:
        """What the launcher sees."""
        return 128 + self.signal if self.signal else self.code or 0


def error(kind: VerdictKind, line: str) -> How:
    return How(kind, line, lines=tuple(traceback(line)), code=1)


OWN = {
    "an exception": error(K.USER_ERROR, "ValueError: no labels"),
    "an import error": error(K.USER_ERROR, "ModuleNotFoundError: No module named 'not_there'"),
    "a GPU's memory": error(K.GPU_OUT_OF_MEMORY, "torch.OutOfMemoryError: CUDA out of memory."),
    "a full disk": error(K.DISK_FULL, "OSError: [Errno 28] No space left on device"),
    "a NaN": error(K.NOT_A_NUMBER, "FloatingPointError: loss is nan"),
    "exit code 3": How(K.USER_ERROR, "exit code 3: no licence", lines=("no licence",), code=3),
    "exit code 75": How(K.TRY_AGAIN, "exit code 75", code=75),
    "exit code 78": How(K.USER_ERROR, "exit code 78", code=78),
    "no such program": How(
        K.USER_ERROR, "exit code 127: command not found",
        lines=("train.sh: line 5: exec: nosuchprogram: not found",), code=127),
    "a segmentation fault": How(K.UNKNOWN, "signal 11 (segmentation fault)", signal=11),
    "an abort": How(K.UNKNOWN, "signal 6 (abort)", signal=6),
    "a kill": How(K.UNKNOWN, "signal 9", signal=9),
    "a bus error": How(K.OUT_OF_MEMORY, "signal 7 (bus error", signal=7),
}  # fmt: skip
"""Ends that say why."""
OF_OTHERS = {
    "a refused connection": error(K.NETWORK, "ConnectionRefusedError: Connection refused"),
    "MPI that reaches nobody": How(
        K.NETWORK, "MPI_ERR_INTERN: internal error", code=1, lines=(
            "[n1][[50236,1],0][btl_tcp_proc.c:266] Unable to find reachable pairing between local "
            "and remote interfaces",
            *traceback("mpi4py.MPI.Exception: MPI_ERR_INTERN: internal error"),
        )),
    "a wait in vain": error(K.HUNG, "RuntimeError: Timed out waiting 1800000ms for recv operation"),
}  # fmt: skip
"""Ends that may be the consequence of another's."""
LAUNCHERS = ("srun", "Open MPI 4", "Open MPI 5", "Intel MPI", "no word")


def words(launcher: str, rank: int, end: How) -> list[str]:
    """Return what a launcher prints after this rank's end."""
    other, code = 1 - rank, end.exit_code
    how = "Killed" if not end.state.final else f"Exited with exit code {code}"
    if launcher == "srun":
        return [
            f"srun: error: n{rank + 1}: task {rank}: {how}",
            "srun: launch/slurm: _step_signal: Terminating StepId=1.1",
            f"slurmstepd-n{other + 1}: error: *** STEP 1.1 ON n{other + 1} CANCELLED AT "
            "2026-11-28T23:48:56 ***",
            f"srun: error: n{other + 1}: task {other}: Exited with exit code 143",
        ]
    line = "-" * 74
    if launcher == "no word":
        return []
    if launcher == "Intel MPI":
        return [f"=   RANK {rank} PID 22316 RUNNING AT n{rank + 1}", f"=   KILLED: {code}"]
    starter = "mpirun" if launcher == "Open MPI 4" else "prterun"
    if not end.state.final:
        return [line, f"{starter} noticed that process rank {rank} with PID 139 on node n4 exited "
                "on", "signal 9 (Killed).", line]  # fmt: skip
    name = f"[[28884,1],{rank}]" if starter == "mpirun" else f"[prterun-n1-174@1,{rank}]"
    return [
        line, f"{starter} detected that one or more processes exited with non-zero status,",
        "thus causing the job to be terminated. The first process to do so was:", "",
        f"   Process name: {name}", f"   Exit code:    {code}", line,
    ]  # fmt: skip


PEER = traceback("RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.1]:5")
VICTIMS = {
    "its watchdog got SIGTERM first": {"state": State.CANCELLED, "signal": 15},
    "it handles SIGTERM": {"state": State.CANCELLED, "exit_code": 1},
    "it died of SIGTERM first": {"state": State.FAILED, "signal": 15, "last_lines": ["epoch 1"]},
    "its shell died of SIGTERM": {
        "state": State.FAILED, "exit_code": 143, "signal": 15, "last_lines": ["epoch 1"]},
    "it was killed with its watchdog": {"state": State.TRAINING},
    "it lost the first": {"state": State.FAILED, "exit_code": 1, "last_lines": PEER},
    "MPI ended it": {"state": State.FAILED, "exit_code": 14, "last_lines": ["epoch 1"]},
    "MPI ended it with its watchdog": {"state": State.TRAINING, "exit_code": 14},
    "it saved": {"state": State.HALTED, "exit_code": EXIT_HALTED},
    "it handles SIGTERM, and ends with 0": {"state": State.HALTED, "exit_code": 0},
}  # fmt: skip
"""What becomes of the other learner."""


@pytest.fixture
def plan(tmp_path):
    launch = Launch("srun", ["srun"])
    return Job(tmp_path, "train", launch=launch, resources={"learners": 2}).plan


def with_launcher(plan, launcher):
    kind = "srun" if launcher == "srun" else "mpirun"
    return replace(plan, launch=replace(plan.launch, kind=kind, argv=[kind]))


def as_status(rank: int, at: float, end: How) -> Status:
    known = status(rank, end.state, exit_code=end.code, signal=end.signal,
                   last_lines=list(end.lines) if end.state is State.FAILED else [])  # fmt: skip
    return replace(known, heartbeat_at=at)


def judge(plan, launcher, rank, end, victim, culprit_at, said=None) -> Outcome:
    """Return the outcome of two learners, of which one ended, and the other in consequence."""
    culprit = as_status(rank, culprit_at, end)
    other = replace(status(1 - rank, **{"last_lines": [], **victim}), heartbeat_at=10.0)
    both = sorted((culprit, other), key=lambda each: each.rank)
    logs = {rank: list(end.lines)} if not end.state.final else {}
    if not other.state.final:
        logs[1 - rank] = ["epoch 1"]
    heard = words(launcher, rank, end) if said is None else said
    return decide(with_launcher(plan, launcher), Observed(both, 1, heard, None, logs))


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("how", [*OWN, *OF_OTHERS])
def test_the_first_to_fail_is_blamed_whatever_became_of_the_other(plan, how, launcher):
    """By either rank, and whichever node's clock is ahead."""
    end = {**OWN, **OF_OTHERS}[how]
    for rank, (name, victim), at in itertools.product((0, 1), VICTIMS.items(), (9.0, 11.0)):
        if how in OF_OTHERS and launcher == "no word" and "lost" in name:
            continue  # each reports that it lost the other: nobody can tell
        if how in OF_OTHERS and launcher == "no word" and "MPI" in name:
            continue
        outcome = judge(plan, launcher, rank, end, victim, at)
        seen = (rank, name, at, outcome.reason)
        assert outcome.evidence.rank == rank, seen
        assert (outcome.kind, outcome.state) == (end.kind, State.FAILED), seen
        assert outcome.reason.startswith(f"Learner {rank} on n{rank + 1} "), seen
        assert end.says in outcome.reason, seen


GONE = How(K.UNKNOWN, "vanished with its watchdog", State.TRAINING)
TERMINATED = ("got SIGTERM", "handles", "died of SIGTERM", "saved")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_learner_that_vanished_with_its_watchdog_comes_before_those_that_were_ended(
    plan, launcher
):
    for rank, (name, victim), at in itertools.product((0, 1), VICTIMS.items(), (9.0, 11.0)):
        if launcher == "no word" and not any(part in name for part in TERMINATED):
            continue
        if name == "it was killed with its watchdog" and launcher == "no word":
            continue
        outcome = judge(plan, launcher, rank, GONE, victim, at)
        assert (outcome.kind, outcome.evidence.rank) == (K.UNKNOWN, rank), (name, outcome.reason)
        assert "vanished with its watchdog" in outcome.reason


STEP_KILLED = [
    "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
    "slurmstepd-n1: error: *** STEP 14.1 ON n1 CANCELLED AT 2026-11-28T23:49:35 ***",
    "srun: error: n1: task 0: Killed",
    "srun: launch/slurm: _step_signal: Terminating StepId=14.1",
    "srun: error: n2: task 1: Killed",
]
"""Slurm's PMIx kills the whole step when it loses a process; the order of the tasks is no hint."""
ABORT = (
    "ready", "-" * 74,
    "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD", "  Proc: [[44856,1],1]",
    "  Errorcode: 7", "", "NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.",
)  # fmt: skip
SPLIT = (
    "ready", "-" * 74, "MPI_ABORT was invoked on rank 0 in communicator MPI COMM 3 SPLIT FROM 0",
    "  Proc: [[8337,1],1]", *ABORT[4:],
)  # fmt: skip
"""Of a communicator in which the learner 1 has the rank 0."""
AT_ONCE = {
    "MPI_Abort of half of the world": How(
        K.USER_ERROR, "called MPI_Abort with error code 7: ready", State.TRAINING, SPLIT),
    "MPI_Abort": How(K.USER_ERROR, "called MPI_Abort with error code 7: ready",
                     State.TRAINING, ABORT),
    "MPI_Abort that crashed": How(K.USER_ERROR, "called MPI_Abort with error code 7: ready",
                                  lines=ABORT, signal=11),
    "MPICH's MPI_Abort": How(
        K.USER_ERROR, "called MPI_Abort with error code 7: ready", State.TRAINING,
        ("ready", "application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1")),
    "an exit without MPI_Finalize": How(
        K.USER_ERROR, "failed with exit code 3: ready", State.TRAINING, ("ready",), 3),
    "an early end": How(
        K.USER_ERROR, "ended with exit code 0 before the others were done", State.TRAINING,
        ("ready",), 0),
    "a kill": How(K.UNKNOWN, "was killed by signal 9", State.TRAINING, ("ready",), signal=9),
    "an exception, and a watchdog that wrote nothing": How(
        K.USER_ERROR, "failed: train.py:9: ValueError: no labels", State.TRAINING,
        tuple(traceback("ValueError: no labels"))),
    "MPI_Abort after the loop's own words": How(
        K.USER_ERROR, "failed: build returned an unknown key 'data'", State.TRAINING,
        ("[rank 1 on n2] build returned an unknown key 'data'",
         "[rank 1 on n2]   HINT: allowed are model, optimizer", ABORTED)),
    "MPI_Abort with only its backtrace": How(
        K.USER_ERROR, "called MPI_Abort: ready", State.TRAINING, ("ready", ABORTED)),
    "MPICH's MPI_Abort of another communicator": How(
        K.USER_ERROR, "called MPI_Abort with error code 5: ready", State.TRAINING,
        ("ready", "Abort(5) on node 1 (rank 0 in comm 16): application called "
         "MPI_Abort(MPI_COMM_SELF, 5) - process 0")),
    "MPICH's own end, whose code is the 14 of Open MPI": How(
        K.USER_ERROR, "exit code 14: Fatal error in internal_Recv: Message truncated, error stack:",
        code=14, lines=(
            "Abort(402792462) on node 1 (rank 1 in comm 0): Fatal error in internal_Recv: Message "
            "truncated, error stack:", "internal_Recv(127): MPI_Recv(buf=0x7ffc, count=1) failed",
            "(unknown)(): Message truncated")),
    "a crash that UCX printed": How(
        K.UNKNOWN, "was killed by signal 11 (segmentation fault)", State.TRAINING,
        ("[n2:27230:0:27230] Caught signal 11 (Segmentation fault: tkill(2) at address 0x6a5e)",)),
    "a crash that Open MPI printed": How(
        K.UNKNOWN, "was killed by signal 11 (segmentation fault)", State.TRAINING,
        ("[n2:00338] *** Process received signal ***",
         "[n2:00338] Signal: Segmentation fault (11)", "[n2:00338] Signal code:  (-6)",
         "[n2:00338] *** End of error message ***")),
}  # fmt: skip
"""How learner 1 ends; its watchdog had just the time to note the exit code, or none."""


STACK = """\
[n2:01251] [0] func:/venv/lib/libopen-pal.so.80(opal_backtrace_buffer+0x20) [0x7fa97eb1a940]
[n2:01251] [1] func:/venv/lib/libmpi.so.40(ompi_mpi_abort+0x117) [0x7fa97ec91577]
[n2:01251] [2] func:{caller} [0x7fa97ec80bb2]
[n2:01251] [3] func:/venv/lib/libopen-pal.so.80(mca_btl_tcp_frag_recv+0x151) [0x7fa97eb9e9c1]"""
UCX = """\
==== backtrace (tid:  27230) ====
 0  /lib/libucs.so.0(ucs_handle_error+0x2dc) [0x7fe730adde9c]
 6  ./words(+0x1310) [0x559feb666310]
================================="""


def test_a_backtrace_of_mpi_tells_a_call_of_abort_from_the_loss_of_another():
    called = STACK.format(caller="/venv/mpi4py/MPI.openmpi.cpython-311.so(+0xb18b4)").split("\n")
    lost = STACK.format(
        caller="/venv/lib/libmpi.so.40(ompi_mpi_errors_are_fatal_comm_handler+0xd2)"
    )
    assert without_frames(["ready", *called]) == ["ready", ABORTED]
    assert without_frames(["ready", *lost.split("\n"), *UCX.split("\n")]) == ["ready"]


def test_what_a_watchdog_has_just_noted_is_read(tmp_path):
    """It needs one system call: a status would come too late where MPI kills the watchdog."""
    path = tmp_path / "learner-1.end"
    running = status(1, State.TRAINING)
    assert with_end(running, path) == running
    for code, number in ((3, None), (None, 9), (0, None), (139, 11)):
        path.write_bytes(end_line(code, number))
        found = with_end(running, path)
        assert (found.exit_code, found.signal, found.state) == (code, number, State.TRAINING)
    final = status(1, State.FAILED, exit_code=1)
    assert with_end(final, path) == final
    path.write_bytes(b"3 -")
    assert with_end(running, path) == running


@pytest.mark.parametrize("how", AT_ONCE)
@pytest.mark.parametrize("at", [9.0, 11.0])
def test_a_step_that_mpi_kills_at_once_is_the_fault_of_who_left_it(plan, how, at):
    for victim in ({"state": State.TRAINING}, {"state": State.TRAINING, "exit_code": 14},
                   {"state": State.FAILED, "exit_code": 14}):  # fmt: skip
        outcome = judge(plan, "srun", 1, AT_ONCE[how], victim, at, STEP_KILLED)
        assert (outcome.kind, outcome.evidence.rank) == (AT_ONCE[how].kind, 1), outcome.reason
        assert AT_ONCE[how].says in outcome.reason


@pytest.mark.parametrize("at", [9.0, 11.0])
def test_who_aborted_a_part_of_the_world_is_blamed_by_its_rank_in_the_whole(plan, at):
    """mpirun prints what a process says; the watchdogs did not live to report anything."""
    words = list(SPLIT[1:])
    assert judge(plan, "Open MPI 5", 1, GONE, {"state": State.TRAINING}, at, words).evidence.rank
    del words[2]  # Open MPI 4 does not tell
    found = judge(plan, "Open MPI 4", 1, GONE, {"state": State.TRAINING}, at, words)
    assert found.evidence.rank == (at < 10.0), "whose heartbeat is older"


def test_a_kill_that_the_launcher_also_gave_the_others_counts_less_than_what_came_before(plan):
    """A victim's watchdog may outlive its program for a moment, and note signal 9."""
    for how in ("an exit without MPI_Finalize", "an early end", "a kill"):
        for at in (9.0, 9.9):
            victim = {"state": State.FAILED, "signal": 9, "last_lines": ["ready"]}
            outcome = judge(plan, "srun", 1, AT_ONCE[how], victim, at, STEP_KILLED)
            assert (outcome.kind, outcome.evidence.rank) == (AT_ONCE[how].kind, 1), outcome.reason


@pytest.mark.parametrize("victim", [
    {"state": State.TRAINING}, {"state": State.FAILED, "exit_code": 14},
    {"state": State.HALTED, "exit_code": 14},
])  # fmt: skip
def test_a_halt_that_mpi_makes_of_one_learners_end_is_a_halt(plan, victim):
    """A program that handles no SIGUSR2 leaves MPI by it; MPI then ends the others."""
    ask = EndRequest("halt", "halted by dlctl halt", 10.0)
    both = [status(0, State.HALTED, signal=12), status(1, **victim)]
    logs = {1: ["epoch 1"]}
    outcome = decide(plan, Observed(both, 137, STEP_KILLED, ask, logs))
    assert (outcome.state, outcome.kind) == (State.HALTED, K.REQUESTED), outcome.reason
    assert "before all was saved" in outcome.reason
    own = [both[0], status(1, State.FAILED, exit_code=1, last_lines=traceback("ValueError: x"))]
    assert decide(plan, Observed(own, 137, STEP_KILLED, ask)).state is State.FAILED


def test_an_exception_that_hangs_in_mpi_until_the_halt_is_a_failure(plan):
    ask = EndRequest("halt", "the time limit is near", 10.0, K.TIME_LIMIT)
    stuck = status(1, State.FAILED, signal=12, reason=STUCK,
                   last_lines=traceback("ValueError: no labels"))  # fmt: skip
    outcome = decide(plan, Observed([status(0, State.HALTED, signal=12), stuck], 137, [], ask))
    assert (outcome.kind, outcome.evidence.rank) == (K.USER_ERROR, 1)
    assert "hung in MPI until it was ended: train.py:9: ValueError: no labels" in outcome.reason
    assert "python -m mpi4py" in outcome.hint


MPICH_KILLED = [
    "=" * 83, "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "=   PID 1326 RUNNING AT n1", "=   EXIT CODE: 9", "=   CLEANING UP REMAINING PROCESSES",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
]  # fmt: skip
"""MPICH 4.0; it names the process that it killed itself, not the one that left."""


EARLY = How(K.USER_ERROR, "", State.COMPLETED, code=0)
FATAL = ["[n1:00000] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,",
         'prterun has exited due to process rank 0 with PID 0 on node n1 calling']  # fmt: skip
WAITED = ["srun: First task exited 5s ago", "srun: StepId=1.1 task 0: running",
          "srun: StepId=1.1 task 1: exited", "srun: Terminating StepId=1.1"]  # fmt: skip
PMIX = ("slurmstepd-n1: error:  mpi/pmix_v4: _errhandler: n1 [0]: pmixp_client_v2.c:211: Error "
        "handler invoked: status = -61, source = [slurm.pmix.67.1:1]")  # fmt: skip
"""Of Slurm 22.05, where task 1 has left without MPI_Finalize."""


@pytest.mark.parametrize(("launcher", "victim", "said"), [
    ("Open MPI 5", VICTIMS["MPI ended it"], FATAL),
    ("srun", VICTIMS["MPI ended it"], STEP_KILLED),
    ("srun", VICTIMS["its watchdog got SIGTERM first"], WAITED),
    ("srun", VICTIMS["it was killed with its watchdog"], [PMIX, *STEP_KILLED]),
    ("MPICH", VICTIMS["it was killed with its watchdog"], MPICH_KILLED),
])  # fmt: skip
def test_a_learner_that_left_early_is_blamed_if_its_launcher_ended_the_others(
    plan, launcher, victim, said
):
    outcome = judge(plan, launcher, 1, EARLY, victim, 9.0, said)
    assert (outcome.kind, outcome.evidence.rank) == (K.USER_ERROR, 1)
    assert "Learner 1 on n2 ended with exit code 0 before the others" in outcome.reason


def test_a_learner_that_had_ended_well_is_not_blamed_where_slurm_names_another(plan):
    victim = VICTIMS["it was killed with its watchdog"]
    said = [PMIX.replace(":1]", ":0]"), *STEP_KILLED]
    assert judge(plan, "srun", 1, EARLY, victim, 9.0, said).evidence.rank == 0


def test_a_program_may_end_with_mpis_exit_code_itself(plan):
    outcome = judge(plan, "srun", 1, EARLY, VICTIMS["MPI ended it"], 9.0, [])
    assert (outcome.kind, outcome.evidence.rank) == (K.USER_ERROR, 0)
    assert "Learner 0 on n1 failed with exit code 14" in outcome.reason


def test_who_had_ended_before_is_said_of_a_lost_connection(plan):
    outcome = judge(plan, "srun", 1, EARLY, VICTIMS["it lost the first"], 9.0, [])
    assert (outcome.kind, outcome.evidence.rank) == (K.NETWORK, 0)
    assert outcome.reason.endswith("Connection closed by peer [10.0.0.1]:5; learner 1 had ended "
                                   "before, with exit code 0.")  # fmt: skip
    assert f"dlctl logs {plan.training_id} --learner 1 --debug" in outcome.hint, (
        "not to resume, and lose it again"
    )


SCANCEL = [
    "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
    "slurmstepd-n2: error: *** STEP 1.1 ON n2 CANCELLED AT 2026-11-29T00:06:15 ***",
    "slurmstepd-n1: error: *** STEP 1.1 ON n1 CANCELLED AT 2026-11-29T00:06:15 ***",
    "srun: error: n2: task 1: Exited with exit code 143",
    "srun: error: n1: task 0: Exited with exit code 143",
]


@pytest.mark.parametrize(("first", "second"), list(itertools.product(
    ("its watchdog got SIGTERM first", "it died of SIGTERM first", "it lost the first"),
    ("its watchdog got SIGTERM first", "it died of SIGTERM first"),
)))  # fmt: skip
def test_a_step_that_somebody_ended_is_nobodys_fault(plan, first, second):
    both = [status(0, **VICTIMS[first]), status(1, **VICTIMS[second])]
    outcome = decide(plan, Observed(both, 143, SCANCEL, None))
    assert outcome.kind == K.SCHEDULER
    if first != "it died of SIGTERM first" != second:
        assert outcome.reason.startswith("Slurm ended the learners' step")


def test_where_only_consequences_are_left_no_learner_is_blamed(plan):
    killed = [status(rank, **VICTIMS["it died of SIGTERM first"]) for rank in (0, 1)]
    outcome = decide(plan, Observed(killed, 143, [], None))
    assert outcome.kind == K.SCHEDULER
    assert outcome.reason == "All 2 learners were ended by SIGTERM; none had failed before."
    ended = [status(rank, State.CANCELLED) for rank in (0, 1)]
    outcome = decide(plan, Observed(ended, 143, [], None))
    assert (outcome.kind, outcome.reason) == (
        K.SCHEDULER, "srun ended the learners, none of which had failed.",
    )  # fmt: skip


def test_the_learner_that_somebody_sent_sigterm_is_named(plan):
    """Its watchdog got none, and srun then ended the other."""
    end = How(K.SCHEDULER, "", lines=("epoch 1",), signal=15)
    for victim in ("its watchdog got SIGTERM first", "it died of SIGTERM first"):
        outcome = judge(plan, "srun", 1, end, VICTIMS[victim], 11.0)
        assert outcome.reason == "Learner 1 on n2 was killed by signal 15 (SIGTERM)."


TORCHRUN = """\
{own}
W1128 23:50:44.283000 2571 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process \
2738 closing signal SIGTERM
E1128 23:50:44.288000 2571 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode:\
 {code}) local_rank: 1 (pid: 2739) of binary: /venv/bin/python
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 10, in <module>
    sys.exit(main())
             ^^^^^^
  File "/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in \
launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-28_23:50:44
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 2738)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 2738
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_23:50:44
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 2739) {name}
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


@pytest.mark.parametrize("how", [*OWN, *OF_OTHERS])
@pytest.mark.parametrize("noise", [(), PEER])
def test_torchruns_summary_is_read_and_hides_no_error(plan, tmp_path, how, noise):
    """Torchrun itself always ends with 1; another of its processes may report the lost one."""
    end = {**OWN, **OF_OTHERS}[how]
    if noise and (how in OF_OTHERS or end.code != 1):
        return  # only tracebacks compete with each other
    code = -end.signal if end.signal else end.code
    orders = [[*end.lines, *noise], [*noise, *end.lines]] if noise else [list(end.lines)]
    for own in orders:
        log = tmp_path / "log"
        log.write_text(TORCHRUN.format(own="\n".join(own), code=code, name=""))
        failed = status(0, State.FAILED, exit_code=1, last_lines=last_lines(log))
        for others in ([], [status(1, **VICTIMS["it lost the first"])]):
            outcome = decide(plan, Observed([failed, *others], 1, [], None))
            if how not in OF_OTHERS or not others:
                assert outcome.kind == end.kind, outcome.reason
                assert outcome.reason.startswith("Learner 0 on n1: rank 1 of its torchrun ")
                assert end.says in outcome.reason


def test_torchrun_that_was_ended_itself_is_a_victim(plan, tmp_path):
    log = tmp_path / "log"
    log.write_text(TORCHRUN.format(own="epoch 1", code=-15, name=" (SIGTERM)"))
    victim = status(0, State.FAILED, exit_code=1, last_lines=last_lines(log))
    culprit = as_status(1, 11.0, OF_OTHERS["a refused connection"])
    assert decide(plan, Observed([victim, culprit], 1, [], None)).evidence.rank == 1


def test_sruns_of_other_versions_and_with_v_are_understood():
    srun = LAUNCHERS_OF["srun"]
    words = ["srun: launch/slurm: _task_finish: n1: task 0: Completed",
             "srun: error: n2: task 1: Exited with exit code 1",
             "srun: Terminating job step 7.0",  # until Slurm 20.02
             "srun: error: n1: task 2: Killed"]  # fmt: skip
    assert srun.ends(words) == [1]


def test_the_first_of_many_tasks_is_named_by_srun(plan):
    plan = replace(plan, resources=replace(plan.resources, learners=40))
    others = [status(rank, State.FAILED, exit_code=1, last_lines=PEER) for rank in range(40)]
    later = [f"srun: error: n1: task {rank}: Exited with exit code 1" for rank in range(7)]
    words = ["srun: error: n2: tasks 7,12-13: Exited with exit code 1", *later]
    assert decide(plan, Observed(others, 1, words, None)).evidence.rank == 7


@pytest.mark.parametrize(("lines", "state"), [
    ([ABORTED], State.HALTED), (["with errorcode 85", ABORTED], State.HALTED),
    (["with errorcode 3", ABORTED], State.FAILED),
    ([*traceback("ValueError: no labels"), ABORTED], State.FAILED),
])  # fmt: skip
def test_a_halt_that_mpi4py_took_for_a_failure_is_one(plan, lines, state):
    """Its runner aborts MPI at each exit code but 0, and Slurm then kills the watchdogs."""
    request = EndRequest("halt", "halted on request", 120)
    learners = [status(rank, State.TRAINING) for rank in (0, 1)]
    outcome = decide(plan, Observed(learners, 143, [], request, {0: lines, 1: []}))
    assert outcome.state is state, outcome.reason
