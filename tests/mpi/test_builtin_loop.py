"""The built-in loop as a program, with one learner and with several."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from curves import measured

from dlctl import contract

pytestmark = pytest.mark.mpi

# 47 samples in batches of 10: the last batch has 7, of which 4 learners get 2, 2, 2 and 1.
PROGRAM = """
import os, signal
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.LayerNorm(16)
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(16, 3)
        self.unused = nn.Linear(2, 2)
        self.steps = 0

    def forward(self, x):
        if self.training:
            self.steps += 1
            if os.environ["RANK"] == os.environ.get("HALT_RANK", "0") and (
                str(self.steps) == os.environ.get("HALT_AT")
            ):
                os.kill(os.getpid(), signal.SIGUSR2)
        elif os.environ.get("HALT_IN_VALIDATION"):
            os.kill(os.getpid(), signal.SIGUSR2)
        return self.last(self.dropout(torch.relu(self.norm(self.first(x)))))

def build(arguments):
    data = torch.Generator().manual_seed(3)
    x = torch.randn(47 + arguments.get("extra", 0), 6, generator=data)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    model = Net(arguments.get("dropout", 0.0))
    if arguments.get("optimizer") == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.01)
    built = {
        "model": model, "optimizer": optimizer, "loss": nn.CrossEntropyLoss(),
        "train": torch.utils.data.TensorDataset(x, y),
        "validation": torch.utils.data.TensorDataset(x[:13], y[:13]),
        "metrics": {"accuracy": lambda o, t: (o.argmax(1) == t).float().mean()},
    }
    if arguments.get("schedule"):
        built["schedule"] = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], gamma=0.5)
    if arguments.get("schedule") == "cycle":
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=15)
        built["schedule"] = {"scheduler": cycle, "step": "batch"}
    return built
"""


def same_bits(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def training(**fields):
    chosen = {"epochs": 3, "batch_size": 10, "seed": 5, "log_every_steps": 2, **fields}
    return contract.Training(**chosen)


def metrics_lines(job, attempt=1):
    return measured(job.directory / contract.metrics_file(attempt, 0))


@pytest.mark.costs(12)
@pytest.mark.first("adam-numbers1")
@pytest.mark.parametrize(
    ("optimizer", "numbers"),
    [pytest.param("sgd", (1, 2, 4), marks=pytest.mark.long), ("adam", (1, 2))],
)
def test_learners_agree_with_one_on_the_same_global_batches(make_job, optimizer, numbers):
    """Four have Adam in the next test."""
    results = []
    for learners in numbers:
        job = make_job(PROGRAM, learners, {"optimizer": optimizer})
        done = job.train()
        assert done.returncode == 0, done.stderr
        results.append((job.weights(), metrics_lines(job)))
    (one, one_lines), *others = results
    for weights, lines in others:
        for name in one:
            torch.testing.assert_close(weights[name], one[name], rtol=1e-5, atol=1e-6)
        assert [line["step"] for line in lines] == [line["step"] for line in one_lines]
        for mine, single in zip(lines, one_lines, strict=True):
            assert mine["loss"] == pytest.approx(single["loss"], rel=1e-5)
            assert mine["accuracy"] == pytest.approx(single["accuracy"], rel=1e-5)
    initial = torch.nn.Linear(2, 2)
    assert one["unused.weight"].shape == initial.weight.shape


def test_more_learners_than_samples_in_the_last_batch(make_job):
    one, four = (make_job(PROGRAM, n, {"extra": 5}) for n in (1, 4))  # 52 samples: 2 at the end
    for job in (one, four):
        done = job.train()
        assert done.returncode == 0, done.stderr
    for name, value in one.weights().items():
        torch.testing.assert_close(four.weights()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.first("sgd-2-halts2")
@pytest.mark.costs(15)
@pytest.mark.parametrize(
    ("kind", "learners", "halts"),
    [
        ("sgd", 1, [{"HALT_AT": "7"}]),
        pytest.param(  # 5: an epoch's last
            "adam",
            2,
            [{"HALT_AT": "7", "HALT_RANK": "1"}, {"HALT_AT": "5"}],
            marks=pytest.mark.long,
        ),
        ("sgd", 2, [{"HALT_IN_VALIDATION": "1"}]),
    ],
)
def test_halted_and_resumed_is_bit_equal(make_job, kind, learners, halts):
    schedule = "cycle" if learners == 1 else kind == "sgd"
    arguments = {"dropout": 0.4, "optimizer": kind, "schedule": schedule}
    settings = training(
        learning_rate_schedule=contract.LearningRateSchedule("cosine", warmup_steps=3),
        clip_gradient_norm=0.5,
    )
    whole = make_job(PROGRAM, learners, arguments, training=settings)
    assert whole.train().returncode == 0
    for halt in halts:
        parts = make_job(PROGRAM, learners, arguments, training=settings)
        halted = parts.train(**halt)
        assert halted.returncode == 85, halted.stderr
        assert not (parts.directory / "results" / "model.pt").exists()
        resumed = parts.train(attempt=2)
        assert resumed.returncode == 0, resumed.stderr
        assert "continuing from the checkpoint" in resumed.stdout
        assert same_bits(whole.weights(), parts.weights())
        merged = {line["step"]: line for n in (1, 2) for line in metrics_lines(parts, n)}
        for line in metrics_lines(whole):
            assert merged[line["step"]]["loss"] == line["loss"]


def test_results_and_progress_are_written(make_job):
    job = make_job(PROGRAM, 2)
    progress = job.directory / "progress"
    done = job.train(DLCTL_PROGRESS_FILE=str(progress))
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        said = json.loads(progress.with_name(f"progress-{rank}").read_text())
        assert (said["step"], said["epoch"]) == (15, 3)
        assert "validation_accuracy" in said["metrics"]
        assert 0 < said["metrics"]["exchange_s"] < said["metrics"]["step_s"]
    metrics = json.loads((job.directory / "results" / "metrics.json").read_text())
    assert [epoch["epoch"] for epoch in metrics["history"]] == [1, 2, 3]
    assert metrics["final"]["loss"] == metrics["history"][-1]["loss"]
    assert "epoch 3/3" in done.stdout
    assert not list((job.directory / contract.CODE).glob("__pycache__"))


def test_the_number_of_learners_may_change_on_the_way(make_job):
    whole = make_job(PROGRAM, 1)
    assert whole.train().returncode == 0
    jobs = [make_job(PROGRAM, learners) for learners in (4, 2, 3)]
    for attempt, (job, halt) in enumerate(zip(jobs, ("3", "4", ""), strict=True), start=1):
        if attempt > 1:
            (jobs[attempt - 2].directory / "checkpoints").rename(job.directory / "checkpoints")
        done = job.train(HALT_AT=halt)
        assert done.returncode == (85 if halt else 0), done.stderr
    assert "learners in the checkpoint: 2, now: 3" in done.stdout
    for name, value in whole.weights().items():
        torch.testing.assert_close(job.weights()[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.first
def test_one_rank_that_fails_ends_all(make_job):
    program = PROGRAM.replace(
        "    data = torch",
        "    if os.environ['RANK'] == '1': import no_such_module\n    data = torch",
        1,
    )
    done = make_job(program, 2).train()
    assert done.returncode != 0
    assert "ModuleNotFoundError: No module named 'no_such_module'" in done.stderr
    assert "[rank 1 on " in done.stderr
    assert "train.py" in done.stderr


def test_different_models_are_named(make_job):
    program = PROGRAM.replace(
        "nn.Linear(6, 16)", "nn.Linear(6, 16, bias=os.environ['RANK'] == '0')"
    )
    done = make_job(program, 2).train()
    assert done.returncode != 0
    assert "rank 0 has parameter first.bias (16,) float32, rank 1 has" in done.stderr


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("def build(arguments)\n    pass\n", "train.py, line 1: expected ':'"),
        ("x = 1\n", "train.py defines no function build(arguments)"),
        ("def build():\n    return {}\n", "must take one argument"),
        ("def build(a):\n    return 3\n", "build returned an object of the type int, not a dict"),
        ("def build(a):\n    return {'modle': 1}\n", "did you mean 'model'?"),
        ("def build(a):\n    return {'model': 1}\n", "no optimizer and no loss and no train"),
        ("def build(a):\n    raise SystemExit(0)\n", "the user's program called exit(0)"),
    ],
)
def test_a_wrong_program_gets_one_sentence(make_job, program, words):
    done = make_job(program).train()
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 2


SUMS = "nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(reduction='sum')"
SYNCHRONIZED = "nn.LayerNorm(16)", "nn.SyncBatchNorm(16)"


@pytest.mark.parametrize(("change", "said"), [
    (SUMS, "the loss is a sum over the batch's samples"),
    (SYNCHRONIZED, "the model's layer norm is a SyncBatchNorm"),
])  # fmt: skip
def test_what_would_depend_on_the_number_of_learners_is_refused(make_job, change, said):
    """Both trained to the end, to other weights than one learner's."""
    done = make_job(PROGRAM.replace(*change), 2).train()
    assert done.returncode != 0
    assert said in done.stderr and "Traceback" not in done.stderr


def test_users_modules_shadow_nothing_and_can_be_imported(make_job):
    job = make_job("import helper\nfrom learner import errors\n" + PROGRAM, 1)
    for name in ("typing.py", "learner.py", "random.py"):
        (job.directory / "code" / name).write_text("raise RuntimeError('shadowed')\n")
    (job.directory / "code" / "helper.py").write_text("VALUE = 1\n")
    done = job.train()
    assert done.returncode == 0, done.stderr


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = pytest.mark.mpi


def train(make_job, name, epochs):
    manifest = yaml.safe_load((EXAMPLES / name / "manifest.yml").read_text())
    settings = manifest["training"]
    chosen = contract.Training(**{**settings, "epochs": epochs})
    job = make_job("", manifest["learners"], manifest["framework"]["arguments"], training=chosen)
    shutil.copytree(EXAMPLES / name, job.directory / contract.CODE, dirs_exist_ok=True)
    done = job.train()
    assert done.returncode == 0, done.stderr
    metrics = json.loads((job.directory / "results" / "metrics.json").read_text())
    return dict(metrics["final"])


@pytest.mark.long
def test_char_lm_learns(make_job):
    final = train(make_job, "char-lm", epochs=2)
    assert final["validation_bits_per_character"] < 3.6  # one letter of 68 by chance: 6.1
