"""Run by test_exchange.py under mpiexec: each check is made by every rank. Not a test by itself."""

import hashlib
import sys

import numpy as np
import torch

from learner.exchange import find_group, make_exchange
from learner.exchange.arithmetic import wide_dtype

exchange = make_exchange(find_group(), sys.argv[1])
SIZES = (0, 1, 3, 4, 7, 1000, 70_001, 1_600_003)
HALVES = (torch.bfloat16, torch.float16)


def of_rank(rank, count, dtype):
    generator = torch.Generator().manual_seed(rank * 7919 + count)
    return (torch.randn(count, generator=generator) * 1000).to(dtype)


def check_sums():
    """Compare with the sum in rank order, bit by bit, and with float64."""
    digest = hashlib.sha256()
    for dtype in (torch.float32, torch.float64, *HALVES, torch.int64):
        for count in SIZES:
            rows = [of_rank(rank, count, dtype) for rank in range(exchange.size)]
            mine = rows[exchange.rank].clone()
            exchange.sum_in_place(mine)
            expected = rows[0].to(wide_dtype(dtype))
            for row in rows[1:]:
                expected = expected + row
            if exchange.name != "torch":
                assert torch.equal(mine, expected.to(dtype)), (dtype, count)
            exact = torch.stack([row.double() for row in rows]).sum(0)
            close = 1e-2 if dtype in HALVES else 1e-5
            atol = 4.0 if dtype in HALVES else 1e-3
            assert torch.allclose(mine.double(), exact, rtol=close, atol=atol), (dtype, count)
            if count < 1_000_000:
                digest.update(mine.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_parts():
    """Several parts begun before any is waited for, divided, round after round."""
    count = 300_007
    buffer = exchange.buffer(count, torch.float32)
    cuts = [0, 1, 70_000, 70_000, 131_072, count]
    for turn in range(3):
        rows = [of_rank(rank + turn, count, torch.float32) for rank in range(exchange.size)]
        buffer.values.copy_(rows[exchange.rank])
        for start, stop in zip(cuts, cuts[1:], strict=False):
            buffer.begin(start, stop, exchange.size)
            buffer.progress()
        buffer.wait()
        expected = rows[0].clone()
        for row in rows[1:]:
            expected += row
        expected /= exchange.size
        if exchange.name == "torch":
            assert torch.allclose(buffer.values, expected, rtol=1e-5, atol=1e-3)
        else:
            assert torch.equal(buffer.values, expected), turn
    buffer.free()


def check_broadcast():
    first = [torch.arange(12.0).reshape(3, 4).t(), torch.tensor(3), torch.tensor([True, False])]
    first += [torch.empty(0), torch.full((5,), 1.5, dtype=torch.bfloat16)]
    mine = [t.clone() if exchange.rank == 0 else torch.zeros_like(t) for t in first]
    exchange.broadcast(mine)
    assert all(torch.equal(a, b) for a, b in zip(mine, first, strict=True))


def check_small():
    rows = exchange.gather([exchange.rank + 0.1, 2.0])
    assert rows.shape == (exchange.size, 2)
    assert np.array_equal(rows[:, 0], np.arange(exchange.size) + 0.1)
    assert exchange.share({"from": exchange.rank}) == {"from": 0}
    assert exchange.collect(exchange.rank) == list(range(exchange.size))
    leader = exchange.topology.local_ranks[0]
    assert exchange.node_share(exchange.rank) == leader
    exchange.node_barrier()
    exchange.barrier()


digests = exchange.collect(check_sums())
assert len(set(digests)) == 1
check_parts()
check_broadcast()
check_small()
if exchange.rank == 0:
    print("all checks passed by", exchange.size, exchange.name, digests[0])
exchange.close()
