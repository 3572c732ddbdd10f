"""Run by test_exchange.py under mpiexec: each check is made by every rank. Not a test by itself."""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import torch

from learner.exchange import join
from learner.exchange.flat import GradientBuffer

exchange = join(int(sys.argv[1]))
SIZES = (0, 1, 3, 4, 7, 1000, 1_048_576, 2_300_003)


def of_rank(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rank * 7919 + count)
    return (torch.randn(count, generator=generator) * 1000).to(dtype)


def check_sums() -> str:
    """Compare with the sum in rank order, bit by bit, and with float64."""
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for count in SIZES:
            rows = [of_rank(rank, count, dtype) for rank in range(exchange.size)]
            mine = rows[exchange.rank].clone()
            exchange.sum_in_place(mine)
            wide = torch.float32 if dtype == torch.bfloat16 else dtype
            expected = rows[0].to(wide)
            for row in rows[1:]:
                expected = expected + row
            assert torch.equal(mine, expected.to(dtype)), (dtype, count)
            exact = torch.stack([row.double() for row in rows]).sum(0)
            close = 1e-2 if dtype == torch.bfloat16 else 1e-5
            assert torch.allclose(
                mine.double(), exact, rtol=close, atol=1e-2 if wide != dtype else 1e-3
            )
            digest.update(mine.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_broadcast() -> None:
    first = [torch.arange(12.0).reshape(3, 4).t(), torch.tensor(3), torch.tensor([True, False])]
    first += [torch.empty(0), torch.full((5,), 1.5, dtype=torch.bfloat16)]
    mine = [t.clone() if exchange.rank == 0 else torch.zeros_like(t) for t in first]
    exchange.broadcast(mine)
    assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def check_small() -> None:
    rows = exchange.gather([exchange.rank + 0.1, 2.0])
    assert rows.shape == (exchange.size, 2)
    assert np.array_equal(rows[:, 0], np.arange(exchange.size) + 0.1)
    assert exchange.share({"from": exchange.rank}) == {"from": 0}
    assert exchange.collect(exchange.rank) == list(range(exchange.size))


def check_gradients() -> None:
    """A parameter used by one rank only has a gradient everywhere; one used by none has None."""
    model = torch.nn.ModuleDict(
        {name: torch.nn.Linear(3, 2) for name in ("everywhere", "last", "nowhere", "frozen")}
    )
    model["frozen"].requires_grad_(False)
    model["everywhere"].double()
    buffer = GradientBuffer(model)
    for _ in range(2):
        buffer.clear()
        loss = model["everywhere"](torch.ones(1, 3, dtype=torch.float64)).sum()
        if exchange.rank == exchange.size - 1:
            loss = loss + model["last"](torch.ones(1, 3)).sum()
        loss.backward()
        buffer.reduce(exchange)
        rows = exchange.gather(buffer.used)
        buffer.drop_unused([bool(used) for used in rows.any(axis=0)])
        size = float(exchange.size)
        assert torch.equal(model["everywhere"].weight.grad, torch.full((2, 3), size).double())
        assert torch.equal(model["last"].weight.grad, torch.ones(2, 3))
        assert model["nowhere"].weight.grad is None
        assert model["frozen"].weight.grad is None


digests = exchange.collect(check_sums())
assert len(set(digests)) == 1
check_broadcast()
check_small()
check_gradients()
if exchange.rank == 0:
    print("all checks passed by", exchange.size)
exchange.close()
