"""The parts of the built-in loop that need no separate process."""

import contextlib
import copy
import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from curves import measured
from scheduler_plan import make_plan
from server_job import resources
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dlctl.contract import CheckpointPolicy, Training, attempt_dir
from learner.data_parallel.consistency import check_same, describe
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.errors import UserFault, explain
from learner.exchange.single import SingleExchange
from learner.export import export_metrics, export_model
from learner.job.metrics import MetricsFile, Progress, StepTimes, tell
from learner.model.device import device_index, prepare
from learner.model.lr_schedule import ManifestSchedule, UsedRate
from learner.model.user_model import Parts, build_parts, load_build
from learner.model.weights import differences, find_weights, load_weights
from learner.system.signals import HaltFlag
from learner.training.checkpoints import CheckpointKeeper, Position, Trained
from learner.training.loop import Reports, Trainer
from learner.training.setup import TrainingJob


def dataset(samples=23):
    torch.manual_seed(1)
    return TensorDataset(torch.randn(samples, 4), torch.randn(samples, 2))


def make_parts(**changes):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = {"model": model, "optimizer": optimizer, "loss": nn.MSELoss(), "train": dataset()}
    return {**made, **changes}


def make_trainer(
    tmp_path,
    settings=None,
    policy=None,
    said=None,
    progress=None,
    steering=None,
    file="metrics.jsonl",
    **parts,
):
    """Return a trainer of `make_parts`, but for these parts."""
    made, settings, exchange = (
        Parts(**make_parts(**parts)),
        settings or Training(),
        SingleExchange(),
    )
    say = print if said is None else said.append
    steps = math.ceil(len(made.train) / settings.batch_size)
    schedule = ManifestSchedule(
        made.optimizer, settings.learning_rate_schedule, steps, settings.epochs
    )
    policy = policy or CheckpointPolicy()
    keeper = CheckpointKeeper(tmp_path / "checkpoints", policy, {"learners": 1}, exchange, say)
    reports = Reports(say, progress or Progress(None), MetricsFile(tmp_path / file))
    trained = Trained(made, schedule, torch.device("cpu"))
    optimizer = DistributedOptimizer(made.optimizer, exchange, average=False, at_end=False)
    return Trainer(settings, trained, optimizer, exchange, keeper, reports, HaltFlag(), steering)


def of_model(model):
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}


def test_an_epoch_equals_plain_torch(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    twin = copy.deepcopy(model)
    settings = Training(epochs=1, batch_size=23)
    assert make_trainer(tmp_path, settings, **of_model(model)).run(Position())
    inputs, targets = dataset().tensors
    nn.functional.mse_loss(twin(inputs), targets).backward()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert theirs.grad is not None
        torch.testing.assert_close(mine.detach(), theirs.detach() - 0.1 * theirs.grad)


def test_metrics_and_history_hold_every_epoch(tmp_path):
    said = []
    settings = Training(epochs=3, batch_size=10, log_every_steps=2, validate_every_epochs=2)
    progress = Progress(tmp_path / "progress")
    trainer = make_trainer(
        tmp_path, settings, CheckpointPolicy(every_steps=4), said, progress,
        validation=dataset(5), metrics={"three": lambda o, t: 3},
    )  # fmt: skip
    assert trainer.run(Position())
    lines = measured(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 8, 9]
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3]
    assert all(line["three"] == pytest.approx(3.0) for line in lines)
    told = {"step_s", "samples_per_s", "exchange_s", "data_wait_s", "checkpoint_stall_s"}
    assert all(told <= line.keys() for line in lines)  # an epoch's last, too, however short it is
    validated = ["validation_loss" in epoch for epoch in trainer.position.history]
    assert validated == [False, True, True]
    steps = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert steps == ["step-000000000008", "step-000000000009"]
    told = json.loads((tmp_path / "progress").read_text())
    assert (told["epoch"], told["done"]) == (3, 1.0)
    assert [line.split()[:2] for line in said[2:]] == [["epoch", f"{n}/3"] for n in (1, 2, 3)]


def test_an_error_in_a_layer_of_torch_names_the_layer(tmp_path):
    """Its frames are all in torch, but the layer is in the user's `build`."""
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(5, 2))
    trainer = make_trainer(tmp_path, **of_model(model))
    with pytest.raises(RuntimeError) as failure:
        trainer.run(Position())
    layer = "(in the model's layer 2: Linear(in_features=5, out_features=2, bias=True))"
    assert "cannot be multiplied" in str(failure.value) and str(failure.value).endswith(layer)


def test_positions_done_on_a_parameter_server_are_skipped(tmp_path):
    settings = Training(epochs=3, batch_size=4, log_every_steps=1)
    trainer = make_trainer(tmp_path, settings)
    position = Position(done=[(0, 23), (25, 35), (38, 40)], step=3)
    assert trainer.run(position)
    assert ["loss" in epoch for epoch in position.history] == [False, True, True]
    assert (position.step, position.done) == (3 + 3 + 6, [])  # 11 left, then 23
    rates = measured(tmp_path / "metrics.jsonl")
    assert [line["epoch"] for line in rates] == [1, *3 * [2], *6 * [3]]


def test_batch_norm_trains_with_one_sample_left(tmp_path):
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    settings = Training(epochs=2, batch_size=11, log_every_steps=1)
    assert make_trainer(tmp_path, settings, **of_model(model)).run(Position())
    lines = measured(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3, 4]


def test_the_used_rate_follows_the_schedule_after_a_checkpoint_was_loaded():
    optimizer = make_parts()["optimizer"]
    rates = UsedRate(optimizer), UsedRate(optimizer, rate=1.0)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.05
    assert [rate.now() for rate in rates] == [0.05, 0.5]


@pytest.mark.parametrize(("of_build", "rate", "momentum"), [(True, 0.02, 0.7), (False, 0.1, 0)])
def test_a_training_that_goes_on_may_take_the_settings_of_build(tmp_path, of_build, rate, momentum):
    def keeper_of(parts):
        return job.keeper(parts, SingleExchange(), None)

    def trained(parts):
        return Trained(parts, job.schedule(parts), torch.device("cpu"))

    plan = make_plan(job_dir=str(tmp_path))
    job = TrainingJob(tmp_path, 1, replace(plan, training=Training(settings_of_build=of_build)), 0)
    before = Parts(**make_parts())
    keeper = keeper_of(before)
    with contextlib.closing(keeper):
        keeper.save(trained(before), Position(step=3), final=True)
    parts = make_parts()
    parts["optimizer"] = torch.optim.SGD(parts["model"].parameters(), lr=0.02, momentum=0.7)
    again = trained(Parts(**parts))
    assert job.start(keeper_of(again.parts), again).step == 3
    again.schedule.before_step(3)
    group = again.parts.optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (rate, momentum)


def test_a_postponed_checkpoint_waits_until_it_is_overdue(tmp_path, monkeypatch):
    settings = Training(epochs=1, batch_size=1)
    trainer = make_trainer(tmp_path, settings, CheckpointPolicy(every_steps=3))
    asked = []

    def save(trained, position, *, final=False):
        asked.append(position.step)
        return False

    monkeypatch.setattr(trainer._keeper, "save", save)
    monkeypatch.setattr(trainer._keeper, "overdue", lambda: trainer.position.step == 16)
    assert trainer.run(Position())
    assert asked == [3, 6, 9, 12, 15, 17, 18, 21, 23]


def test_a_checkpoint_at_an_epochs_end_counts_for_the_next_steps(tmp_path):
    settings = Training(epochs=3, batch_size=10)
    trainer = make_trainer(tmp_path, settings, CheckpointPolicy(every_epochs=1))
    assert trainer.run(Position())
    lines = measured(tmp_path / "metrics.jsonl")
    stalls = [line["checkpoint_stall_s"] for line in lines]
    assert stalls[0] == 0 < min(stalls[1:])
    assert all(line["checkpoint_stall_s"] < line["step_s"] for line in lines)


def test_without_a_step_no_times_are_reported():
    now = iter([0.0, 0.0, 4.0, 4.0, 5.0, 5.0])
    times = StepTimes(clock=lambda: next(now))
    times.begin()
    times.add(10, exchange_s=1.0)
    times.add(10, exchange_s=1.0)
    times.add(0, steps=0, exchange_s=0.5)
    told = times.read()
    assert told.pop("memory_bytes") > 0
    assert told == {"samples_per_s": 5.0, "step_s": 2.0, "exchange_s": 1.25}
    assert times.read().keys() == {"memory_bytes"}


def test_an_infinite_loss_is_reported_once_and_null_in_json(tmp_path):
    said = []
    make_trainer(
        tmp_path, Training(epochs=2, batch_size=10), None, said, Progress(tmp_path / "progress"),
        loss=lambda o, t: (o - t).mean() * math.nan,
    ).run(Position())  # fmt: skip
    told = json.loads((tmp_path / "progress").read_text())
    assert told["warning"] == "the loss is nan since step 1"
    assert told["metrics"]["loss"] is None
    assert sum("WARNING: the loss is nan" in line for line in said) == 1
    line = measured(tmp_path / "metrics.jsonl")[-1]
    assert line["loss"] is None


def test_a_loss_per_sample_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, loss=nn.MSELoss(reduction="none"))
    with pytest.raises(UserFault, match="not a tensor with one element"):
        trainer.run(Position())


def test_frozen_parameters_do_not_change(tmp_path):
    model = nn.Linear(4, 2)
    before = model.bias.requires_grad_(False).clone()
    make_trainer(tmp_path, **of_model(model)).run(Position())
    assert torch.equal(model.bias, before)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": 3}, "as 'model'; it must be a torch.nn.Module"),
        ({"optimizer": "adam"}, "as 'optimizer'"),
        ({"loss": 1}, "as 'loss'"),
        ({"train": iter([])}, "map-style dataset"),
        ({"train": []}, "'train' that build returned is empty"),
        ({"train": DataLoader(dataset())}, "the loop divides it into batches"),
        ({"metrics": [1]}, "as 'metrics'"),
        ({"metrics": {"loss": max}}, "can't be called 'loss'"),
        ({"schedule": 1}, "as 'schedule'"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "not in the model"),
        ({"validatoin": 1}, "did you mean 'validation'"),
    ],
)
def test_what_build_returns_is_checked(change, words):
    with pytest.raises(UserFault) as caught:
        build_parts(lambda arguments: make_parts(**change), {})
    assert words in str(caught.value)


def test_a_missing_program_is_named(tmp_path):
    with pytest.raises(UserFault, match=r"there is no file nothing\.py"):
        load_build(tmp_path / "nothing.py")


def test_progress_is_written_at_most_twice_a_second(tmp_path):
    now = [10.0]
    progress = Progress(tmp_path / "p", clock=lambda: now[0])
    for step, at in ((1, 10.0), (2, 10.2), (3, 10.6), (4, 10.7)):
        now[0] = at
        progress.update(step, 1, {"loss": math.inf, "accuracy": 0.5})
        said = json.loads((tmp_path / "p").read_text())
        assert said == {
            "step": {1: 1, 2: 1, 3: 3, 4: 3}[step], "epoch": 1, "warning": "", "done": None,
            "metrics": {"loss": None, "accuracy": 0.5}, "listed": True,
        }  # fmt: skip
    progress.update(5, 1, {}, force=True)
    assert json.loads((tmp_path / "p").read_text())["step"] == 5
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_a_full_disk_loses_metrics_and_lines_but_not_the_training(tmp_path, monkeypatch):
    full = Path("/dev/full")
    warned = []
    trainer = make_trainer(
        tmp_path, Training(epochs=2, batch_size=10),
        progress=Progress(tmp_path / "no folder" / "progress"),
    )  # fmt: skip
    with full.open("w") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        reports = replace(trainer._reports, say=tell, metrics=MetricsFile(full, warn=warned.append))
        trainer._reports = reports
        assert trainer.run(Position())
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            stream.close()
    assert len(warned) == 1
    assert "metrics are lost from step 0 on" in warned[0]
    assert "No space left on device" in warned[0]


def test_a_model_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("learner.training.setup.export_model", refuse)
    (tmp_path / attempt_dir(1)).mkdir(parents=True)
    job = TrainingJob(tmp_path, 1, make_plan(job_dir=str(tmp_path)), 0)
    with pytest.raises(UserFault, match="model can't be written to .*: No space left") as told:
        job.export(Parts(**make_parts()), Position())
    assert "dlctl resume t-1" in told.value.hint


def test_no_partial_line_stays_in_the_metrics(tmp_path, monkeypatch):
    warned = []
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path, warn=warned.append)
    file.append(1, 1, {"loss": 0.5})
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr("os.write", lambda to, data: write(to, data[:9]))
        file.append(2, 1, {"loss": 0.5})
    file.append(3, 1, {"loss": 0.5})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]
    assert len(warned) == 1


def test_results_load_without_dlctl(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    loaded = torch.load(export_model(model, tmp_path / "results"), weights_only=True)
    assert differences(model.state_dict(), loaded) == []
    path = export_metrics([{"epoch": 1, "loss": math.nan}], tmp_path / "results", epochs=1)
    assert json.loads(path.read_text())["final"] == {"loss": None}


def test_only_a_job_that_says_so_starts_from_weights_that_do_not_fit(tmp_path, capsys):
    weights = {"weight": torch.ones(2, 4), "bias": torch.ones(3), "more": torch.ones(1)}
    torch.save(weights, tmp_path / "w")
    plan, model = make_plan(job_dir=str(tmp_path)), nn.Linear(4, 2)

    def take(**more):
        framework = replace(plan.framework, arguments={"weights": str(tmp_path / "w"), **more})
        TrainingJob(tmp_path, 1, replace(plan, framework=framework), 0).take_weights(model)

    with pytest.raises(UserFault, match=r"more is not in the model; bias has the shape \(3,\)"):
        take()
    take(weights_strict=False)
    assert "WARNING: not loaded from w: bias has the shape (3,)" in capsys.readouterr().out
    assert torch.equal(model.weight, torch.ones(2, 4))
    torch.save(weights | {f"more.{n}": torch.ones(1) for n in range(98)}, tmp_path / "w")
    take(weights_strict=False)
    named = [line for line in capsys.readouterr().out.splitlines() if "WARNING: not" in line]
    assert len(named) == 6 and named[-1].endswith("not loaded from w: 95 more tensors")


def test_weights_load_from_data_dir_and_unsafe_ones_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    (tmp_path / "w.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    found = find_weights("w.pt", tmp_path / "code")
    assert found == tmp_path / "w.pt"
    with pytest.raises(UserFault, match="is no plain state_dict"):
        load_weights(found)
    with pytest.raises(UserFault, match="does not exist"):
        load_weights(find_weights("no.pt", tmp_path / "code"))


def test_the_first_difference_between_learners_is_named():
    parts = Parts(**make_parts())
    other = [line.replace("(2, 4)", "(2, 5)") for line in describe(parts)]

    class TwoLearners(SingleExchange):
        size = 2

        def share(self, value):
            return other

        def collect(self, value):
            return [None, value]

    check_same(parts, SingleExchange())
    said = r"rank 0 has parameter weight \(2, 5\) float32, rank 1 has parameter weight \(2, 4\)"
    with pytest.raises(UserFault, match=said):
        check_same(parts, TwoLearners())


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserFault("a", hint="b"), 1, "a\n"),
        (SystemExit(85), 1, "exit(85)"),
        (SystemExit(3), 3, "exit(3)"),
        (ValueError("x"), 1, "ValueError: x"),
    ],
)
def test_every_line_of_an_error_names_the_rank(error, code, words, capsys):
    assert explain(error, 3) == code
    said = capsys.readouterr().err
    assert words in said
    assert all(line.startswith("[rank 3 on ") for line in said.splitlines())


def test_a_learners_operations_are_deterministic(monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    for name in ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    threads = torch.get_num_threads()
    try:
        assert prepare(resources(1), 0, pytest.fail).type == "cpu"
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["TORCHINDUCTOR_DETERMINISTIC"] == "1"
    finally:
        torch.set_deterministic_debug_mode("default")
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("visible", "gpus", "local_rank", "expected"), [(1, 1, 3, 0), (4, 1, 3, 3), (4, 2, 1, 2)]
)
def test_each_learner_has_its_own_gpu(visible, gpus, local_rank, expected):
    assert device_index(visible, gpus, local_rank) == expected
