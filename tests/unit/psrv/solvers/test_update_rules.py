"""Every solver against its formula in float64, with any division into blocks; plans' solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlctl.contract import ParameterServer
from psrv.errors import ServerError
from psrv.solvers import solver as rules
from psrv.solvers import update_rules

RATE = st.floats(1e-4, 1.0)
Rows = list[torch.Tensor]


def rows_of(seed: int, count: int, rows: int, dtype: torch.dtype = torch.float32) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator, dtype=dtype) for _ in range(rows)]


def run(rows: Rows, cuts: list[int], work: Callable[..., None], **options: float) -> Rows:
    """Apply a solver block by block."""
    worked = [row.clone() for row in rows]
    edges = sorted({0, len(rows[0]), *(cut % (len(rows[0]) + 1) for cut in cuts)})
    for start, stop in zip(edges, edges[1:], strict=False):
        work(*[row[start:stop] for row in worked], **options)
    return worked


TOLERANCES = {torch.float32: (2e-5, 2e-6), torch.float64: (1e-12, 1e-13)}
"""Relative and absolute tolerances for the dtypes that shards may have."""


def assert_close(found: torch.Tensor, expected: Any) -> None:
    rtol, atol = TOLERANCES[found.dtype]
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=atol)


CASE = st.tuples(
    st.integers(0, 99), st.integers(1, 200), st.lists(st.integers(0, 200), max_size=3),
    st.sampled_from(list(TOLERANCES)),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(CASE, RATE, st.floats(0.0, 0.99))
def test_steps_of_the_server(case, lr, momentum):
    seed, count, cuts, dtype = case
    rows = rows_of(seed, count, 3, dtype)
    w, v, g = [row.double().numpy() for row in rows]

    found = run([rows[0], rows[2]], cuts, update_rules.sgd, lr=lr)
    assert_close(found[0], w - lr * g)
    assert torch.equal(found[1], rows[2])

    found = run(rows, cuts, update_rules.momentum, lr=lr, momentum=momentum)
    assert_close(found[1], momentum * v + g)
    assert_close(found[0], w - lr * (momentum * v + g))

    squares = rows[1].abs()
    found = run([rows[0], squares, rows[2]], cuts, update_rules.adagrad, lr=lr, epsilon=1e-3)
    s = squares.double().numpy() + g * g
    assert_close(found[1], s)
    assert_close(found[0], w - lr * g / (np.sqrt(s) + 1e-3))


class Halving(rules.Downpour):
    """A user's own solver that does not answer with the weights."""

    def answer(self, server: Sequence[torch.Tensor], mine: torch.Tensor) -> None:
        mine.copy_(server[0] / 2)


PUSHED = [
    rules.Downpour(),
    rules.Downpour(0.9, scale=0.5),
    rules.DownpourAdagrad(),
    rules.ElasticAveraging(0.3),
    Halving(),
]


@pytest.mark.parametrize("solver", PUSHED, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_push_with_its_answer_is_the_push_and_then_the_answer(solver, dtype):
    *server, mine, scratch = rows_of(1, 1000, 3 + solver.rows)
    server = [row.abs() for row in server]  # Adagrad's rows are squares
    apart = [row.clone() for row in server]
    solver.push(apart, (sent := mine.clone()), scratch, 0.1)
    # The answer replaces weights that were sent; gradients stay unchanged.
    expected = sent if solver.sends_weights else torch.empty(1000, dtype=dtype)
    solver.answer(apart, expected)

    into = mine if solver.sends_weights else torch.empty(1000, dtype=dtype)
    solver.push_pull(server, mine, into, scratch, 0.1)
    assert all(map(torch.equal, server, apart)) and torch.equal(into, expected)
    assert torch.equal(mine, sent)


@settings(max_examples=40, deadline=None)
@given(CASE, st.floats(0.0, 1.0))
def test_elastic_averaging(case, alpha):
    seed, count, cuts, dtype = case
    rows = rows_of(seed, count, 3, dtype)
    center, mine, _ = [row.double().numpy() for row in rows]
    difference = alpha * (mine - center)
    found = run(rows, cuts, update_rules.elastic, alpha=alpha)
    assert_close(found[0], center + difference)
    assert_close(found[1], mine - difference)


@settings(max_examples=40, deadline=None)
@given(CASE, st.integers(1, 9), RATE, st.floats(0.0, 0.99))
def test_steps_for_all_learners(case, count, lr, momentum):
    seed, length, cuts, dtype = case
    rows = rows_of(seed, length, 3, dtype)
    w, v, total = [row.double().numpy() for row in rows]
    found = run([rows[0], rows[2]], cuts, update_rules.average, count=count)
    assert_close(found[0], total / count)
    found = run(rows, cuts, update_rules.outer_nesterov, count=count, lr=lr, momentum=momentum)
    difference = w - total / count
    assert_close(found[1], momentum * v + difference)
    assert_close(found[0], w - lr * (difference + momentum * (momentum * v + difference)))

    def parallel(*parts: torch.Tensor) -> None:
        rules.ParallelSGD(momentum).step(parts[:2], parts[2], count, lr)

    found = run(rows, cuts, parallel)
    velocity = momentum * v + total / count
    assert_close(found[0], w - lr * velocity)
    assert_close(found[1], velocity if momentum else v)


@settings(max_examples=20, deadline=None)
@given(CASE, st.floats(0.0, 1.0), st.floats(0.01, 0.99), RATE)
def test_elastic_averaging_with_nesterovs_momentum(case, alpha, momentum, lr):
    """EAMSGD: torch's parameters are y = x + μ·v, where the gradient is taken."""
    seed, count, _, dtype = case
    center, start, target = rows_of(seed, count, 3, dtype)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=momentum, nesterov=True)
    c, y, goal = center.double().numpy().copy(), start.double().numpy().copy(), target.numpy()
    v = np.zeros(count)
    for _ in range(4):
        update_rules.elastic(center, parameter.data, torch.empty_like(start), alpha=alpha)
        optimizer.zero_grad()
        ((parameter - target) ** 2 / 2).sum().backward()
        optimizer.step()
        difference = alpha * (y - c)
        y, c = y - difference, c + difference
        before, v = v, momentum * v - lr * (y - goal)
        y = y - momentum * before + (1 + momentum) * v
    assert_close(center, c)
    assert_close(parameter.detach(), y)


def test_the_outer_step_is_torchs_nesterov():
    (start,) = rows_of(1, 50, 1)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    weights, velocity = start.clone(), torch.zeros(50)
    for step in range(5):
        (mean,) = rows_of(100 + step, 50, 1)
        parameter.grad = parameter.detach() - mean
        optimizer.step()
        update_rules.outer_nesterov(weights, velocity, 3 * mean, count=3, lr=0.7, momentum=0.9)
    torch.testing.assert_close(weights, parameter.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_trains_as_torch_does(momentum):
    """The server's momentum is that of torch.optim.SGD."""
    (start,) = rows_of(1, 50, 1)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    weights, velocity = start.clone(), torch.zeros(50)
    for step in range(5):
        (gradient,) = rows_of(100 + step, 50, 1)
        parameter.grad = gradient.clone()
        optimizer.step()
        update_rules.momentum(weights, velocity, gradient, lr=0.1, momentum=momentum)
    torch.testing.assert_close(weights, parameter.detach())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.floats(0.01, 0.9))
def test_what_a_node_gathers_is_merged_as_its_learners_pushes(seed, rate):
    replica, first, second, scratch = rows_of(seed, 60, 4)
    for solver in (rules.Downpour(), rules.Downpour(momentum=0.5, scale=0.25)):
        center, total = replica.clone(), torch.zeros(60)
        for mine in (first, second):
            solver.gather(replica, total, mine, scratch, 9.0)
        server = [center, torch.ones(60)]
        solver.merge(server, total, 2, rate)
        expected = [replica.clone(), torch.ones(60)]
        solver.push(expected, first + second, scratch, rate)
        assert torch.equal(server[0], expected[0]) and torch.equal(server[1], expected[1])


def test_elastic_averaging_moves_the_replica_as_the_center():
    center, first, second, scratch = rows_of(3, 60, 4)
    elastic = rules.ElasticAveraging(0.3)
    replica, total, expected = center.clone(), torch.zeros(60), center.clone()
    for learner in (first, second):
        mine, same = learner.clone(), learner.clone()
        elastic.gather(replica, total, mine, scratch, 0.0)
        elastic.push([expected], same, scratch, 0.0)
        assert torch.equal(mine, same)
    elastic.merge([center], total, 2, 0.0)
    assert elastic.total_is_step and torch.equal(replica, expected)
    torch.testing.assert_close(center, expected)


@pytest.mark.parametrize(
    ("settings_of_plan", "solver"),
    [
        ({"solver": "parallel_sgd", "momentum": 0.9}, rules.ParallelSGD(0.9)),
        ({"solver": "parallel_sgd", "staleness": 0}, rules.ParallelSGD()),
        ({"solver": "parallel_sgd", "staleness": 2}, rules.Downpour(scale=0.25)),
        ({"solver": "downpour_sgd", "momentum": 0.5}, rules.Downpour(0.5)),
        ({"solver": "downpour_sgd", "adagrad": True}, rules.DownpourAdagrad()),
        ({"solver": "elastic_averaging"}, rules.ElasticAveraging(0.225)),
        ({"solver": "elastic_averaging", "moving_rate": 0.0}, rules.ElasticAveraging(0.0)),
        ({"solver": "model_averaging"}, rules.ModelAveraging()),
        ({"solver": "diloco"}, rules.DiLoCo(0.7, 0.9)),
        ({"solver": "diloco", "learning_rate": 1.0, "momentum": 0.0}, rules.DiLoCo(1.0, 0.0)),
    ],
)
def test_the_solver_of_a_plan(settings_of_plan, solver):
    made = rules.solver_of(ParameterServer(shard_nodes=[0], **settings_of_plan), learners=4)
    assert made == solver


def test_solver_of_refuses_a_user_s_own_solver():
    with pytest.raises(ServerError, match="'own', which dlctl does not make"):
        rules.solver_of(ParameterServer(solver="own", shard_nodes=[0]), learners=4)
