"""Each failure that was recorded has its kind and a hint, and each row of the table is needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hints import commands_in
from login_side import make_site, plan_of
from node_job import Job, status

from dlctl.contract import Batch, Launch, LeftOut, State, VerdictKind
from dlctl.contract.programs.advice import filled
from dlctl.contract.programs.verdict_rules import (
    EXIT_CODES,
    RULES,
    SIGNALS,
    Place,
    first_match,
    rules_for,
)
from dlctl.contract.programs.verdict_rules import explain as explain_job
from dlctl.units import parse_duration
from learner.job.batch import UNEXPLAINED
from learner.job.status import last_lines
from learner.supervisor.control import EndRequest
from learner.supervisor.statuses import Observed
from learner.supervisor.verdict import decide

K = VerdictKind
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.txt"))
PLACES = {"learner": Place.LEARNER, "launcher": Place.LAUNCHER, "job": Place.JOB}


@dataclass
class Recording:
    """One file of `recorded/`: a head of `key: value` lines, an empty line, the text."""

    text: str
    head: dict[str, str] = field(default_factory=dict)

    @property
    def place(self):
        return PLACES[self.head["place"]]

    def number(self, key):
        return int(self.head[key]) if key in self.head else None


def read(file):
    head, _, text = file.read_text().partition("\n\n")
    return Recording(text, dict(line.split(": ", 1) for line in head.splitlines()))


@pytest.fixture
def plan(tmp_path):
    launch = Launch("srun", ["srun"])
    return Job(tmp_path, None, job="train.py", launch=launch, resources={"learners": 2},
               batch=Batch("slurm")).plan  # fmt: skip


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_recorded_failure_has_its_kind(plan, tmp_path, file):
    seen, log = read(file), tmp_path / "log"
    assert seen.head["source"]
    log.write_text(seen.text)
    lines = last_lines(log)
    if seen.place is Place.JOB:
        told = explain_job(lines, plan)
        assert told is not None and (str(told.kind), bool(told.hint)) == (seen.head["kind"], True)
        return
    if seen.place is Place.LEARNER:
        end = {name: seen.number(name) for name in ("exit_code", "signal")}
        failed = status(0, State.FAILED, last_lines=lines, **end)
        outcome = decide(plan, Observed([failed, status(1, State.CANCELLED)], 1, [], None))
    else:
        outcome = decide(plan, Observed([status(0), status(1)], 137, lines, None))
    assert (outcome.kind, outcome.state) == (seen.head["kind"], State.FAILED), outcome.reason
    assert outcome.hint and "{" not in outcome.hint
    assert seen.head.get("hint", "") in outcome.hint
    assert outcome.evidence.host == seen.head.get("host", outcome.evidence.host)


OTHERS = [
    "ImportError: cannot import name 'x' from 'y'",
    "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that "
    "dataloader's workers are out of shared memory.",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device",
]
"""Lines of failures that were seen by themselves, without the rest of a log."""


def test_every_row_recognizes_a_recorded_failure():
    used = {id(first_match(Place.LEARNER, [line])[0]) for line in OTHERS}
    for seen in map(read, RECORDED):
        if found := first_match(seen.place, seen.text.splitlines()):
            used.add(id(found[0]))
    assert [rule.pattern.pattern for rule in RULES if id(rule) not in used] == []


def test_every_row_of_the_launcher_and_the_job_says_what_its_line_means():
    rules = [*rules_for(Place.LAUNCHER), *rules_for(Place.JOB)]
    assert all(rule.sentence for rule in rules if Place.LAUNCHER in rule.places)


def test_every_hint_can_be_filled_in(plan):
    for rule in (*RULES, *SIGNALS.values(), *EXIT_CODES.values()):
        assert not re.search(r"\{\w+\}", filled(rule.hint, plan, rank=1))


def test_meaningless_lines_match_no_row():
    for place in Place:
        assert first_match(place, ["epoch 1", "loss 0.3", "a loss of NaN-free data"]) is None
        assert first_match(place, []) is None
    survived = ["skip big.bin: File too large", "Traceback (most recent call last):",
                '  File "train.py", line 1, in <module>', "ValueError: x"]  # fmt: skip
    assert first_match(Place.LEARNER, survived) is None


def judge(plan, *statuses, words=(), logs=None):
    return decide(plan, Observed(list(statuses), 1, list(words), None, logs or {}))


def test_a_learners_own_fault_counts_more_than_that_another_has_lost_it(plan):
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:49369"
    first = status(1, State.FAILED, exit_code=1, last_lines=[lost])
    second = status(0, State.FAILED, exit_code=1, last_lines=["ValueError: no"])
    assert first.heartbeat_at < second.heartbeat_at
    outcome = judge(plan, second, first)
    assert (outcome.kind, outcome.evidence.rank) == (K.USER_ERROR, 0)
    assert judge(plan, status(0, State.CANCELLED), first).kind == K.NETWORK


def test_last_words_count_more_than_that_slurm_ended_the_step(plan):
    ended = "slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-23T10:00:00 ***"
    broken = ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]
    outcome = judge(plan, status(0), status(1), words=[ended], logs={1: broken})
    assert (outcome.kind, outcome.evidence.rank) == (K.GPU_ERROR, 1)
    lost = "srun: error: Node failure on n1"
    assert judge(plan, status(0), status(1), words=[lost], logs={1: broken}).kind == K.NODE_LOST


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (75, K.TRY_AGAIN, "exit code 75: the program asks for another attempt: no licence"),
        (78, K.USER_ERROR, "exit code 78: the program says that another attempt would fail, too: "
         "no licence"),
        (139, K.UNKNOWN, "was killed by signal 11 (segmentation fault)."),
        (3, K.UNKNOWN, "exit code 3: no licence (its last line)"),
    ],
)  # fmt: skip
def test_an_exit_code_says_what_it_means(plan, code, kind, reason):
    failed = status(0, State.FAILED, exit_code=code, last_lines=["no licence"])
    outcome = judge(plan, failed, status(1, State.CANCELLED))
    assert outcome.kind == kind
    assert outcome.reason.endswith(reason)


@pytest.mark.parametrize(("code", "kind", "reason"), [
    (137, K.UNKNOWN, "was killed by signal 9, perhaps by its memory limit"),
    (139, K.UNKNOWN, "was killed by signal 11 (segmentation fault)"),
])  # fmt: skip
def test_a_shells_exit_code_names_the_signal_though_nothing_was_printed(plan, code, kind, reason):
    outcome = judge(plan, status(0, State.FAILED, exit_code=code))
    assert outcome.kind == kind and reason in outcome.reason


def test_a_search_fails_and_ends_with_the_words_of_its_model_and_hub(tmp_path):
    plan = Job(tmp_path, "x").plan
    plan = replace(plan, framework=replace(plan.framework, name="search"))
    why = "3 trials have failed, and none has ended well; the newest, trial 2: No module 'trails'"
    lines = ["dlctl: earlier", f"dlctl: {why}", "  HINT: look", "at it"]
    failed = decide(
        plan, Observed([status(0, State.FAILED, exit_code=64, last_lines=lines)], 1, [], None)
    )
    assert failed.reason == f"The search has failed: {why}."
    assert (failed.kind, failed.hint) == (K.USER_ERROR, "look.")
    done = decide(plan, Observed([status(0, State.COMPLETED)], 0, [], None))
    assert done.reason == "The search's hub ended with exit code 0."


@pytest.mark.parametrize("state", [State.TRAINING, State.CANCELLED, State.FAILED])
def test_a_lost_node_is_blamed_though_slurm_ended_all_learners(plan, state):
    """As seen on the cluster: SIGTERM to everybody, and srun names the node."""
    ends = {"signal": 15, "last_lines": ["epoch 1"]} if state is State.FAILED else {}
    terminated = EndRequest("halt", UNEXPLAINED, 20.0, K.SCHEDULER, terminated=True)
    words = ["srun: error: Node failure on n2"]
    seen = Observed([status(0, state, **ends), status(1, state, **ends)], 1, words, terminated)
    outcome = decide(plan, seen)
    assert (outcome.state, outcome.kind) == (State.FAILED, K.NODE_LOST)
    assert (outcome.evidence.host, outcome.evidence.rank) == ("n2", 1)


def test_learners_that_slurm_ended_are_no_network_fault(plan):
    lost = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:49369"
    first = status(0, State.FAILED, exit_code=1, last_lines=[lost])
    second = status(1, State.FAILED, signal=15, last_lines=["epoch 1"])
    terminated = EndRequest("halt", UNEXPLAINED, 20.0, K.SCHEDULER, terminated=True)
    assert decide(plan, Observed([first, second], 1, [], terminated)).state is State.HALTED
    ended = "slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT 2026-11-23T10:00:00 ***"
    assert decide(plan, Observed([first, second], 1, [ended], None)).kind == K.SCHEDULER


def test_a_learner_that_printed_nothing_has_no_log_to_see(plan):
    own = replace(plan.framework, command="python train.py", job=None)
    command = replace(plan, framework=own)
    failed = status(0, State.FAILED, exit_code=3, last_lines=[], reason="exit code 3")
    outcome = judge(command, failed)
    assert outcome.reason == "Learner 0 on n1: exit code 3; it printed nothing."
    assert outcome.hint.startswith("Have it print why it ends; then: dlctl resume ")


def test_a_silent_exit_while_slurm_loses_a_node_is_not_the_programs(plan):
    """Seen in a chaos run: MPI ended the other node's process by exit code 14, without a word."""
    lost = (
        "slurmstepd-n1: error: *** STEP 20.1 ON n1 CANCELLED AT 2026-11-24T07:03:03 DUE TO NODE "
        "FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"
    )
    silent = status(1, State.FAILED, exit_code=14)
    killed = status(0, State.FAILED, signal=15, last_lines=["epoch 1"])
    assert judge(plan, silent, killed, words=[lost]).kind == K.NODE_LOST
    assert judge(plan, silent, killed, words=["srun: error: n1: Terminated"]).kind == K.UNKNOWN
    spoke = status(1, State.FAILED, exit_code=14, last_lines=["[rank 1 on n1] no labels"])
    assert judge(plan, spoke, killed, words=[lost]).kind == K.USER_ERROR


def test_srun_says_why_the_learners_were_killed(plan):
    ended = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-24T02:59 DUE TO TIME LIMIT"
    killed = [status(rank, State.FAILED, signal=15, last_lines=["epoch 1"]) for rank in (0, 1)]
    assert judge(plan, *killed, words=[ended]).kind == K.TIME_LIMIT
    assert judge(plan, *killed, words=["srun: error: n1: Terminated"]).kind == K.SCHEDULER


@pytest.mark.parametrize(
    ("limit", "time", "more", "links"),
    [("none", "30m", "1h", 1), ("2h", "30m", "1h", 1), ("45m", "30m", "45m", 1),
     ("45m", "45m", "", 0), ("45m", "3h", "", 0)],
)  # fmt: skip
def test_a_job_that_could_not_save_gets_no_more_time_than_its_partition_allows(
    limit, time, more, links
):
    """It was twice the time, which a partition cuts into jobs of the length that was too short."""
    sites = make_site(more=f"partitions: {{long: {{nodes: 4, max_time: {limit}}}}}\n"
                      if limit != "none" else "")  # fmt: skip
    plan = plan_of(site=sites, time=time)
    ended = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-24T02:59 DUE TO TIME LIMIT"
    hint = judge(plan, status(0, State.FAILED, signal=15), words=[ended]).hint
    commands = [command for command, _ in commands_in(hint)]
    resume = f"resume {plan.training_id}"
    if more:
        assert commands == [f"{resume} --time {more}"]
        again = plan_of(site=sites, time=more)
        assert (again.lifecycle.links, again.resources.time_s) == (links, parse_duration(more))
    else:
        assert f"save more often, as no job of its partition may take longer than {limit}" in hint
        assert commands == [resume, "sites show testbed", f"{resume} --partition NAME"]


def traceback(error):
    return "Traceback (most recent call last):", '  File "train.py", line 9, in <module>', error


GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:5"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
LAST_WORDS = {
    "a warning that was survived": (
        K.USER_ERROR,
        "WARNING:urllib3: Retrying after connection broken by: Network is unreachable",
        *traceback("KeyError: 'label'"),
    ),
    "a worker's file": (
        K.NETWORK,
        *traceback("FileNotFoundError: [Errno 2] No such file or directory"),
        *traceback(GLOO),
    ),
    "a plugin that NCCL does not need": (
        K.NETWORK,
        "n1:1:1 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: "
        "No such file or directory No plugin found",
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclSystemError",
    ),
    "a loss that was skipped": (
        K.NETWORK, "step 40: loss is nan, skipped this batch", *traceback(GLOO)
    ),
    "a smaller batch": (
        K.NETWORK, "CUDA out of memory: batch 8 -> 4, going on", *traceback(RESET)
    ),
    "an exception that another one explains": (
        K.NETWORK,
        *traceback(RESET),
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        *traceback("RuntimeError: the batch could not be read"),
    ),
    "an exception that Python ignores": (
        K.NOT_A_NUMBER,
        *traceback("FloatingPointError: loss is nan"),
        "Exception ignored in: <function Pool.__del__ at 0x7f>",
        *traceback(RESET),
    ),
    "a disk that was full before": (
        K.DISK_FULL,
        "OSError: [Errno 28] No space left on device: 'log'",
        *traceback("RuntimeError: the checkpoint is incomplete"),
    ),
}  # fmt: skip


def judge_words(plan, lines):
    """Return the outcome of a training whose first learner ended with these lines."""
    failed = status(0, State.FAILED, exit_code=1, last_lines=lines)
    return judge(plan, failed, status(1, State.CANCELLED))


@pytest.mark.parametrize("name", LAST_WORDS)
def test_the_error_that_ended_the_program_counts_and_not_what_it_survived(plan, name):
    kind, *lines = LAST_WORDS[name]
    assert judge_words(plan, lines).kind == kind


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (K.HUNG, "torch.distributed.DistBackendError: [1] store->get('0') got error: Timeout "
                 "waiting for key: default_pg/0/0 after 1800000 ms"),
        (K.HUNG, "DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cpu//0"),
        (K.HUNG, "RuntimeError: NCCL communicator was aborted on rank 1."),
        (K.HUNG, "[rank0]:[F ProcessGroupNCCL.cpp:1] watchdog got stuck for 480 seconds"),
        (K.NETWORK, "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] no error"),
        (K.NETWORK, "requests.exceptions.ReadTimeout: HTTPSConnectionPool: Read timed out."),
        (K.NETWORK, "TimeoutError: The read operation timed out"),
        (K.NETWORK, "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable"),
        (K.SITE, "OSError: [Errno 108] Cannot send after transport endpoint shutdown"),
        (K.SITE, "Failed to initialize NVML: Driver/library version mismatch"),
        (K.GPU_ERROR, "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware "
                      "error"),
        (K.GPU_ERROR, "Error 802: system not yet initialized (function cudaGetDeviceCount)"),
        (K.GPU_ERROR, "RuntimeError: No CUDA GPUs are available"),
        (K.GPU_ERROR, "RuntimeError: CUDA error: no CUDA-capable device is detected"),
        (K.GPU_ERROR, "CUDA error: all CUDA-capable devices are busy or unavailable"),
        (K.USER_ERROR, "RuntimeError: CUDA error: out of shared memory"),
    ],
)  # fmt: skip
def test_a_line_that_torch_or_a_site_prints_has_its_kind(plan, kind, line):
    plan = replace(plan, resources=replace(plan.resources, gpus_per_learner=1))
    lines = ["Traceback (most recent call last):", '  File "train.py", line 9, in f', line]
    assert judge_words(plan, lines).kind == kind


def test_a_training_that_asked_for_no_gpu_finds_none(plan):
    line = "RuntimeError: No CUDA GPUs are available"
    told = judge_words(plan, [line])
    assert (told.kind, told.hint[:14]) == (K.USER_ERROR, "Ask for `gpus`")


def test_a_file_that_was_not_sent_is_named(plan):
    plan = replace(plan, left_out=[LeftOut("data/", ".gitignore:3")])
    words = "FileNotFoundError: [Errno 2] No such file or directory: 'data/x.txt'"
    failed = status(0, State.FAILED, exit_code=1, last_lines=[words])
    assert judge(plan, failed).hint == (
        "data/x.txt was not sent with the folder: .gitignore:3 leaves it out. To send it, add the "
        "line !/data/ to .dlctlignore, or put it into a data store. "
        f"Then: dlctl resume {plan.training_id} --code"
    )
    full = status(0, State.FAILED, exit_code=1,
                  last_lines=[words, "OSError: No space left on device"])  # fmt: skip
    assert judge(plan, full).kind == K.DISK_FULL
    assert "not sent" not in judge(plan, full).hint
