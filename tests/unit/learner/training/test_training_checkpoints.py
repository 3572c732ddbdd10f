"""What a training saves in its checkpoints, when one is due, and how it is restored."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkpoint_tools import SETTINGS, FailingDisk, same

from dlctl.contract import CheckpointPolicy
from learner.checkpoint import rng
from learner.checkpoint.interval import Interval
from learner.checkpoint.writer_process import WriterProcess
from learner.checkpoint_files import layout
from learner.checkpoint_files.disk import Disk
from learner.errors import UserFault
from learner.exchange.single import SingleExchange
from learner.model.lr_schedule import UserSchedule
from learner.model.user_model import Parts
from learner.training.checkpoints import CheckpointKeeper, Position, StateMissing, Trained


@pytest.mark.parametrize(
    ("policy", "steps", "epochs"),
    [
        (CheckpointPolicy(), [], [1, 2, 3, 4]),
        (CheckpointPolicy(every_steps=2), [2, 4], []),
        (CheckpointPolicy(every_epochs=3), [], [3]),
        (CheckpointPolicy(every_s=60), [], []),
        (CheckpointPolicy(auto=True), [], []),
    ],
)
def test_a_checkpoint_is_due_as_the_policy_says(tmp_path, policy, steps, epochs):
    now = [0.0]
    keeper = make_keeper(tmp_path, policy, clock=lambda: now[0])
    assert [n for n in range(1, 5) if keeper.due_after_step(n)] == steps
    assert [n for n in range(1, 5) if keeper.due_after_epoch(n)] == epochs
    now[0] = 61
    assert keeper.overdue() is (policy.every_s is not None or policy.auto)


def test_the_automatic_interval_follows_from_cost_and_failures():
    now = [0.0]
    interval = Interval(CheckpointPolicy(auto=True, mtbf_s=1e5), lambda: now[0])
    assert interval.wanted_s() == 60
    interval.saved(2.0, 5.0)
    assert interval.wanted_s() == pytest.approx(math.sqrt(4e5))
    interval.saved(2.0, 5000.0)  # never more often than it can be written
    assert interval.wanted_s() == 5000
    interval.saved(1e-6, 0.0)
    assert interval.wanted_s() == 10
    assert Interval(CheckpointPolicy(every_epochs=1), lambda: 0.0).wanted_s() is None
    never = Interval(CheckpointPolicy(auto=True, mtbf_s=None), lambda: now[0])
    never.saved(2.0, 5.0)
    assert never.wanted_s() == 24 * 3600


def test_a_postponed_checkpoint_is_taken_when_the_writer_is_free():
    now = [0.0]
    interval = Interval(CheckpointPolicy(every_epochs=1), lambda: now[0])
    assert not interval.overdue(busy=False)
    interval.put_off()
    assert interval.overdue(busy=False)
    assert not interval.overdue(busy=True)
    now[0] = 6
    assert interval.overdue(busy=True)  # so that the learners can report a dead writer
    interval.saved(0.1, 0.1)
    assert not interval.overdue(busy=False)


def test_a_failed_checkpoint_is_retried_before_the_next_is_due(tmp_path):
    class Full(Disk):
        full = True

        def sync(self, descriptor):
            if self.full:
                raise OSError("no room")

    now, said, disk = [0.0], [], Full()
    policy = CheckpointPolicy(every_s=7200)
    keeper = make_keeper(tmp_path, policy, said.append, disk=disk, clock=lambda: now[0])
    trained = make_trained()
    now[0] = 7200
    assert keeper.overdue()
    assert keeper.save(trained, Position(step=1))  # the snapshot is taken, but can't be written
    for now[0], overdue in ((7201, False), (7260, False), (7261, True)):
        assert keeper.overdue() is overdue
    assert keeper.save(trained, Position(step=2))
    disk.full = False
    for now[0], overdue in ((7263, False), (7323, True)):
        assert keeper.overdue() is overdue
    assert keeper.save(trained, Position(step=3))
    now[0] = 9000
    assert not keeper.overdue()
    assert keeper.saved_step == 3
    assert len(said) == 2


def test_a_postponed_checkpoint_does_not_pack_the_state(tmp_path, monkeypatch):
    keeper = make_keeper(tmp_path, clock=lambda: 0.0)
    trained = make_trained()
    assert keeper.ready(1)
    monkeypatch.setattr(keeper._engine, "ready", lambda: False)
    assert not keeper.ready(1)
    monkeypatch.setattr(trained.parts.model, "state_dict", lambda: pytest.fail("for nothing"))
    assert not keeper.save(trained, Position(step=1))
    assert keeper.overdue()  # as soon as the writer is free


def test_an_unreadable_state_costs_one_checkpoint(tmp_path):
    def state_dict():
        raise StateMissing("the file system is away")

    now, said = [0.0], []
    policy, server = CheckpointPolicy(every_s=100), SimpleNamespace(state_dict=state_dict)
    keeper = make_keeper(tmp_path, policy, said.append, clock=lambda: now[0])
    trained = replace(make_trained(), server=server)
    now[0] = 100
    assert keeper.overdue() and not keeper.save(trained, Position(step=7))
    assert said == ["WARNING: no checkpoint at step 7: the file system is away"]
    assert not keeper.overdue()
    now[0] = 160
    assert keeper.overdue()
    server.state_dict = dict
    assert keeper.save(trained, Position(step=8), final=True) and not keeper.overdue()


def make_trained():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).bfloat16()
    model[0].register_buffer("hidden", torch.zeros(2), persistent=False)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = UserSchedule(torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5]))
    parts = Parts(model, optimizer, torch.nn.MSELoss(), [1])
    return Trained(parts, schedule, torch.device("cpu"))


def make_keeper(folder, policy=None, say=print, **more):
    policy = policy or CheckpointPolicy()
    return CheckpointKeeper(folder, policy, SETTINGS, SingleExchange(), say, **more)


def drawn():
    return [random.random(), np.random.rand(), torch.rand(1).item()]


@pytest.mark.parametrize("beside", [False, True])
def test_a_keeper_restores_everything(tmp_path, beside):
    said = []

    def keeper(disk=None):
        writer = WriterProcess() if beside and disk is None else None
        return make_keeper(tmp_path, None, said.append, writer=writer, disk=disk)

    trained = make_trained()
    model, optimizer = trained.parts.model, trained.parts.optimizer
    model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    trained.schedule.after_epoch(1.0)
    model[0].hidden.fill_(7.0)
    first = next(model.parameters())
    optimizer.state[first]["exp_avg"] = torch.full((4, 3), 1 / 3)  # wider than its parameter
    position = Position(1, 2, 3, {"loss": 0.1}, 20, [{"epoch": 1, "loss": 0.3}])
    one = keeper()
    one.check(trained)
    one.prepare(trained, position)
    assert one.save(trained, position)
    assert one.stall_s > 0
    assert one.stall_s == 0
    assert one.save(trained, position, final=True)
    assert one.saved_step == 3
    one.close()
    numbers = drawn()

    other, two = make_trained(), keeper()
    assert two.load(other) == position
    assert drawn() == numbers
    assert same(dict(model.state_dict()), dict(other.parts.model.state_dict()))
    assert same(optimizer.state_dict(), other.parts.optimizer.state_dict())
    assert same(trained.schedule.state_dict(), other.schedule.state_dict())
    assert other.parts.model[0].hidden.tolist() == [7.0, 7.0]
    assert two.save(other, position, final=True)  # it is there already
    two.close()
    assert layout.read_marker(tmp_path / layout.directory_name(3)).epoch == 1

    position.step = 4
    assert not keeper(FailingDisk(2, OSError)).save(trained, position, final=True)
    assert "WARNING: no checkpoint at step 4" in said[-1]


def test_a_checkpoint_of_another_model_or_optimizer_is_refused(tmp_path):
    make_keeper(tmp_path).save(make_trained(), Position(step=1))
    other = make_trained()
    other.parts.model.append(torch.nn.Linear(4, 1))
    with pytest.raises(UserFault, match=r"another model: 2\.weight is missing"):
        make_keeper(tmp_path).load(other)
    changed = make_trained()
    changed.parts.optimizer = torch.optim.SGD(changed.parts.model.parameters())
    with pytest.raises(UserFault, match="of the optimizer Adam, but build returned SGD"):
        make_keeper(tmp_path).load(changed)


def test_validation_does_not_change_the_random_states():
    rng.seed_all(3, 1)
    expected = drawn()
    rng.seed_all(3, 1)
    with rng.preserved(torch.device("cpu")):
        drawn()
    assert drawn() == expected
    rng.seed_all(3, 2)
    assert drawn()[2] != expected[2]
