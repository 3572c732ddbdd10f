"""Sums of sparse gradients: the indices and values of all learners are concatenated."""

from __future__ import annotations

import torch

from learner.exchange.base import Exchange


def sum_sparse(parameter: torch.Tensor, exchange: Exchange, divisor: int) -> torch.Tensor:
    """Return the sum of the learners' gradients of one parameter, divided, sparse (COO).

    A learner whose gradient is None adds nothing. Rows that several learners have are added in
    rank order.
    """
    grad = parameter.grad
    mine = None
    if grad is not None:
        sparse = (grad if grad.is_sparse else grad.detach().to_sparse(1)).coalesce()
        mine = (sparse.indices().cpu(), sparse.values().cpu(), sparse.sparse_dim())
    parts = [part for part in exchange.collect(mine) if part is not None]
    total = torch.sparse_coo_tensor(
        torch.cat([indices for indices, _, _ in parts], dim=1),
        torch.cat([values for _, values, _ in parts]),
        parameter.shape,
        device=parameter.device,
        check_invariants=False,
    ).coalesce()
    if divisor != 1:
        total.values().div_(divisor)
    return total
