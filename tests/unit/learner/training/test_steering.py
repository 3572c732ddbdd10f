"""Orders of people and the manifest's guards, in the built-in loop of one learner."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from curves import measured
from test_training_loop import dataset, make_trainer
from torch import nn
from torch.utils.data import TensorDataset

from dlctl import contract
from dlctl.contract import CheckpointPolicy, Order, Plateau, Stopped, StopRules, Training
from learner.errors import UserFault
from learner.job.directives import Orders
from learner.job.guards import Guards, known_plateau, write_stopped
from learner.training.checkpoints import Position
from learner.training.steering import Steering


class Run:
    """One attempt of a training of 24 samples in batches of 4."""

    def __init__(
        self, folder, attempt = 1, rules = None, epochs = 2,
        jumps = None, plateau = lambda: None, **parts,
    ):  # fmt: skip
        (folder / contract.CONTROL).mkdir(parents=True, exist_ok=True)
        (folder / contract.attempt_dir(attempt)).mkdir(parents=True)
        torch.manual_seed(0)
        self.folder = folder
        self.stopped = []
        self.orders = Orders(folder, attempt, clock=iter(range(10**6)).__next__)
        self.metrics = folder / f"metrics-{attempt}.jsonl"
        self.trainer = make_trainer(
            folder, Training(epochs=epochs, batch_size=4, log_every_steps=1, seed=1),
            CheckpointPolicy(every_steps=100), [], None,
            Steering(self.orders, rules, self.stopped.append, plateau, jumps or {}),
            self.metrics.name, **{"train": dataset(24), **parts},
        )  # fmt: skip
        self.trained, self.keeper = self.trainer._trained, self.trainer._keeper
        self.parts = self.trained.parts

    def at_step(self, step, act):
        """Do something after this many forward passes."""

        forwards = []

        def hook(*_):
            forwards.append(1)
            if len(forwards) == step:
                act()

        self.parts.model.register_forward_hook(hook)

    def order(self, number, **fields):
        path = self.folder / contract.order_file(number)
        contract.write_whole(path, contract.to_json(Order(**fields)))

    def run(self, position=None):
        return self.trainer.run(position or Position())

    def lines(self):
        return measured(self.metrics)

    def answer(self, number):
        found = contract.read_record(contract.OrderAnswer,
                                     self.folder / contract.order_answer(number))  # fmt: skip
        assert found is not None
        return found


def test_a_rate_is_tuned_at_a_step_and_noted_in_the_metrics(tmp_path):
    run = Run(tmp_path)
    run.at_step(3, lambda: run.order(1, values={"lr": 0.025, "weight_decay": 0.5}))
    assert run.run()
    answer = run.answer(1)
    assert (answer.attempt, answer.step, answer.problem) == (1, 3, "")
    events = [line for line in run.lines() if "event" in line]
    assert [(e["step"], e["event"]) for e in events] == [
        (3, "order 1: tuned lr=0.025, weight_decay=0.5")
    ]
    rates = {line["step"]: line["learning_rate"] for line in run.lines() if "loss" in line}
    assert [rates[3], rates[4], rates[12]] == [0.1, 0.025, 0.025]
    assert run.parts.optimizer.param_groups[0]["weight_decay"] == 0.5


@pytest.mark.parametrize("size", [2, 9])
def test_another_batch_size_leaves_out_no_sample_and_repeats_none(tmp_path, size):
    class Numbered(torch.utils.data.Dataset):
        seen: list[int] = []  # noqa: RUF012

        def __len__(self):
            return 24

        def __getitem__(self, index):
            return torch.full((4,), float(index)), torch.zeros(2)

    run = Run(tmp_path)
    run.parts.train = Numbered()
    batches = []
    run.parts.model.register_forward_hook(
        lambda _, inputs, __: batches.append([int(v) for v in inputs[0][:, 0]])
    )
    run.at_step(2, lambda: run.order(1, values={"batch_size": size}))
    assert run.run()
    first = batches[: next(n for n in range(len(batches)) if sum(map(len, batches[:n])) == 24)]
    assert sorted(sum(first, [])) == list(range(24))
    assert [len(b) for b in first][:3] == [4, 4, size]
    assert sum(map(len, batches)) == 48
    assert run.trainer.position.tuned == {"batch_size": size}


def test_an_attempt_that_repeats_the_step_obeys_at_the_same_one(tmp_path):
    run = Run(tmp_path)
    run.at_step(5, lambda: run.order(1, values={"lr": 0.01, "batch_size": 6}))
    assert run.run()
    again = Run(tmp_path, attempt=2)
    assert again.run()
    assert run.answer(1).attempt == 1
    pairs = zip(run.parts.model.parameters(), again.parts.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_tuned_values_survive_a_restart_from_a_checkpoint(tmp_path, wait_until):
    run = Run(tmp_path)
    engine = run.keeper._engine

    def saved():
        engine.poll()
        return engine.saved_step is not None

    run.at_step(2, lambda: run.order(1, values={"lr": 0.02, "batch_size": 6}))
    run.at_step(3, lambda: wait_until(engine.ready, 60, what="a writer"))
    run.at_step(4, lambda: run.order(2, save=True))
    run.at_step(5, lambda: wait_until(saved, 60, what="the checkpoint that was asked for"))
    assert run.run()
    (final,) = (tmp_path / "checkpoints").glob("step-*[!4]")
    shutil.rmtree(final)
    again = Run(tmp_path, attempt=2)
    position = again.keeper.load(again.trained)
    assert position is not None and position.step == 4
    assert (position.orders, position.tuned) == (2, {"batch_size": 6})
    assert again.run(position)
    pairs = zip(run.parts.model.parameters(), again.parts.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_setting_that_the_optimizer_lacks_is_refused(tmp_path):
    model = nn.Linear(4, 2)
    adam = torch.optim.Adam(model.parameters())
    run = Run(tmp_path, model=model, optimizer=adam)
    run.order(1, values={"momentum": 0.9})
    assert run.run()
    assert run.answer(1).problem == "the optimizer Adam has no momentum"


def test_a_loss_that_is_no_number_ends_the_attempt_before_its_update(tmp_path):
    run = Run(tmp_path, rules=StopRules(not_a_number=True))
    weights = run.parts.model

    def poison():
        weights.register_forward_hook(lambda *a: a[2] * float("nan"))

    run.at_step(3, poison)
    with pytest.raises(UserFault, match="the loss is nan at step 4"):
        run.run()
    assert [s.kind for s in run.stopped] == ["not_a_number"]
    assert all(torch.isfinite(p).all() for p in weights.parameters())


def test_a_metric_that_stays_as_it_is_ends_the_training_early(tmp_path):
    rules = StopRules(plateau=Plateau("loss", 2))
    run = Run(tmp_path, rules=rules, epochs=20)
    run.order(1, values={"lr": 0.0})
    assert run.run()
    assert run.trainer.position.epoch < 8
    assert run.stopped[0].reason.startswith("loss has not improved in 2 epochs (best ")


def test_a_plateau_that_the_supervisor_has_found_ends_the_training_after_the_epoch(tmp_path):
    found = []
    rules = StopRules(plateau=Plateau())
    run = Run(tmp_path, rules=rules, epochs=40, plateau=lambda: found[0] if found else None)
    run.parts.model.register_forward_hook(
        lambda *_: found.append(Stopped("plateau", 15, "loss has hardly improved since step 5"))
        if run.trainer.position.step == 15 else None
    )  # fmt: skip
    assert run.run()
    assert (run.trainer.position.epoch, run.trainer.position.step) == (3, 18)
    assert run.stopped == found[:1]


@pytest.mark.parametrize(("kind", "ends"), [("plateau", True), ("loss_spike", False)])
def test_only_a_plateau_of_this_attempt_ends_it(tmp_path, kind, ends):
    for attempt in (1, 2):
        (tmp_path / contract.attempt_dir(attempt)).mkdir(parents=True)
    write_stopped(tmp_path, 2, stopped := Stopped(kind, 7, "because"))
    assert known_plateau(tmp_path, 2) == (stopped if ends else None)
    assert known_plateau(tmp_path, 3) is None


@pytest.mark.parametrize(
    ("jumps", "seen"), [({}, 48), ({1: 4}, 40), ({1: 4, 2: 4}, 32), ({1: 9}, 32)]
)
def test_batches_before_a_jump_are_left_out_of_the_next_attempt(tmp_path, jumps, seen):
    """From a checkpoint at step 2, which did 8 of the epoch's 24 samples, to a jump at step 4."""
    rules = StopRules(loss_spike=1e9, skip_batches=True)
    run = Run(tmp_path, attempt=3, rules=rules, jumps=jumps)
    samples = [8]
    run.parts.model.register_forward_hook(lambda _, inputs, __: samples.append(len(inputs[0])))
    position = Position(batch=2, step=2, samples=8, sums={"loss": 8.0})
    assert run.run(position)
    assert sum(samples) == seen
    events = [line["event"] for line in run.lines() if "event" in line]
    assert bool(events) is bool(jumps)
    assert position.rolled_back == max(jumps, default=0)
    again = Run(tmp_path / "again", attempt=4, rules=rules, jumps=jumps)
    later = replace(position, epoch=1, batch=0, step=3, sums={}, samples=0, done=[])
    assert again.run(later)
    assert not [line for line in again.lines() if "event" in line]


def test_a_metric_that_no_epoch_reports_is_named_before_the_first_step(tmp_path):
    run = Run(tmp_path, rules=StopRules(plateau=Plateau("validation_loss", 2)))
    with pytest.raises(UserFault, match="'validation_loss', which no epoch reports"):
        run.run()
    assert run.trainer.position.step == 0


@pytest.mark.parametrize(
    ("loss", "classes"),
    [(nn.CrossEntropyLoss(), 3), (nn.functional.cross_entropy, 3), (lambda a, b: a.mean(), None)],
)
def test_the_beginning_tells_how_many_classes_the_data_has(tmp_path, loss, classes):
    labels = torch.arange(24) % 3
    run = Run(tmp_path, model=nn.Linear(4, 3), loss=loss)
    run.parts.train = TensorDataset(torch.randn(24, 4), labels)
    run.parts.optimizer = torch.optim.SGD(run.parts.model.parameters(), lr=0.1)
    run.trainer.run(Position())
    begin = json.loads(run.metrics.read_text().splitlines()[0])
    assert begin["kind"] == "begin" and begin.get("classes") == classes


def test_guards_compare_with_the_last_losses():
    guards = Guards(StopRules(loss_spike=3.0))
    assert not any(guards.after_loss(loss, n) for n, loss in enumerate([9.0, 1, 1, 1, 1, 2.9]))
    spike = guards.after_loss(3.1, 7)
    assert spike is not None and spike.kind == "loss_spike"
    assert spike.reason == "the loss jumped to 3.1 at step 7, 3.1 times the usual"
    higher = Guards(StopRules(plateau=Plateau("accuracy", 2, "higher")))
    assert higher.after_report([0.1, 0.5, 0.4], 3) is None
    assert higher.after_report([0.1, 0.5, 0.4, None], 4) is not None
