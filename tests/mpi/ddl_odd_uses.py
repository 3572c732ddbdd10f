"""More of ddl_program.py: what programs do with weights and gradients. Not a test by itself."""

import torch
from ddl_training import (
    STEPS,
    Net,
    adam,
    assert_equal,
    distributed,
    loss_of,
    reference,
    refuses,
    sgd,
    weights,
)
from torch import nn

from learner import ddl
from learner.errors import UserFault


def check_replaced():
    """Weights that the program gives other memory count as if it had changed them in place."""
    model, expected = Net(), Net()
    wrapper, plain = ddl.DistributedOptimizer(sgd(model)), sgd(expected)
    for step in range(4):
        wrapper.zero_grad()
        loss_of(model, ddl.rank(), step).backward()
        for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
            if mine.grad is not None:
                mine.grad.data = mine.grad.data * 0.5
            other.grad = None if mine.grad is None else mine.grad.clone()
        for each, optimizer in ((model, wrapper), (expected, plain)):
            optimizer.step()
            each.first.weight.data = each.first.weight.data * 0.9
            vector = nn.utils.parameters_to_vector(each.sometimes.parameters())
            nn.utils.vector_to_parameters(vector + 0.01, each.sometimes.parameters())
    wrapper.step()
    plain.step()
    assert_equal(model, expected, "replaced")
    assert len(set(ddl.api._state().exchange.collect(float(weights(model).sum())))) == 1
    wrapper.close()


def check_replaced_gradients():
    """After `.grad.data = …` the next pass's gradients are exchanged as before."""
    model, expected = Net(), Net()
    reference(expected, sgd(expected))
    wrapper = ddl.DistributedOptimizer(sgd(model))
    for step in range(STEPS):
        distributed(model, wrapper, steps=(step,), to_none=False)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data = torch.ones_like(parameter.grad)
    assert_equal(model, expected, "after .grad.data", rtol=1e-5)
    wrapper.close()


def check_changed_form():
    """Another dtype after wrapping is refused where weights are shared."""
    model = nn.Linear(3, 3)
    wrapper = ddl.DistributedOptimizer(sgd(model))
    model(torch.ones(3)).sum().backward()
    wrapper.step()
    model.double()
    for parameter in model.parameters():
        parameter.grad = None
    refuses("after its optimizer was wrapped", wrapper.step)


def check_two_in_one_storage():
    """Parameters that lie in one place stay tied, however the optimizer sees them."""
    model, expected = nn.Linear(4, 4), nn.Linear(4, 4)
    expected.load_state_dict(model.state_dict())
    ddl.broadcast_parameters(model)
    ddl.broadcast_parameters(expected)
    for each in (model, expected):
        each.other = nn.Parameter(each.weight.detach())
    wrapper = ddl.DistributedOptimizer(adam(model))
    plain = adam(expected)
    for _ in range(3):
        for each, optimizer in ((model, wrapper), (expected, plain)):
            optimizer.zero_grad()
            ((each(torch.ones(4)) @ each.other).pow(2).sum()).backward()
            optimizer.step()
    assert model.other.data_ptr() == model.weight.data_ptr()
    assert_equal(model, expected, "two in one storage")
    wrapper.close()


def check_unexchanged():
    """A step with gradients that the learners did not exchange is refused."""
    model = Net()
    wrapper = ddl.DistributedOptimizer(sgd(model))
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1.0 + ddl.rank())
    refuses("not exchanged since they changed", wrapper.step)
    wrapper.finish()
    wrapper.step()
    distributed(model, wrapper, steps=(0,))
    with wrapper.no_sync():
        loss_of(model, ddl.rank(), 1).backward()
    refuses("not exchanged since they changed", wrapper.step)
    wrapper.zero_grad()
    distributed(model, wrapper, steps=(2,))
    refuses("already belongs to", lambda: ddl.DistributedOptimizer(sgd(model)))
    assert len(set(ddl.api._state().exchange.collect(float(weights(model).sum())))) == 1
    for options in ({"splitting": "element"}, {"average_every": 0}, {"average": False}):
        try:
            ddl.DistributedOptimizer(sgd(Net()), **options)
            raise AssertionError(options)
        except UserFault:
            pass
    wrapper.close()


def check_interrupted():
    """After an error in a backward pass that the program catches, no step is taken."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    wrapper = ddl.DistributedOptimizer(sgd(model))
    model(torch.ones(3)).sum().backward()
    wrapper.step()
    before = weights(model)
    middle = model[0](torch.ones(3))

    def fail(_):
        raise RuntimeError("no memory")

    middle.register_hook(fail)
    try:
        model[1](middle).sum().backward()
        raise AssertionError("the hook did not raise")
    except RuntimeError as error:
        assert "no memory" in str(error)
    refuses("ended with an error", wrapper.step)
    assert torch.equal(weights(model), before) or ddl.size() == 1
    wrapper.close()


def check_versions():
    """torch's own check sees that a step changed what an earlier graph has saved."""
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
    wrapper = ddl.DistributedOptimizer(sgd(model))
    for _ in range(2):
        loss = model(torch.ones(2, 30)).pow(2).sum()
        loss.backward(retain_graph=True)
        wrapper.step()
    try:
        loss.backward()
        raise AssertionError("torch did not see that weights were changed")
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error), error
    wrapper.close()


def check_all():
    """Check all of it."""
    check_replaced()
    check_replaced_gradients()
    check_changed_form()
    check_two_in_one_storage()
    check_unexchanged()
    check_interrupted()
    check_versions()
