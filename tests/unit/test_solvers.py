"""Every solver against its formula in float64, at any cut into blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psrv import solvers

RATE = st.floats(1e-4, 1.0)
Rows = list[torch.Tensor]


def rows_of(seed: int, count: int, rows: int) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, generator=generator) for _ in range(rows)]


def run(rows: Rows, cuts: list[int], work: Callable[..., None], **options: float) -> Rows:
    """Apply a solver block by block."""
    worked = [row.clone() for row in rows]
    edges = sorted({0, len(rows[0]), *(cut % (len(rows[0]) + 1) for cut in cuts)})
    for start, stop in zip(edges, edges[1:], strict=False):
        work(*[row[start:stop] for row in worked], **options)
    return worked


def assert_close(found: torch.Tensor, expected: Any) -> None:
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=2e-6)


CASE = st.tuples(st.integers(0, 99), st.integers(1, 200), st.lists(st.integers(0, 200), max_size=3))


@settings(max_examples=40, deadline=None)
@given(CASE, RATE, st.floats(0.0, 0.99))
def test_steps_of_the_server(case: Any, lr: float, momentum: float) -> None:
    seed, count, cuts = case
    rows = rows_of(seed, count, 3)
    w, v, g = [row.double().numpy() for row in rows]

    found = run([rows[0], rows[2]], cuts, solvers.sgd, lr=lr)
    assert_close(found[0], w - lr * g)
    assert torch.equal(found[1], rows[2])

    found = run(rows, cuts, solvers.momentum, lr=lr, momentum=momentum)
    assert_close(found[1], momentum * v + g)
    assert_close(found[0], w - lr * (momentum * v + g))

    squares = rows[1].abs()
    found = run([rows[0], squares, rows[2]], cuts, solvers.adagrad, lr=lr, epsilon=1e-3)
    s = squares.double().numpy() + g * g
    assert_close(found[1], s)
    assert_close(found[0], w - lr * g / (np.sqrt(s) + 1e-3))


@settings(max_examples=40, deadline=None)
@given(CASE, st.floats(0.0, 1.0))
def test_elastic_averaging(case: Any, alpha: float) -> None:
    seed, count, cuts = case
    rows = rows_of(seed, count, 3)
    center, mine, _ = [row.double().numpy() for row in rows]
    difference = alpha * (mine - center)
    found = run(rows, cuts, solvers.elastic, alpha=alpha)
    assert_close(found[0], center + difference)
    assert_close(found[1], mine - difference)


@settings(max_examples=40, deadline=None)
@given(CASE, st.integers(1, 9), RATE, st.floats(0.0, 0.99))
def test_steps_for_all_learners(case: Any, count: int, lr: float, momentum: float) -> None:
    seed, length, cuts = case
    rows = rows_of(seed, length, 3)
    w, v, total = [row.double().numpy() for row in rows]
    found = run([rows[0], rows[2]], cuts, solvers.average, count=count)
    assert_close(found[0], total / count)
    found = run(rows, cuts, solvers.outer_nesterov, count=count, lr=lr, momentum=momentum)
    difference = w - total / count
    assert_close(found[1], momentum * v + difference)
    assert_close(found[0], w - lr * (difference + momentum * (momentum * v + difference)))


def test_the_outer_step_is_torchs_nesterov() -> None:
    (start,) = rows_of(1, 50, 1)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    weights, velocity = start.clone(), torch.zeros(50)
    for step in range(5):
        (mean,) = rows_of(100 + step, 50, 1)
        parameter.grad = parameter.detach() - mean
        optimizer.step()
        solvers.outer_nesterov(weights, velocity, 3 * mean, count=3, lr=0.7, momentum=0.9)
    torch.testing.assert_close(weights, parameter.detach())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_learner_trains_as_torch_does(momentum: float) -> None:
    """The server's momentum is torch.optim.SGD's."""
    (start,) = rows_of(1, 50, 1)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    weights, velocity = start.clone(), torch.zeros(50)
    for step in range(5):
        (gradient,) = rows_of(100 + step, 50, 1)
        parameter.grad = gradient.clone()
        optimizer.step()
        solvers.momentum(weights, velocity, gradient, lr=0.1, momentum=momentum)
    torch.testing.assert_close(weights, parameter.detach())
