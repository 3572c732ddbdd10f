"""What the built-in loop makes of a model, an optimizer, a loss and a schedule of the user."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

from learner.errors import UserFault
from learner.export import export_model
from learner.model.lr_schedule import user_schedule
from learner.model.trainable import check_trainable
from learner.model.user_model import Parts, build_parts
from learner.model.weights import load_weights, restore_buffers, restore_model, start_from
from learner.training.evaluation import Evaluation

CPU = torch.device("cpu")


class Compiled(nn.Module):
    """Has the names that torch.compile gives, which takes seconds."""

    def __init__(self, model):
        super().__init__()
        self._orig_mod = model


COMPILERS = [Compiled, pytest.param(torch.compile, marks=[
    pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning"),
])]  # fmt: skip


def network():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def parts_of(model=None, **changes):
    model = model or network()
    made = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": nn.MSELoss(),
        "train": TensorDataset(torch.ones(8, 4), torch.ones(8, 1)),
    }
    return Parts(**{**made, **changes})


# Weights ------------------------------------------------------------------------------------------


def same_bits(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_weights_of_which_none_fits_are_refused():
    """Not strict, a training began from noise, and said `starting from the weights`."""
    other = {f"encoder.{name}": value for name, value in network().state_dict().items()}
    none = r"fits none of the model's 9 tensors: 0\.weight is missing; encoder\.\S+ is not in the m"
    with pytest.raises(UserFault, match=none):
        start_from(network(), other, strict=False)
    shapes = {name: value[..., None] for name, value in network().state_dict().items()}
    with pytest.raises(UserFault, match=r"0\.weight has the shape \(3, 4, 1\)"):
        start_from(network(), shapes, strict=False)


def test_it_is_told_how_many_tensors_were_loaded():
    some = {name: value for name, value in network().state_dict().items() if name[0] == "0"}
    loaded, skipped = start_from(network(), some, strict=False)
    assert loaded == 2 and len(skipped) == 7


@pytest.mark.parametrize("saved_in", [
    lambda model: model.state_dict(), lambda model: Compiled(model).state_dict(),
    lambda model: nn.DataParallel(Compiled(model)).state_dict(),
    lambda model: {"epoch": 3, "model_state_dict": nn.DataParallel(model).state_dict()},
    lambda model: nn.Sequential(model[0], Compiled(model[1]), model[2]).state_dict(),
])  # fmt: skip
@pytest.mark.parametrize("into", [
    lambda model: model, Compiled, nn.DataParallel,
    lambda model: nn.Sequential(Compiled(model[0]), model[1], model[2]),
])  # fmt: skip
def test_weights_fit_with_and_without_what_was_around_the_model(tmp_path, saved_in, into):
    source, target = network(), network()
    torch.save(saved_in(source), tmp_path / "w.pt")
    loaded, skipped = start_from(into(target), load_weights(tmp_path / "w.pt"), strict=True)
    assert (loaded, skipped) == (9, []) and same_bits(source, target)


@pytest.mark.parametrize("compiled", COMPILERS)
def test_a_compiled_model_is_saved_under_its_own_names(tmp_path, compiled):
    plain = network()
    saved = torch.load(export_model(compiled(plain), tmp_path), weights_only=True)
    assert saved.keys() == plain.state_dict().keys()


@pytest.mark.parametrize("compiled", COMPILERS)
def test_a_checkpoint_fits_whether_the_model_is_compiled_or_not(compiled):
    """Those of older versions have the names of a compiled model."""
    source = network()
    for state in (source.state_dict(), compiled(source).state_dict()):
        for target in (network(), compiled(network())):
            restore_model(target, state, "step-1")
            restore_buffers(target, {"1.running_mean": torch.full((3,), 7.0)})
            inner = getattr(target, "_orig_mod", target)
            assert torch.equal(inner[0].weight, source[0].weight)
            assert inner[1].running_mean.tolist() == [7.0] * 3


# What the loop can't train ------------------------------------------------------------------------


class DistributedDataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def with_lbfgs():
    model = network()
    return parts_of(model, optimizer=torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize(("made", "said", "way"), [
    (lambda: parts_of(nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(1))),
     "0.weight of the model has no values yet: it is lazy", "call the model in build()"),
    (lambda: parts_of(nn.Linear(4, 1, device="meta")),
     "weight of the model has no values yet: it is on the device meta", "to_empty(device='cpu')"),
    (lambda: parts_of(nn.SyncBatchNorm.convert_sync_batchnorm(network())),
     "the model's layer 1 is a SyncBatchNorm, whose statistics", "GroupNorm"),
    (lambda: parts_of(DistributedDataParallel(network())),
     "build returned a model with DistributedDataParallel", "return the model without it"),
    (with_lbfgs, "the optimizer LBFGS computes the loss several times", "learner.ddl"),
])  # fmt: skip
def test_what_the_loop_can_t_train_is_refused_with_the_way_out(made, said, way):
    with pytest.raises(UserFault) as caught:
        check_trainable(made(), 2)
    assert caught.value.message.startswith(said) and way in caught.value.hint


def test_the_ways_out_lead_out():
    lazy = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d(), nn.LazyLinear(1))
    lazy(torch.ones(2, 4))
    empty = nn.Linear(4, 1, device="meta").to_empty(device="cpu")
    for model in (lazy, empty, nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4))):
        check_trainable(parts_of(model), 2)
    first_loss(nn.MSELoss(reduction="mean"))


def test_what_one_learner_can_train_is_no_fault():
    check_trainable(parts_of(nn.SyncBatchNorm.convert_sync_batchnorm(network())), 1)
    model = network()
    for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adafactor):
        check_trainable(parts_of(model, optimizer=kind(model.parameters())), 2)


# Losses -------------------------------------------------------------------------------------------


def contrastive(outputs, targets):
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def first_loss(loss, learners=2, model=None, targets=None):
    parts = parts_of(model, loss=loss)
    evaluation = Evaluation(parts, CPU, learners)
    targets = torch.zeros(5, 1) if targets is None else targets
    outputs, _ = evaluation.forward(((torch.randn(len(targets), 4),), targets))
    return evaluation.loss(outputs, targets)


@pytest.mark.parametrize("loss", [
    nn.MSELoss(reduction="sum"), lambda o, t: ((o - t) ** 2).sum() / 64,
])  # fmt: skip
def test_a_loss_that_is_a_sum_is_refused_with_several_learners(loss):
    with pytest.raises(UserFault, match="the loss is a sum over the batch's samples.* 2 learners"):
        first_loss(loss)
    first_loss(loss, learners=1)


@pytest.mark.parametrize("loss", [
    nn.MSELoss(), nn.HuberLoss(), lambda o, t: (o - t).abs().mean() + 0.1, contrastive,
    lambda o, t: 0.0 * o.sum(), lambda o, t: o.mean() if len(o) == 5 else o[7],
])  # fmt: skip
def test_any_other_loss_trains(loss):
    torch.manual_seed(0)
    first_loss(loss, model=nn.Linear(4, 2), targets=torch.zeros(5, 2))


class Counting(nn.Module):
    """A loss that changes with its calls, such as one whose weights are warmed up."""

    def __init__(self, loss):
        super().__init__()
        self.loss, self.calls = loss, 0

    def forward(self, outputs, targets):
        self.calls += 1
        return self.loss(outputs, targets)


def test_a_look_at_the_loss_leaves_its_state_alone():
    """It was called three times more, so that a loss was not a number three steps early."""
    calls = []
    first_loss(lambda o, t: calls.append(o) or nn.functional.mse_loss(o, t))
    assert len(calls) == 1
    counting = Counting(lambda o, t: ((o - t) ** 2).sum() / len(o))
    first_loss(counting)
    assert counting.calls == 1


def test_class_weights_make_no_sum_of_a_mean():
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 5.0]))
    first_loss(loss, model=nn.Linear(4, 2), targets=torch.tensor([0, 1, 1, 0, 1]))


# Schedules ----------------------------------------------------------------------------------------


def scheduled(kind, pace="", epochs=3, batches=5, **settings):
    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    said = []
    return user_schedule(kind(optimizer, **settings), pace, epochs, batches, said.append), said


PER_BATCH = [
    (lr_scheduler.OneCycleLR, {"max_lr": 0.5, "total_steps": 15}),
    (lr_scheduler.CyclicLR, {"base_lr": 0.1, "max_lr": 0.5, "step_size_up": 4}),
]


@pytest.mark.parametrize(("kind", "settings"), PER_BATCH)
def test_a_schedule_for_batches_asks_after_what_it_steps(kind, settings):
    with pytest.raises(UserFault, match="made for a step after each batch") as caught:
        scheduled(kind, **settings)
    assert caught.value.hint.startswith(
        'return "schedule": {"scheduler": schedule, "step": "batch"'
    )
    scheduled(kind, "epoch", **settings)


@pytest.mark.parametrize(("kind", "settings"), PER_BATCH)
def test_a_schedule_for_batches_has_torch_s_rates(kind, settings):
    ours, _ = scheduled(kind, "batch", **settings)
    theirs, _ = scheduled(kind, "batch", **settings)
    mine, plain = ours._scheduler.optimizer, theirs._scheduler
    for step in range(15):
        ours.before_step(step)
        assert mine.param_groups[0]["lr"] == plain.optimizer.param_groups[0]["lr"], step
        mine.step()
        plain.optimizer.step()
        plain.step()
        if step == 6:  # an attempt ends here
            again, _ = scheduled(kind, "batch", **settings)
            again.load_state_dict(copy.deepcopy(ours.state_dict()))
            again._scheduler.optimizer.load_state_dict(mine.state_dict())
            ours, mine = again, again._scheduler.optimizer
        if step % 5 == 4:
            ours.after_epoch(1.0)


@pytest.mark.parametrize(("settings", "pace", "said"), [
    ({"total_steps": 12}, "batch", "ends after 12 steps, and the training takes 14"),
    ({"total_steps": 2}, "epoch", "ends after 2 steps, and the training takes 3"),
])  # fmt: skip
def test_a_cycle_that_ends_before_the_training_is_refused_at_once(settings, pace, said):
    with pytest.raises(UserFault, match=said):
        scheduled(lr_scheduler.OneCycleLR, pace, max_lr=0.5, **settings)


@pytest.mark.parametrize(("kind", "settings", "warned"), [
    (lr_scheduler.CosineAnnealingLR, {"T_max": 15}, True),
    (lr_scheduler.CosineAnnealingLR, {"T_max": 3}, False),
    (lr_scheduler.StepLR, {"step_size": 2}, False),
    (lr_scheduler.MultiStepLR, {"milestones": [5, 30]}, True),
    (lr_scheduler.OneCycleLR, {"max_lr": 0.5, "total_steps": 3}, False),
    (lambda o: lr_scheduler.SequentialLR(o, [
        lr_scheduler.ConstantLR(o), lr_scheduler.CosineAnnealingLR(o, 12)], [3]), {}, False),
    (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.LinearLR(o, total_iters=20)]), {}, True),
    (lr_scheduler.LambdaLR, {"lr_lambda": lambda step: 1.0}, False),
    (lr_scheduler.ReduceLROnPlateau, {}, False),
])  # fmt: skip
def test_a_schedule_that_one_step_an_epoch_would_never_end_is_remarked(kind, settings, warned):
    _, said = scheduled(kind, **settings)
    assert bool(said) == warned, said
    assert not scheduled(kind, "epoch", **settings)[1]


def test_a_plateau_has_no_step_after_a_batch():
    with pytest.raises(UserFault, match="goes by the loss of an epoch"):
        scheduled(lr_scheduler.ReduceLROnPlateau, "batch")


@pytest.mark.parametrize("wrong", [
    {"step": "batch"}, {"scheduler": 3, "step": "batch"}, {"scheduler": 3, "interval": "batch"},
    {"scheduler": 3, "step": "sample"},
])  # fmt: skip
def test_a_schedule_in_another_form_is_refused(wrong):
    made = vars(parts_of()) | {"schedule": wrong}
    made = {name: value for name, value in made.items() if name not in ("metrics", "pace")}
    with pytest.raises(UserFault, match="schedule"):
        build_parts(lambda _: made, {})


def test_a_mapping_names_the_scheduler_and_its_step():
    parts = parts_of()
    schedule = lr_scheduler.StepLR(parts.optimizer, 3)
    made = {
        "model": parts.model,
        "optimizer": parts.optimizer,
        "loss": parts.loss,
        "train": parts.train,
        "schedule": {"scheduler": schedule, "step": "batch"},
    }
    built = build_parts(lambda _: made, {})
    assert (built.schedule, built.pace) == (schedule, "batch")
