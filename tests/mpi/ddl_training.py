"""Trainings by ddl_program.py: each with all learners, and a reference that one process computes.

The reference runs every learner's batch one after the other, sums the gradients in rank order and
takes the step of an ordinary optimizer. Not a test by itself.
"""

from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from learner import ddl
from learner.errors import UserFault

STEPS = 4
Options = dict[str, Any]


class Net(nn.Module):
    """Every kind of parameter: tied, frozen, used by one learner, by nobody, perhaps sparse."""

    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(3)
        self.table = nn.Embedding(40, 6, sparse=sparse)
        self.first = nn.Linear(6, 37)
        self.frozen = nn.Linear(37, 37).requires_grad_(False)
        self.back = nn.Linear(37, 6)
        self.back.weight = nn.Parameter(self.first.weight.t().clone())
        self.tied = nn.Linear(6, 37, bias=False)
        self.tied.weight = self.first.weight
        self.sometimes = nn.Linear(37, 3)
        self.never = nn.Linear(5, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens, also):
        found = torch.tanh(self.first(self.table(tokens)))
        found = self.back(torch.tanh(self.frozen(found)))
        last = torch.tanh(self.tied(found)) * self.scale
        result = last.pow(2).mean()
        return result + self.sometimes(last).pow(2).mean() if also else result


def loss_of(model, rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(0, 40, (7,), generator=generator)
    return model(tokens, rank == ddl.size() - 1)


def average(rows):
    """Return the mean of each gradient over the learners, added in rank order."""
    means = []
    for column in zip(*rows, strict=True):
        found = [g for g in column if g is not None]
        if not found:
            means.append(None)
            continue
        zero = torch.zeros_like(found[0])
        total = (zero if column[0] is None else column[0]).clone()
        total = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
        for grad in column[1:]:
            total = total + (zero if grad is None else grad)
        if total.is_sparse:
            total = total.coalesce()
        means.append((total / len(column)).to(found[0].dtype))
    return means


def own_gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def reference(model, optimizer, *, clip=0.0, schedule=None, passes=1):
    for step in range(STEPS):
        rows = []
        for rank in range(ddl.size()):
            total = [None] * len(list(model.parameters()))
            for turn in range(passes):
                grads = own_gradients(model, loss_of(model, rank, step + 100 * turn))
                total = [g if t is None else t if g is None else t + g
                         for t, g in zip(total, grads, strict=True)]  # fmt: skip
            rows.append(total)
        for parameter, grad in zip(model.parameters(), average(rows), strict=True):
            parameter.grad = grad
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule:
            schedule.step()


def distributed(
    model, optimizer, *, clip = 0.0, schedule = None,
    to_none = True, steps = range(STEPS),
):  # fmt: skip
    for step in steps:
        optimizer.zero_grad(set_to_none=to_none)
        loss_of(model, ddl.rank(), step).backward()
        if clip:
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip))
            assert len(set(ddl.api._state().exchange.collect(norm))) == 1
        optimizer.step()
        if schedule:
            schedule.step()


def weights(model):
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


def assert_equal(model, expected, what, rtol=1e-6):
    mine, other = weights(model), weights(expected)
    assert torch.allclose(mine, other, rtol=rtol, atol=1e-7), (what, (mine - other).abs().max())
    everyone = ddl.api._state().exchange.collect(float(mine.sum()))
    assert len(set(everyone)) == 1, (what, everyone)


def refuses(words, act):
    """Check that every learner is refused with these words; one learner alone continues."""
    try:
        act()
    except UserFault as error:
        assert words in str(error), error
    else:
        assert ddl.size() == 1, words


class Own(torch.optim.Optimizer):
    """An optimizer whose step depends on all elements of a tensor (as LARS's)."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                    p -= group["lr"] * p.grad / (p.grad.norm() + 1e-6)


def groups(model):
    parameters = list(model.parameters())
    return [{"params": parameters[:4]}, {"params": parameters[4:], "lr": 0.003}]


def cosine(optimizer):
    return CosineAnnealingLR(optimizer, T_max=STEPS)


def falling(optimizer):
    return LambdaLR(optimizer, lambda step: 0.5**step)


optim = torch.optim
OPTIMIZERS = [
    ("sgd", lambda p: optim.SGD(p, lr=0.1), {"clip": 0.05}),
    ("nesterov", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
     {"schedule": cosine}),
    ("adam", lambda p: optim.Adam(p, lr=0.01), {"schedule": falling, "clip": 0.1}),
    ("adamw", lambda p: optim.AdamW(p, lr=0.01, amsgrad=True), {}),
    ("rmsprop", lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True), {}),
    ("adagrad", lambda p: optim.Adagrad(p, lr=0.1), {}),
    ("nadam", lambda p: optim.NAdam(p, lr=0.01), {}),
    ("adafactor", lambda p: optim.Adafactor(p, lr=0.01), {}),
    ("own", lambda p: Own(p, lr=0.01), {}),
]  # fmt: skip


def check_optimizers():
    for name, make, options in OPTIMIZERS:
        options = dict(options)
        schedule = options.pop("schedule", None)
        expected, model = Net(), Net()
        plain = make(groups(expected))
        reference(expected, plain, schedule=schedule and schedule(plain), **options)
        wrapper = ddl.DistributedOptimizer(make(groups(model)))
        distributed(model, wrapper, schedule=schedule and schedule(wrapper), **options)
        assert_equal(model, expected, name)
        assert [g["lr"] for g in wrapper.param_groups] == [g["lr"] for g in plain.param_groups]
        wrapper.close()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def check_gradients_are_means():
    """Right after backward, and of float64's mean; a learner that had none has them, too."""
    model = Net()
    wrapper = ddl.DistributedOptimizer(sgd(model))
    rows = [own_gradients(twin := Net(), loss_of(twin, r, 0)) for r in range(ddl.size())]
    loss_of(model, ddl.rank(), 0).backward()
    exact = average([[None if g is None else g.double() for g in row] for row in rows])
    for (name, parameter), mean in zip(model.named_parameters(), exact, strict=True):
        if mean is None:
            assert parameter.grad is None, name
        else:
            assert torch.allclose(parameter.grad.double(), mean, rtol=1e-5, atol=1e-8), name
    assert model.never.weight.grad is None and model.frozen.weight.grad is None
    wrapper.close()


def check_kinds():
    """Options of the wrapper, and unusual loops, that come to the same as the reference."""
    expected = Net()
    reference(expected, sgd(expected))
    for options, way in [({"shared_weights": False}, {}), ({}, {"to_none": False}),
                         ({"splitting": "tensors"}, {}), ({"bucket_bytes": 64}, {})]:  # fmt: skip
        model = Net()
        wrapper = ddl.DistributedOptimizer(sgd(model), **options)
        if not way:
            distributed(model, wrapper)
            assert_equal(model, expected, str(options))
        else:  # zeroed gradients are gradients: momentum continues, as in one process
            distributed(model, wrapper, **way)
            assert_equal(model, expected, str(way))
        wrapper.close()

    expected, model = Net(sparse=True), Net(sparse=True)
    reference(expected, torch.optim.SGD(expected.parameters(), lr=0.5))
    wrapper = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5))
    distributed(model, wrapper)
    assert model.table.weight.grad.is_sparse
    assert_equal(model, expected, "sparse")
    wrapper.close()


class Bound:
    """Shortens the table's long rows after each step."""

    def __init__(self, model):
        self.model = model

    def step(self):
        self.model.table.weight.data.renorm_(2, 0, 1.5)


def check_bounded_rows():
    expected, model = Net(), Net()
    reference(expected, sgd(expected), schedule=Bound(expected))
    wrapper = ddl.DistributedOptimizer(sgd(model), shared_weights=False)
    distributed(model, wrapper, schedule=Bound(model))
    assert_equal(model, expected, "bounded rows")
    wrapper.close()


def check_accumulation():
    """Three passes of which two are this learner's alone; and three that are all exchanged."""
    expected = Net()
    reference(expected, adam(expected), passes=3)
    for alone in (True, False):
        model = Net()
        wrapper = ddl.DistributedOptimizer(adam(model))
        for step in range(STEPS):
            wrapper.zero_grad()
            for turn in range(3):
                loss = loss_of(model, ddl.rank(), step + 100 * turn)
                if alone and turn < 2:
                    with wrapper.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            wrapper.step()
        assert_equal(model, expected, f"accumulation {alone}", rtol=1e-5)
        wrapper.close()


class Dense(nn.Module):
    def __init__(self, dtype, memory_format):
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3))
        self.to(dtype=dtype).to(memory_format=memory_format)

    def forward(self, tokens, also):
        images = (tokens.double().cos().sum() + torch.arange(3 * 36)).sin().view(1, 3, 6, 6)
        kind = self.layers[0].weight
        memory = torch.channels_last if kind.is_contiguous(memory_format=torch.channels_last) \
            else torch.contiguous_format  # fmt: skip
        return self.layers(images.to(kind.dtype).contiguous(memory_format=memory)).pow(2).mean()


def check_dtypes_and_orders():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for memory in (torch.contiguous_format, torch.channels_last):
            expected, model = Dense(dtype, memory), Dense(dtype, memory)
            reference(expected, sgd(expected))
            wrapper = ddl.DistributedOptimizer(sgd(model))
            distributed(model, wrapper)
            assert model.layers[0].weight.stride() == expected.layers[0].weight.stride()
            assert_equal(model, expected, f"{dtype} {memory}")
            wrapper.close()


def check_lbfgs():
    """An optimizer that calls the closure itself, several times a step."""
    expected, model = (Dense(torch.float64, torch.contiguous_format) for _ in range(2))

    def train(net, optimizer, ranks):
        def closure():
            optimizer.zero_grad()
            rows = [own_gradients(net, loss_of(net, rank, 0)) for rank in ranks]
            if len(ranks) > 1:
                for parameter, grad in zip(net.parameters(), average(rows), strict=True):
                    parameter.grad = grad
            with torch.no_grad():
                losses = [float(loss_of(net, rank, 0)) for rank in range(ddl.size())]
            return torch.tensor(sum(losses) / len(losses))

        for _ in range(2):
            optimizer.step(closure)

    train(expected, torch.optim.LBFGS(expected.parameters(), lr=0.1, max_iter=3), range(ddl.size()))
    wrapper = ddl.DistributedOptimizer(torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3))
    train(model, wrapper, [ddl.rank()])
    assert_equal(model, expected, "lbfgs", rtol=1e-4)
    wrapper.close()


def check_global_batches():
    """The same global batches, whatever the number of learners, twice; return the weights."""
    results = []
    for _ in range(2):
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(9, 300), nn.Tanh(), nn.Linear(300, 4))
        alone = nn.Sequential(nn.Linear(9, 300), nn.Tanh(), nn.Linear(300, 4))
        alone.load_state_dict(model.state_dict())
        wrapper, plain = ddl.DistributedOptimizer(adam(model)), adam(alone)
        for step in range(6):
            generator = torch.Generator().manual_seed(step)
            batch = torch.randn(24, 9, generator=generator)
            for net, optimizer, part in [(model, wrapper, batch.chunk(ddl.size())[ddl.rank()]),
                                         (alone, plain, batch)]:  # fmt: skip
                optimizer.zero_grad()
                net(part).pow(2).mean().backward()
                optimizer.step()
        assert_equal(model, alone, "global batches", rtol=1e-5)
        results.append(weights(model))
        wrapper.close()
    assert torch.equal(*results)
    return results[0]
