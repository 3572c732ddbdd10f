"""The built-in loop on a parameter server: real learners on one node, without a supervisor."""

import errno
import json
import os
import signal
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import server_job
import torch
from hypothesis import given
from hypothesis import strategies as st
from server_job import DIGITS, make_served_job, resources
from torch import nn
from zygote import TIME_LIMIT_S, wait_for

from dlctl import contract
from dlctl.contract import CheckpointPolicy, LearningRateSchedule, ParameterServer, Training
from learner.checkpoint.load import Loaded, filled, headers
from learner.checkpoint_files.layout import directory_name
from learner.data.sampling import epoch_order
from learner.errors import EXIT_HALTED, UserFault
from learner.job.metrics import Progress
from learner.model.lr_schedule import UsedRate
from learner.model.user_model import Parts
from learner.parameter_server import coordinator
from learner.parameter_server.checkpoint_state import SavedServer, ServerTraining, cursor_at
from learner.parameter_server.coordinator import Coordinator
from learner.parameter_server.ordered_cursor import OrderedCursor
from learner.parameter_server.rendezvous import has_begun
from learner.supervisor.explanation import read_words
from learner.system.segments import segment_folder
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Position, Trained
from learner.training.loop import Reports
from psrv.cursor.base import Chunk, first_chunk, make_state
from psrv.cursor.file import FileCursor, LearnerEntry

SAMPLES = 120
PROGRAM = """\
import os
import time
from pathlib import Path
import torch
from torch import nn

class Seen(torch.utils.data.Dataset):
    def __len__(self):
        return {samples}
    def __getitem__(self, n):
        line = f"{{n}} {{os.environ['RANK']}} {{os.getpid()}}\\n"
        descriptor = os.open("../seen", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line.encode())
        os.close(descriptor)
        time.sleep({sleep_s})
        x = torch.sin(torch.arange(4.0) * (n + 1))
        return x, x.sum().reshape(1)

{more}

def build(arguments):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, {width}), nn.BatchNorm1d({width}), nn.Linear({width}, 1))
    validation = [(torch.ones(4) * n, torch.ones(1) * 4 * n) for n in range(3)]
    parts = {{"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.02),
             "loss": nn.MSELoss(), "train": Seen(), "validation": validation}}
    {change}
    return parts
"""


def program(**changes):
    words = {"samples": SAMPLES, "sleep_s": 0.004, "width": 8, "more": "", "change": ""}
    return PROGRAM.format(**{**words, **changes})


@pytest.fixture
def make_job(tmp_path, zygote):
    jobs = []

    def make(code, learners, solver, fields=None, **settings):
        server = ParameterServer(solver, settings.pop("shard_nodes", [0]), **settings)
        directory = tmp_path / f"job {len(jobs)}"
        jobs.append(make_served_job(directory, zygote, code, learners, server, **fields or {}))
        return jobs[-1]

    yield make
    for job in jobs:
        job.end()


def built(code):
    """Return what the `build` of a program returns."""
    names = {}
    exec(code, names)
    return dict(names["build"]({}))


def seen(job):
    """How often each sample was read for training."""
    lines = (job.directory / "seen").read_text().splitlines()
    return Counter(int(line.split()[0]) for line in lines)


def checkpoint(job):
    """The state in the newest checkpoint."""
    header = next(headers(job.directory / contract.CHECKPOINTS, print))
    loaded = Loaded(header)
    try:
        return filled(loaded.tree())
    finally:
        loaded.close()


# Learning ----------------------------------------------------------------------------------------


@pytest.mark.first("downpour_sgd-2*")
@pytest.mark.parametrize(
    ("solver", "learners", "settings", "least"),
    [
        ("parallel_sgd", 2, {"learning_rate": 0.1, "momentum": 0.9}, 0.95),
        ("parallel_sgd", 4, {"learning_rate": 0.1, "momentum": 0.9, "staleness": 2}, 0.85),
        ("downpour_sgd", 4, {"learning_rate": 0.005, "adagrad": True}, 0.9),
        ("downpour_sgd", 2, {"learning_rate": 0.1, "push_every": 2, "pull_every": 4}, 0.8),
        ("elastic_averaging", 2, {"push_every": 2, "moving_rate": 0.4}, 0.85),
        ("model_averaging", 2, {"push_every": 4}, 0.9),
        ("diloco", 2, {"push_every": 4}, 0.85),
    ],
)
def test_every_solver_learns_the_digits(make_job, solver, learners, settings, least):
    training = Training(
        epochs=5, batch_size=64, seed=1, log_every_steps=20,
        learning_rate_schedule=LearningRateSchedule("cosine"),
    )  # fmt: skip
    job = make_job(DIGITS, learners, solver, {"training": training}, shard_nodes=[0, 0], **settings)
    job.start()
    assert job.codes() == [0] * learners, job.say(0)
    metrics = job.metrics()
    assert metrics["learners"] == learners and metrics["steps"] == 5 * 23
    assert [epoch["epoch"] for epoch in metrics["history"]] == [1, 2, 3, 4, 5]
    assert metrics["final"]["validation_accuracy"] >= least
    lines = job.lines()
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    told = {"loss", "staleness", "pushes", "pushes_per_s", "wait_share", "step_s", "data_wait_s"}
    assert told <= lines[0].keys() and "samples_per_s" not in lines[0]
    status = json.loads((job.directory / f"progress-{learners - 1}").read_text())
    assert {"loss", "accuracy", "pushes", "wait_share", "batches"} <= status["metrics"].keys()
    assert status["done"] == 1, "its own last chunk was not the last of all"
    assert checkpoint(job)["server"]["cursor"]["undone"] == []


def test_parallel_sgd_has_the_bits_of_steps_for_whole_batches(make_job):
    change = "parts['model'] = model = nn.Sequential(model[0], nn.Tanh(), model[2]); " + (
        "parts['optimizer'] = torch.optim.SGD(model.parameters(), lr=0.05)"
    )
    code = program(sleep_s=0, change=change)
    job = make_job(code, 2, "parallel_sgd", {"training": Training(2, 8, 5)}, shard_nodes=[0, 0])
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    model, chunk = built(code)["model"], 4
    for epoch in range(2):
        order = epoch_order(SAMPLES, 5, epoch)
        for start in range(0, SAMPLES, 2 * chunk):
            gradients = []
            for share in (order[start : start + chunk], order[start + chunk : start + 2 * chunk]):
                model.zero_grad()
                inputs = torch.stack([torch.sin(torch.arange(4.0) * (n + 1)) for n in share])
                targets = inputs.sum(dim=1, keepdim=True)
                nn.functional.mse_loss(model(inputs), targets).backward()
                gradients.append([p.grad for p in model.parameters()])
            for parameter, first, second in zip(model.parameters(), *gradients, strict=True):
                parameter.data.add_((first + second) / 2, alpha=-0.05)
    trained = torch.load(job.directory / "results/model.pt", weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, trained[name]), name


# Faults ------------------------------------------------------------------------------------------


@pytest.mark.first("downpour*")
@pytest.mark.parametrize("solver", ["downpour_sgd", "model_averaging"])
def test_killed_learners_are_replaced_and_every_sample_is_trained_on(make_job, solver):
    training = Training(epochs=4, batch_size=12, log_every_steps=5)
    job = make_job(
        program(), 3, solver, {"training": training, "checkpoint": CheckpointPolicy(100)}
    )
    job.start()
    noted = job.file(contract.position_file)
    wait_for(noted.exists)
    job.kill(1)
    job.start(1)
    job.kill(0)  # it has reported one epoch, and there is no checkpoint
    job.start(0)
    wait_for(lambda: json.loads(noted.read_text())["epoch"] >= 2)
    job.kill(2)  # it is not restarted
    del job.lives[2]
    assert job.codes() == [0, 0], job.say(0) + job.say(1)
    assert "learner 0 was started again, in epoch 2" in job.say(0)
    history = job.metrics()["history"]
    assert [epoch["epoch"] for epoch in history] == [1, 2, 3, 4]
    assert "validation_loss" in history[-1]
    cursor = checkpoint(job)["server"]["cursor"]
    assert (cursor["next"], cursor["undone"]) == (4 * SAMPLES, [])
    times = seen(job)
    # A killed learner's chunk of 4 samples is given out again.
    assert min(times.values()) >= 4 and len(times) == SAMPLES
    assert sum(times.values()) <= 4 * SAMPLES + 3 * 4


COUNTS_CHUNKS = """
    parts["model"] = model = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(model.weight)
    parts["optimizer"] = torch.optim.SGD(model.parameters(), lr=1.0)
    parts["loss"] = lambda outputs, targets: model.weight.sum() + 0 * outputs.sum()
"""
"""The gradient of every batch is all ones."""


def weights_of(job):
    """Return the values of the weights of a model of one layer."""
    trained = torch.load(job.directory / "results/model.pt", weights_only=True)
    return set(trained["weight"].flatten().tolist())


NOTES_CALLS = """
from psrv.client import Client

def note(line):
    descriptor = os.open("../calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (line + os.linesep).encode())
    os.close(descriptor)

def noted(name, of):
    def call(self, *arguments, **named):
        clock, slow = self._staleness_bound.pushes + 1, os.environ["RANK"] == "1"
        if slow:
            note(f"1 {name} {clock}")
            time.sleep(0.03)
        while not Path("../calls").exists():
            time.sleep(0.001)
        of(self, *arguments, **named)
        if not slow:
            note(f"0 {name} {clock}")
    return call

Client.push, Client.push_pull = noted("push", Client.push), noted("push_pull", Client.push_pull)
"""
"""Notes the slow learner's calls when they begin, the other one's when they are done."""


def calls(job):
    lines = [line.split() for line in (job.directory / "calls").read_text().splitlines()]
    return [(int(rank), name, int(clock)) for rank, name, clock in lines]


def test_learners_push_and_pull_every_so_many_batches(make_job):
    code = program(sleep_s=0.001, more=NOTES_CALLS, change=COUNTS_CHUNKS)
    settings = {"push_every": 3, "pull_every": 6}
    job = make_job(code, 2, "downpour_sgd", {"training": Training(2, 8, 5)}, **settings)
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    found = calls(job)
    assert len(found) == 2 * SAMPLES / (3 * 4)
    for rank in (0, 1):
        names = [name for each, name, _ in found if each == rank]
        assert names == (["push", "push_pull"] * len(names))[: len(names)]
    assert weights_of(job) == {-2.0 * SAMPLES / 4}  # including the slow learner's last push


def test_no_learner_is_further_ahead_than_staleness(make_job):
    code = program(sleep_s=0.001, more=NOTES_CALLS)
    job = make_job(code, 2, "downpour_sgd", {"training": Training(2, 8, 5)}, staleness=2)
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    clock, ahead = 0, []
    found = calls(job)
    last = max(number for number, (rank, _, _) in enumerate(found) if rank == 1)
    for rank, _, pushes in found[:last]:
        if rank == 1:
            clock = pushes
        elif clock:
            ahead.append(pushes - clock)
    assert len(ahead) > 10 and 1 < max(ahead) <= 2 + 1  # at most 2 when it begins a chunk


DIES_BEFORE_A_PUSH = """
from psrv.client import Client

def push_pull(self, *arguments, of=Client.push_pull, **named):
    pushes.append(1)
    if os.environ["RANK"] == "1" and len(pushes) == 3:
        dying.touch()
        os.kill(os.getpid(), 9)
    while os.environ["RANK"] == "0" and not dying.exists():
        time.sleep(0.001)
    return of(self, *arguments, **named)

pushes, dying = [], Path("../dying")
Client.push_pull = push_pull
"""
TELLS_WHERE_IT_BEGINS = """
    def tell(module, inputs, told=[]):
        told.append(module.weight.max().item())
        if len(told) == 1:
            Path("..", f"begins-{os.getpid()}").write_text(str(told[0]))
        if len(told) == (1 if os.environ["RANK"] == "1" else 5):
            Path("..", "waits-" + os.environ["RANK"]).touch()
            while not Path("../go").exists():
                time.sleep(0.001)
    model.register_forward_pre_hook(tell)
"""
"""Added to COUNTS_CHUNKS: learner 0 pauses at its fifth batch, learner 1 at its first."""


def test_a_restarted_learner_begins_with_the_server_s_weights(make_job):
    code = program(sleep_s=0.001, change=COUNTS_CHUNKS + TELLS_WHERE_IT_BEGINS)
    job = make_job(code, 2, "downpour_sgd", {"training": Training(3, 8, 5)})
    job.start(0, 1)
    wait_for((job.directory / "waits-1").exists)
    job.kill(1)
    wait_for((job.directory / "waits-0").exists)
    job.start(1)
    begins = job.directory / f"begins-{job.lives[1].pid}"
    wait_for(lambda: begins.exists() and begins.read_text())
    (job.directory / "go").touch()
    assert job.codes() == [0, 0], job.say(0) + job.say(1)
    assert float(begins.read_text()) == -4
    assert weights_of(job) == {-3.0 * SAMPLES / 4}


COUNTING_SCRIPT = """
from learner import parameter_server

os.chdir(Path(__file__).parent)
parts = build({})
model = parts["model"]
with parameter_server.join(model, parts["train"], epochs=3, batch_size=4, lr=1.0) as server:
    for (x,), y in server.batches():
        parts["loss"](model(x), y).backward()
        server.step()
Path("../results").mkdir(exist_ok=True)
torch.save(model.state_dict(), "../results/model.pt")
"""


@pytest.mark.parametrize("script", ["", COUNTING_SCRIPT], ids=["loop", "script"])
def test_each_chunk_is_in_the_weights_once(make_job, script):
    code = program(sleep_s=0, more=DIES_BEFORE_A_PUSH, change=COUNTS_CHUNKS) + script
    job = make_job(code, 2, "downpour_sgd", {"training": Training(3, 8, 5)})
    job.start(program="train.py" if script else "")
    assert job.lives.pop(1).wait(TIME_LIMIT_S) == -signal.SIGKILL
    assert job.codes() == [0], job.say(0)
    assert weights_of(job) == {-3.0 * SAMPLES / 4}


@pytest.fixture
def cursor(tmp_path):
    """The cursor of 4 epochs of 8 samples."""
    with FileCursor(tmp_path / "cursor", 8, 4) as made:
        yield made


def set_clock(monkeypatch, sleep, now):
    clock = SimpleNamespace(sleep=sleep, monotonic=now)
    monkeypatch.setattr("learner.parameter_server.ordered_cursor.time", clock)


def test_a_learner_that_joins_at_the_end_waits_for_no_turn(cursor, monkeypatch):
    set_clock(monkeypatch, lambda _: pytest.fail("it waited"), time.monotonic)
    cursor.restore(cursor_at(8, 4, 4))
    assert OrderedCursor(cursor, 1, 2, 4, lambda: False, 5.0).take(4) is None


class FarCursor:
    """A cursor of 62 learners over a network; for ten seconds it is rank 0's turn."""

    samples, passes, finished = 10_000, 1, False
    now = held_s = 0.0
    asked = looked = 0

    def _keep_off(self, seconds):
        self.sleep(seconds)
        self.held_s = seconds

    def sleep(self, seconds):
        self.now += seconds

    @property
    def next(self):
        self.asked += 1
        self._keep_off(0.001)
        return 0 if self.now < 10 else 61

    def learners(self):
        self.looked += 1
        self._keep_off(0.06)
        return [LearnerEntry(number, True, 0, ()) for number in range(62)]

    def take(self, samples, done):
        return Chunk(0, 61, 62)


@pytest.mark.parametrize(("halt_at", "latest"), [(1e9, 11), (2, 3)])
def test_a_wait_for_a_turn_rarely_locks_the_file_and_ends_with_a_halt(monkeypatch, halt_at, latest):
    """Even between two looks for the dead: the learner whose turn it is may have stopped."""
    far = FarCursor()
    set_clock(monkeypatch, far.sleep, lambda: far.now)
    turns = OrderedCursor(far, 61, 62, 1, lambda: far.now > halt_at, 5.0)
    assert turns.take(1) == Chunk(0, 61, 62)
    assert turns.regular == (halt_at > 10)
    assert far.now < latest and far.asked < 100 and far.looked <= 2


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 179))
def test_no_turn_is_skipped_wherever_an_attempt_resumes(samples, chunk, began):
    """A skipped learner would wait for its next turn, and the others of its round for it."""
    began %= 3 * samples
    fake = SimpleNamespace(
        samples=samples, passes=3, held_s=0.0, learners=lambda: [LearnerEntry(1, True, 0, ())]
    )
    turns = OrderedCursor(fake, 0, 1, chunk, lambda: False, 5.0, began)
    numbers, position = [], began
    while position < 3 * samples:
        numbers.append(turns._number(position))
        position += first_chunk(samples - position % samples, chunk)
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


DIES = """
class Dies(torch.utils.data.Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, n):
        if not os.path.exists("../safe"):
            os.kill(os.getpid(), 9)
        return torch.ones(4) * n, torch.ones(1) * 4 * n
"""


def test_a_death_in_validation_loses_no_checkpoint(make_job):
    training = Training(epochs=2, batch_size=12)
    code = program(sleep_s=0, more=DIES, change="parts['validation'] = Dies()")
    job = make_job(code, 2, "downpour_sgd", {"training": training})
    job.start()
    assert job.codes() == [-signal.SIGKILL, 0], job.say(0)
    trained_on = sum(seen(job).values())
    job.start(0)  # it saves and validates first, so that its next death is no progress
    assert job.codes() == [-signal.SIGKILL, 0]
    assert sum(seen(job).values()) == trained_on
    position = checkpoint(job)["position"]
    assert position["epoch"] >= 1 and "validation_loss" not in position["history"][-1]
    (job.directory / "safe").touch()
    job.change(2)
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    history = job.metrics()["history"]
    assert [epoch["epoch"] for epoch in history] == [1, 2]
    assert "validation_loss" in history[-1]


def test_frozen_parameters_come_from_the_given_weights_at_every_start(make_job):
    code = program(change="model[2].requires_grad_(False)", sleep_s=0)
    arguments = contract.Framework("pytorch", None, None, "train.py", {"weights": "given.pt"})
    fields = {"training": Training(epochs=1, batch_size=12), "framework": arguments}
    job = make_job(code, 3, "downpour_sgd", fields)
    state = {n: torch.full_like(v, 0.5) for n, v in built(code)["model"].state_dict().items()}
    weights = job.directory / contract.CODE / "given.pt"
    torch.save(state, weights)
    job.start(0)
    wait_for(job.file(contract.parameters_file).exists)
    job.kill(0, signal.SIGSTOP)
    broken = job.directory / contract.CHECKPOINTS / directory_name(1)
    broken.mkdir(parents=True)
    job.start(1)
    wait_for(
        lambda: job.log(1).exists() and "is whole" in job.say(1)
    )  # no learner was restarted: it does not continue
    broken.rmdir()
    job.kill(0)
    job.start(0)
    wait_for(lambda: job.say(0).count("starting from the weights") == 2)
    weights.unlink()
    job.start(2)
    assert job.codes() == [0, 1, 1], job.say(0)
    assert "given.pt" in job.say(2)
    trained = torch.load(job.directory / "results/model.pt", weights_only=True)
    assert trained["2.weight"].eq(0.5).all()


def make_coordinator(cursor, save, **keeper):
    """Learner 0 of 4 epochs of 8 samples, with a fake server and fake checkpoints."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.ones(4), torch.ones(1))] * 8
    parts = Parts(model, optimizer, nn.MSELoss(), data, validation=data)
    made = {"due_after_epoch": lambda n: n == 2, "stall_s": 0.0, "saved_step": None, **keeper}
    server_model = SimpleNamespace(
        join=lambda: None, as_on_server=nullcontext, pull=lambda *, fresh: None,
        others_wait=False,
    )  # fmt: skip
    saver = SimpleNamespace(step_schedule=lambda *_: None, saving=lambda _: nullcontext())
    training = ServerTraining(
        Training(4, 4), Trained(parts, None, torch.device("cpu")),
        server_model, saver, UsedRate(optimizer), Reports(print, Progress(None), None), HaltFlag(),
    )  # fmt: skip
    return Coordinator(
        training, cursor,
        SimpleNamespace(save=save, ready=lambda _: True, **made),
        lambda _: None, 5.0,
    )  # fmt: skip


def test_of_several_ended_epochs_only_the_last_is_validated(cursor, monkeypatch):
    saved = []
    clock = SimpleNamespace(
        monotonic=iter([0.0, 10.0, 14.0]).__next__, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(coordinator, "time", clock)

    def save(_, position, *, final):
        saved.append((position.epoch, "validation_loss" in position.history[-1]))
        return not final

    first = make_coordinator(cursor, save)
    cursor.restore(cursor_at(8, 4, 0, 4))  # it continues from here
    first.begin(Position())
    cursor.restore(cursor_at(8, 4, 3, 0))
    assert first.end_epochs() and not first.end_epochs()
    assert saved == [(3, False)]
    history = first.position.history
    assert ["validation_loss" in epoch for epoch in history] == [False, False, True]
    assert history[-1]["samples_per_s"] == 20 / 4


def test_learner_0_names_stragglers_at_the_end_of_an_epoch(make_job):
    """Until then nothing is validated, and no checkpoint is taken at an epoch's end."""
    fields = {"training": Training(epochs=4, batch_size=12)}
    job = make_job(program(sleep_s=0.02), 2, "elastic_averaging", fields, timeout_s=1.0)
    job.start()
    wait_for((job.directory / "seen").exists)
    wait_for(lambda: " 1 " in (job.directory / "seen").read_text())  # it is at a chunk
    job.kill(1, signal.SIGSTOP)
    said = "WARNING: learner 0 has waited for rank 1, which is at samples of epoch "
    try:
        wait_for(lambda: said in job.say(0))
    finally:
        job.kill(1, signal.SIGCONT)
    assert job.codes() == [0, 0], job.say(0)
    assert job.say(0).count(said) == 1


def test_an_epoch_that_was_over_before_learner_0_began_has_no_rate(cursor):
    """The others finished it while learner 0 was starting, so a rate of 0 would be wrong."""
    first = make_coordinator(cursor, lambda *_, final: not final)
    cursor.restore(cursor_at(8, 4, 1, 0))
    first.begin(Position())
    assert first.end_epochs()
    assert "samples_per_s" not in first.position.history[-1]


def test_the_last_checkpoint_waits_for_pushes_of_leaving_learners(cursor):
    alive, left, saved = [True, True, False, False], [], []

    def learners():
        left.append(len(left))
        return [SimpleNamespace(learner=9, alive=alive[left[-1]])]

    cursor.restore(cursor_at(8, 4, 4, 0))
    cursor.learners = learners
    first = make_coordinator(cursor, lambda *_, final: not saved.append(len(left)) and final)
    first.begin(Position())
    assert first.end_epochs()
    assert saved == [3]
    first._keeper.saved_step = first.position.step
    assert first.finish() and saved == [3]  # once is enough


def test_learner_0_leaves_the_round_before_it_waits_for_the_others(cursor):
    """They wait for the end of their last round, in which this learner may have no chunk."""
    done = []
    cursor.restore(cursor_at(8, 4, 4, 0))
    learners = cursor.learners
    cursor.learners = lambda: done.append("alone?") or learners()
    first = make_coordinator(cursor, lambda *_, final: not done.append("saved") and final)
    server_model = first._server_model
    server_model.others_wait = True
    server_model.leave, server_model.join = (
        lambda: done.append("left"),
        lambda: done.append("joined"),
    )
    first.begin(Position())
    assert first.finish()
    assert done[:5] == ["joined", "left", "alone?", "joined", "saved"] and done[-1] == "joined"


def test_a_postponed_checkpoint_fetches_nothing(cursor):
    first = make_coordinator(cursor, lambda *_, final: pytest.fail("saved"))
    first._keeper.ready = lambda _: False
    first._server_model.as_on_server = lambda: pytest.fail("fetched")
    first.begin(Position())
    assert not first.save()


def test_the_solver_s_rows_are_fetched_only_to_be_saved():
    server_model = SimpleNamespace(
        empty_rows=lambda: torch.empty(2, 3), solver_rows=lambda: torch.ones(2, 3)
    )
    saved = SavedServer("downpour_sgd", server_model, print, is_coordinator=True)
    with saved.saving(make_state(8, 4, 12, ())):
        state = saved.state_dict()
    assert state["rows"].eq(1).all() and state["cursor"]["next"] == 12
    server_model.solver_rows = lambda: pytest.fail("fetched")
    assert saved.state_dict()["rows"].shape == (2, 3)


@pytest.mark.first("diloco")
@pytest.mark.parametrize("solver", ["elastic_averaging", "diloco"])
def test_a_halt_and_a_resumption_with_more_learners_train_on_every_sample_once(make_job, solver):
    training = Training(epochs=3, batch_size=12, log_every_steps=5)
    change = "parts['optimizer'] = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9); " + (
        "seed = lambda *_: open('../seeds', 'a').write(f'{torch.initial_seed()}\\n') and None; "
        "model.register_forward_pre_hook(seed)"
    )
    code = program(change=change, samples=121)  # 120 and a single one, for batch norm
    job = make_job(code, 2, solver, {"training": training}, push_every=2)
    job.start()
    wait_for(job.file(contract.position_file).exists)
    time.sleep(0.05)
    job.kill(0, signal.SIGUSR2)
    time.sleep(0.2)  # by now learner 1 waits for learner 0's turn, and 0 for 1's end
    job.kill(1, signal.SIGUSR2)
    assert job.codes() == [EXIT_HALTED] * 2, job.say(0) + job.say(1)
    assert "with a checkpoint" in job.say(0)
    state = checkpoint(job)
    cursor = state["server"]["cursor"]
    assert sum(seen(job).values()) == cursor["next"] - sum(b - a for a, b in cursor["undone"])
    job.change(2, resources=resources(3))
    job.start()
    assert job.codes() == [0, 0, 0], job.say(0)
    assert f"continuing from the checkpoint at step {state['position']['step']}" in job.say(0)
    assert set(seen(job).values()) == {3}
    assert [epoch["epoch"] for epoch in job.metrics()["history"]] == [1, 2, 3]
    assert job.metrics()["steps"] == 30
    # Two learners, then three: each has a different random seed.
    assert len(set((job.directory / "seeds").read_text().split())) == 5


def halt_within(job, grace_s):
    """Halt a job of one learner, as the supervisor does."""
    halt = contract.Directive("halt", "halted on request", time.time(), grace_s=grace_s)
    contract.write_whole(job.file(contract.directive_file), contract.to_json(halt))
    job.kill(0, signal.SIGUSR2)


@pytest.mark.parametrize(
    ("solver", "settings", "said"),
    [
        (
            "downpour_sgd",
            {"momentum": 0.5},
            ["using this node's replica", "of the solver", "last pushes"],
        ),
        ("diloco", {}, ["has waited for the server of another node for as long as"]),
    ],
)
def test_a_halt_leaves_time_to_save_despite_dead_servers(make_job, solver, settings, said):
    job = make_job(program(), 1, solver, shard_nodes=[0, 1], **settings)
    job.replicas = (1,)
    job.start()
    wait_for((job.directory / "seen").exists)
    halt_within(job, 0.6)
    assert job.codes() == [EXIT_HALTED], job.say(0)
    assert "with a checkpoint" in job.say(0) and checkpoint(job)["server"]["cursor"]["next"]
    for words in said:
        assert job.say(0).count(words) == 1, job.say(0)


def test_an_unreachable_file_system_costs_the_checkpoint_only(make_job):
    fields = {"training": Training(1, 12), "checkpoint": CheckpointPolicy(every_steps=2)}
    job = make_job(
        program(), 1, "downpour_sgd", fields, shard_nodes=[0, 1], momentum=0.5, timeout_s=0.2
    )
    job.replicas = (1,)
    job.file(contract.snapshot_request_file).mkdir(parents=True)  # a file that can't be read
    job.start()
    wait_for((job.directory / "seen").exists)
    rows = job.directory / contract.snapshot_file(1, 1)
    rows.unlink()
    rows.mkdir()
    assert job.codes() == [0], job.say(0)
    said = job.say(0)
    assert "WARNING: no checkpoint at step 10: " in said and "shard-1.rows can't be read" in said
    assert "snapshots can't be requested in " in said and job.metrics()["steps"] == 10


def test_a_learner_restarts_on_a_full_disk(make_job):
    job = make_job(program(), 2, "downpour_sgd", {"training": Training(2, 12)})
    job.start()
    number = job.directory / contract.cursor_learner_file(1, 1)
    wait_for(number.exists)
    job.kill(1)
    number.unlink()
    number.mkdir()  # as on a full disk it can't be written
    job.start(1)
    assert job.codes() == [0, 0], job.say(0) + job.say(1)


def test_a_removed_job_directory_is_not_made_again(make_job):
    fields = {"training": Training(2, 12), "checkpoint": CheckpointPolicy(every_steps=2)}
    job = make_job(program(), 2, "elastic_averaging", fields)
    job.start()
    wait_for(lambda: list((job.directory / contract.CHECKPOINTS).glob("step-*/complete.json")))
    removed = job.directory.rename(job.directory.with_name("removed"))
    assert job.codes()[0] == 1
    assert (
        "the trained model can't be written to"
        in (removed / "attempts/1/learner-0.log").read_text()
    )
    assert not job.directory.exists()


@pytest.mark.parametrize("away", ["for a moment", "for too long"])
def test_a_starting_learner_waits_for_an_unreachable_file_system(monkeypatch, tmp_path, away):
    fail, asked = Path.read_bytes, []

    def read_bytes(path):
        asked.append(path)
        if len(asked) < 3 or away == "for too long":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return fail(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    context = SimpleNamespace(directory=tmp_path, attempt=1)
    if away == "for a moment":
        assert not has_begun(context, 60) and len(asked) == 3
    else:
        with pytest.raises(UserFault, match=r"parameters.json can't be read for 0.1 s: .*tale"):
            has_begun(context, 0.1)


STEP_LR = "from torch.optim.lr_scheduler import StepLR as step_lr"


def test_from_a_server_to_allreduce_and_back(make_job):
    training = Training(epochs=1, batch_size=12)
    job = make_job(
        program(change="parts['schedule'] = step_lr(parts['optimizer'], 1, 0.5)", more=STEP_LR), 2,
        "downpour_sgd", {"training": training}, momentum=0.5, learning_rate=0.01,
    )  # fmt: skip
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    rows = checkpoint(job)["server"]["rows"]
    assert rows.shape[0] == 1 and rows.any()
    server = job.plan.parameter_server
    job.change(
        2, parameter_server=None, resources=resources(1), training=replace(training, epochs=2)
    )
    job.start()
    assert job.codes() == [0], job.say(0)
    assert "the checkpoint is of a training with a parameter server" in job.say(0)
    assert job.metrics()["steps"] == 20 and set(seen(job).values()) == {2}
    job.change(
        3, parameter_server=server, resources=resources(2), training=replace(training, epochs=3)
    )
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    assert "the checkpoint is of a training without a parameter server" in job.say(0)
    assert job.metrics()["steps"] == 30 and set(seen(job).values()) == {3}
    rates = [epoch["learning_rate"] for epoch in job.metrics()["history"]]
    assert rates == pytest.approx([0.01, 0.01, 0.0025])  # allreduce has the optimizer's 0.02


HELD_UP = "time.sleep(60 if os.environ['RANK'] == '1' else 0.004)"


@pytest.mark.first("False")
@pytest.mark.parametrize("halts", [False, True])
def test_an_allreduce_skips_samples_that_a_server_training_did(make_job, *, halts):
    """Learner 1 never finishes its first chunk; learner 0 gets into the second epoch."""
    training = Training(epochs=3, batch_size=12)
    job = make_job(
        program().replace("time.sleep(0.004)", HELD_UP), 2, "downpour_sgd",
        {"training": training, "resources": replace(resources(2), halt_margin_s=4)},
    )  # fmt: skip

    def read(ranks="0"):
        """How often each sample was read, except by learner 1 of the first attempt."""
        lines = [line.split() for line in (job.directory / "seen").read_text().splitlines()]
        return Counter(int(number) for number, rank, _ in lines if rank in ranks)

    job.start()
    wait_for(lambda: (job.directory / "seen").exists() and read("1") and read().total() > SAMPLES)
    job.kill(0, signal.SIGUSR2)
    wait_for(lambda: "with a checkpoint" in job.say(0))
    job.kill(1)
    assert job.codes() == [EXIT_HALTED, -signal.SIGKILL]
    cursor = checkpoint(job)["server"]["cursor"]
    ((start, stop),) = cursor["undone"]
    assert stop - start == 6 and cursor["next"] > SAMPLES + 6
    assert read().total() == cursor["next"] - 6
    job.change(2, parameter_server=None, resources=resources(1))
    job.start()
    if halts:  # in what is left of the second epoch
        wait_for(lambda: read().total() > cursor["next"] + 6)
        job.kill(0, signal.SIGUSR2)
        assert job.codes() == [EXIT_HALTED], job.say(0)
        server = ParameterServer("downpour_sgd", [0])
        job.change(3, parameter_server=server, resources=resources(1))
        job.start()
    assert job.codes() == [0], job.say(0)
    assert set(read().values()) == {3} and len(read()) == SAMPLES
    assert [epoch["epoch"] for epoch in job.metrics()["history"]] == [1, 2, 3]


def test_a_learner_with_another_model_is_refused(make_job):
    job = make_job(program(width="8 + int(os.environ['RANK'])"), 2, "downpour_sgd")
    job.start()
    assert job.codes() == [0, 1], job.say(0)
    assert "learner 0 has 'parameter 0.weight (8, 4) float32', this one" in job.say(1)
    assert "'parameter 0.weight (9, 4) float32'" in job.say(1) and "Traceback" not in job.say(1)


def test_unsupported_settings_are_reported(make_job):
    schedule = "torch.optim.lr_scheduler.ReduceLROnPlateau(parts['optimizer'])"
    for change, words in (
        (f"parts['schedule'] = {schedule}", "needs the validation loss"),
        ("model.to(torch.complex64)", "which a parameter server can't hold"),
    ):
        job = make_job(program(change=change), 1, "downpour_sgd")
        job.start()
        assert job.codes() == [1] and words in job.say(0), job.say(0)


def test_a_missing_server_is_reported_once_learner_0_has_built(make_job):
    """A build may take longer than the time limit."""
    job = make_job(program(sleep_s=0), 2, "downpour_sgd", timeout_s=0.3)
    job._serve = lambda: None
    job.start(1)
    time.sleep(0.5)
    job.start(0)
    assert job.codes() == [1, 1]
    for rank in (0, 1):
        assert "no parameter server has made" in job.say(rank)


def test_a_halt_in_the_build_of_learner_0_ends_all_at_once(make_job):
    slow = "os.environ['RANK'] == '0' and open('../building', 'w').close() or time.sleep(0.3)"
    job = make_job(program(sleep_s=0, change=slow), 2, "diloco")
    job.start()
    wait_for((job.directory / "building").exists)
    for rank in (0, 1):
        job.kill(rank, signal.SIGUSR2)
    assert job.codes() == [EXIT_HALTED] * 2, job.say(0) + job.say(1)
    assert "halted before the training began" in job.say(0)


def test_a_halt_while_shards_are_made_ends_all_in_its_time(make_job):
    """Shards of a large model take minutes. Nothing is trained yet, so nothing must be saved."""
    job = make_job(program(sleep_s=0), 1, "diloco", timeout_s=0.1)
    (folder := segment_folder(job.plan.training_id, job.attempt)).mkdir(mode=0o700)
    (folder / ".shard-0.1").touch()
    job._serve = lambda: None
    job.start(0)
    wait_for(job.file(contract.parameters_file).exists)
    halt_within(job, 0.4)
    assert job.codes() == [EXIT_HALTED], job.say(0)
    assert "halted before the training began" in job.say(0)


# The user's own ----------------------------------------------------------------------------------

SIGNS = """
from psrv.rules import Solver

class Signs(Solver):
    rows = 1
    def push(self, server, mine, scratch, rate):
        server[1].mul_(0.5).add_(mine)
        server[0].add_(torch.sign(server[1], out=scratch), alpha=-rate)
"""


def test_a_user_s_own_solver_trains(make_job, monkeypatch):
    names = {"torch": torch}
    exec(SIGNS, names)
    monkeypatch.setitem(server_job.OWN_SOLVER, "own", names["Signs"])
    change = "parts['solver'] = Signs()"
    job = make_job(program(more=SIGNS, change=change), 2, "own", learning_rate=0.005)
    job.start()
    assert job.codes() == [0, 0], job.say(0)
    losses = [epoch["loss"] for epoch in job.metrics()["history"]]
    assert losses[-1] < 0.7 * losses[0]
    assert checkpoint(job)["server"]["rows"].shape[0] == 1


SCRIPT = """\
import sys
import torch
from torch import nn
from torch.utils.data import TensorDataset
from learner import parameter_server

inputs = torch.sin(torch.arange(200.0)).reshape(50, 4)
train = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = nn.Linear(4, 1)
samples = 0
with parameter_server.join(model, train, epochs=8, batch_size=5, lr=0.05) as server:
    for (x,), y in server.batches():
        nn.functional.mse_loss(model(x), y).backward()
        server.step()
        samples += len(x)
error = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
print(server.rank, server.size, samples, error.item())
"""


def test_a_script_trains_in_a_job_and_may_not_join_again(make_job):
    """All samples are done then, so it would silently train on none."""
    again = SCRIPT[SCRIPT.index("with parameter_server.join") :]
    job = make_job(SCRIPT + again, 2, "downpour_sgd", shard_nodes=[0, 0])
    job.start(program="train.py")
    assert job.codes() == [1, 1]
    lines = [job.say(rank).split() for rank in (0, 1)]
    assert [line[:2] for line in lines] == [["0", "2"], ["1", "2"]]
    assert sum(int(line[2]) for line in lines) == 8 * 50 and float(lines[0][3]) < 0.2
    assert json.loads((job.directory / "progress-0").read_text())["metrics"]["pushes"] > 0
    for rank in (0, 1):
        assert "parameter_server.join() was called before" in job.say(rank)
        _, told, hint = read_words(job.plan, job.say(rank).splitlines(), 1)
        assert told.startswith("parameter_server.join() was") and hint.startswith("join once")
