"""Caffe's solver: its learning-rate policies and its updates, by the formulas of caffe.proto."""

import math
from dataclasses import replace

import pytest
import torch
from dlctl_framework_caffe.optimizer import CaffeOptimizer
from dlctl_framework_caffe.program import check
from dlctl_framework_caffe.solver import net_paths, read_solver
from scheduler_plan import make_plan

from learner.errors import UserFault


def solver(tmp_path, text):
    path = tmp_path / "solver.prototxt"
    path.write_text(f'net: "net.prototxt"\nbase_lr: 0.1\nmax_iter: 100\n{text}\n')
    return read_solver(path)


@pytest.mark.parametrize(("text", "iteration", "rate"), [
    ("", 50, 0.1),
    ('lr_policy: "step" gamma: 0.5 stepsize: 10', 25, 0.1 * 0.5**2),
    ('lr_policy: "exp" gamma: 0.9', 3, 0.1 * 0.9**3),
    ('lr_policy: "inv" gamma: 0.01 power: 0.75', 20, 0.1 * 1.2**-0.75),
    ('lr_policy: "multistep" gamma: 0.1 stepvalue: 5 stepvalue: 9', 9, 0.1 * 0.01),
    ('lr_policy: "poly" power: 2', 50, 0.1 * 0.25),
    ('lr_policy: "sigmoid" gamma: -0.1 stepsize: 50', 40, 0.1 / (1 + math.exp(0.1 * -10))),
])  # fmt: skip
def test_each_policy_gives_the_rate_of_its_formula(tmp_path, text, iteration, rate):
    assert solver(tmp_path, text).rate(iteration) == pytest.approx(rate)


@pytest.mark.parametrize(("text", "said"), [
    ('lr_policy: "cosine"', "lr_policy is 'cosine'; there are fixed"),
    ('lr_policy: "step"', "needs a stepsize"),
    ('type: "LBFGS"', "type is 'LBFGS'"),
    ('type: "AdaGrad" momentum: 0.9', "momentum can't be used with AdaGrad, as in Caffe"),
    ('type: "RMSPROP" momentum: 0.5', "momentum can't be used with RMSProp"),
    ("momentun: 0.9", "the solver has 'momentun'"),
])  # fmt: skip
def test_what_it_can_not_do_is_named(tmp_path, text, said):
    with pytest.raises(UserFault, match=said):
        solver(tmp_path, text)


def test_momentum_keeps_the_rate_of_each_step_and_decay_its_multiplier(tmp_path):
    """Caffe: V = momentum * V + rate * lr_mult * (gradient + weight_decay * decay_mult * W)."""
    chosen = solver(tmp_path, 'momentum: 0.9 weight_decay: 0.5 lr_policy: "exp" gamma: 0.5')
    weight, bias = (torch.nn.Parameter(torch.tensor([2.0])) for _ in range(2))
    groups = [
        {"params": [weight], "lr_mult": 1.0, "decay_mult": 1.0},
        {"params": [bias], "lr_mult": 2.0, "decay_mult": 0.0},
    ]
    optimizer = CaffeOptimizer(groups, chosen)
    w = b = 2.0
    vw = vb = 0.0
    for rate in (0.1, 0.05, 0.025):
        weight.grad, bias.grad = torch.tensor([1.0]), torch.tensor([1.0])
        optimizer.step()
        vw = 0.9 * vw + rate * (1 + 0.5 * w)
        vb = 0.9 * vb + 2 * rate
        w, b = w - vw, b - vb
        assert (weight.item(), bias.item()) == pytest.approx((w, b))


@pytest.mark.parametrize(("text", "weights"), [
    # h = 4, then 4 + 1; W -= 0.1 * g / (sqrt(h) + delta)
    ('type: "AdaGrad" delta: 1', [1 - 0.1 * 2 / 3, 1 - 0.1 * 2 / 3 - 0.1 * 1 / (5**0.5 + 1)]),
    # h = 0.5 * 4 = 2, then 0.5 * 2 + 0.5 * 1 = 1.5
    ('type: "RMSProp" rms_decay: 0.5 delta: 1',
     [1 - 0.1 * 2 / (2**0.5 + 1), 1 - 0.1 * 2 / (2**0.5 + 1) - 0.1 / (1.5**0.5 + 1)]),
    # V = 0.2, then 0.9 * 0.2 + 0.1 = 0.28; W -= (1 + m) * V - m * V before
    ('type: "Nesterov" momentum: 0.9', [1 - 1.9 * 0.2, 1 - 0.38 - (1.9 * 0.28 - 0.9 * 0.2)]),
    # h = 2, u = 2 * sqrt(1 / 3) with u² = 4 / 3; then h = 1.5, history of u 2 / 3,
    # u = sqrt((2 / 3 + 1) / 2.5)
    ('type: "AdaDelta" momentum: 0.5 delta: 1',
     [1 - 0.1 * 2 * (1 / 3) ** 0.5, 1 - 0.1 * 2 * (1 / 3) ** 0.5 - 0.1 * (5 / 3 / 2.5) ** 0.5]),
    # m = 0.2, v = 0.004; then m = 0.28, v = 0.004996
    ('type: "Adam" momentum: 0.9 momentum2: 0.999 delta: 0',
     [1 - 0.1 * (0.001**0.5 / 0.1) * 0.2 / 0.004**0.5,
      0.9 - 0.1 * ((1 - 0.999**2) ** 0.5 / 0.19) * 0.28 / 0.004996**0.5]),
])  # fmt: skip
def test_each_type_updates_by_the_formula_of_caffe(tmp_path, text, weights):
    """Gradients 2 and 1 from the weight 1; the hand-made sums stand above each row."""
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    group = {"params": [weight], "lr_mult": 1.0, "decay_mult": 1.0}
    optimizer = CaffeOptimizer([group], solver(tmp_path, text))
    for gradient, expected in zip((2.0, 1.0), weights, strict=True):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
        assert weight.item() == pytest.approx(expected, rel=1e-9)


def test_a_restored_optimizer_goes_on_at_its_iteration(tmp_path):
    chosen = solver(tmp_path, 'lr_policy: "exp" gamma: 0.5')
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "lr_mult": 1.0, "decay_mult": 1.0}]
    first = CaffeOptimizer(groups, chosen)
    for _ in range(3):
        groups[0]["params"][0].grad = torch.ones(1)
        first.step()
    second = CaffeOptimizer(groups, chosen)
    second.load_state_dict(first.state_dict())
    second.step()
    assert second.param_groups[0]["lr"] == pytest.approx(chosen.rate(3))


def test_the_preflight_names_a_net_that_is_missing(tmp_path):
    chosen = solver(tmp_path, "")
    with pytest.raises(UserFault, match=r"there is no net 'net\.prototxt'"):
        net_paths(chosen, tmp_path)
    (tmp_path / "net.prototxt").write_text('name: "empty"\n')
    with pytest.raises(UserFault, match=r"net\.prototxt has no layer"):
        plan = make_plan()
        framework = replace(plan.framework, job="solver.prototxt")
        check(replace(plan, framework=framework), tmp_path)
