"""All parameters as one flat tensor: views where that is possible, copies elsewhere."""

import pytest
import torch
from torch import nn

from learner.data_parallel.flat_parameters import FlatParameters
from learner.errors import UserFault


def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(dtype)


def backward(model):
    dtype = next(model.parameters()).dtype
    loss = model(torch.ones(4, 3, dtype=dtype)).square().mean()
    loss.backward()
    return loss.detach()


def test_the_models_weights_are_views_of_the_flat_tensor():
    model = make_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flat = FlatParameters(model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert flat.gather() is flat.flat and flat.flat.dtype == torch.float32
    flat.flat.fill_(2.0)
    assert all(parameter.eq(2).all() for parameter in model.parameters())
    assert all(
        parameter.data_ptr() % 64 == flat.flat.data_ptr() % 64 for parameter in flat.parameters
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_step_is_that_of_sgd(dtype):
    model, twin = make_model(dtype), make_model(dtype)
    flat = FlatParameters(model.parameters(), accrue=True)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.25)
    total = torch.zeros(flat.count, dtype=flat.dtype)
    for _ in range(3):
        flat.clear()
        optimizer.zero_grad()
        backward(model)
        backward(twin)
        flat.collect()
        for parameter, start in zip(flat.parameters, (0, 32, 64, 96), strict=True):
            total[start : start + parameter.numel()] += parameter.grad.flatten()
        flat.descend(0.25)
        optimizer.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert flat.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-2 if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(flat.gradient(), total, rtol=tolerance, atol=tolerance)
    flat.clear_sum()
    assert not flat.gradient().any()


def test_parameters_of_several_dtypes_are_copied():
    model = make_model()
    model[2].to(torch.bfloat16)
    flat = FlatParameters(model.parameters())
    assert flat.dtype == torch.float32
    weights = flat.gather()
    assert torch.equal(weights[:15].reshape(5, 3), model[0].weight)
    flat.flat.fill_(0.5)
    assert not model[2].weight.eq(0.5).any()
    flat.scatter()
    assert all(parameter.eq(0.5).all() for parameter in model.parameters())
    model[0].weight.grad = torch.full((5, 3), 2.0)
    model[2].weight.grad = torch.full((2, 5), 3.0, dtype=torch.bfloat16)
    flat.collect()
    assert flat.gradient().sum() == 15 * 2 + 10 * 3


def test_one_parameter_in_float64_loses_nothing_beside_others():
    model = make_model()
    model[2].to(torch.float64)
    with torch.no_grad():
        model[2].weight.fill_(1 / 3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    flat = FlatParameters(model.parameters())
    flat.gather()
    flat.scatter()
    assert flat.dtype == torch.float64
    assert all(map(torch.equal, model.parameters(), before))


def test_gradients_from_elsewhere_and_missing_ones():
    model = make_model()
    flat = FlatParameters(model.parameters())
    backward(model)
    flat.collect()
    expected = flat.gradient().clone()
    flat.clear()
    model.zero_grad(set_to_none=True)
    backward(model)
    flat.collect()
    assert torch.equal(flat.gradient(), expected) and expected.any()
    model.zero_grad(set_to_none=True)
    flat.collect()
    assert not flat.gradient().any()


def test_sparse_gradients_frozen_parameters_and_memory_order():
    table = nn.Embedding(4, 3, sparse=True)
    image = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
    image.bias.requires_grad_(False)
    weight, strides = image.weight.detach().clone(), image.weight.stride()
    flat = FlatParameters([*table.parameters(), *image.parameters()])
    assert len(flat.parameters) == 2
    assert torch.equal(image.weight, weight) and image.weight.stride() == strides
    for _ in range(2):
        flat.clear()
        table(torch.tensor([1, 1])).sum().backward()
        flat.collect()
        assert flat.gradient().sum() == 6
        table.zero_grad()  # the next gradient is sparse


def test_parameters_that_shards_can_not_hold_are_refused():
    with pytest.raises(UserFault, match="nothing can be trained"):
        FlatParameters([nn.Parameter(torch.ones(1), requires_grad=False)])
    for empty in (nn.LazyLinear(2), nn.Linear(3, 2, device="meta")):
        with pytest.raises(UserFault, match="parameter 0 of the model has no values yet"):
            FlatParameters(empty.parameters())
    with pytest.raises(UserFault, match="complex64, which a parameter server can't hold"):
        FlatParameters([nn.Parameter(torch.ones(1, dtype=torch.complex64))])
    with pytest.raises(UserFault, match="make it contiguous"):
        FlatParameters([nn.Parameter(torch.ones(1).expand(3))])


def test_a_model_that_was_moved_or_unfrozen_since_is_refused():
    """Everything it learned afterwards would be lost silently."""
    moved, unfrozen = make_model(), make_model()
    flat = FlatParameters(moved.parameters())
    moved.load_state_dict(make_model().state_dict())
    moved.to("cpu", torch.float32)
    flat.check()
    moved.double()
    with pytest.raises(UserFault, match=r"parameter 0, of the shape \(5, 3\), is in other memory"):
        flat.check()
    unfrozen[2].requires_grad_(False)
    flat = FlatParameters(unfrozen.parameters())
    flat.check()
    unfrozen[2].requires_grad_(True)
    with pytest.raises(UserFault, match=r"the shape \(2, 5\) requires a gradient now"):
        flat.check()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_stays_on_its_device_in_its_dtype(dtype):
    table = nn.Embedding(4, 3, sparse=True, dtype=dtype)
    empty = nn.Parameter(torch.empty(0, dtype=dtype))
    for parameters in (
        [*make_model(dtype).parameters(), *table.parameters(), empty],
        [*make_model(dtype).parameters(), *make_model().parameters(), empty],
    ):
        FlatParameters(parameters, accrue=True).check()
