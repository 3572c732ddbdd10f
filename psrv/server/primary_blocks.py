"""What a primary does for another node's learners, block by block.

In rounds a node has a proxy among the shard's members, which stands for the ranks of all its
learners and adds in their turn. `Membership.proxy` makes it; `Membership.enter` enters it, from the
round that `next_round` returns, once the node's learners have joined there; `Membership.pause`
takes it out when none of them lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from psrv.push.rounds import Step, add_to_sum, before, missing, settle
from psrv.shard.format import COUNT_BITS
from psrv.shard.shard import Shard
from psrv.solvers.solver import Solver
from psrv.transport.base import Frame


class TotalsExchange(NamedTuple):
    """Which totals another node's server sends, and whether blocks have them already."""

    number: int
    """Each block keeps it beside its progress."""
    pushes: int
    """How many pushes the totals hold."""
    rate: float
    """The learning rate."""
    is_new: Callable[[int, int], bool]
    """Return whether a block lacks this exchange; asked under the block's lock, with the block and
    the number of its last exchange."""


def merge(
    shard: Shard,
    run: range,
    solver: Solver,
    exchange: TotalsExchange,
    totals: Sequence[torch.Tensor],
    into: Sequence[torch.Tensor],
) -> int:
    """Apply what a node's learners have gathered, and copy the new weights; not in rounds.

    Args:
        shard: A primary.
        run: Neighbouring blocks.
        solver: The training's.
        exchange: Which one; a block that has it already is only copied.
        totals: One of each block; may be overwritten.
        into: Gets the weights of each block.

    Returns:
        How many pushes the weights of every block have had, at least.
    """
    number, pushes, rate, is_new = exchange
    seen: list[int] = []

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        had, added = shard.progress(block)
        total, weights = totals[block - run.start], into[block - run.start]
        if is_new(block, added >> COUNT_BITS):
            solver.merge(parts, total, pushes, rate)
            had += pushes
            shard.set_progress(block, had, number << COUNT_BITS)
        weights.copy_(parts[0])
        seen.append(had)

    shard.update_run(run, work)
    return min(seen)


def add_sum(shard: Shard, block: int, frame: Frame, total: torch.Tensor, step: Step) -> bool:
    """Add a node's sum to the round of a block, once it is that node's turn.

    Repeating it does no harm: a sum that was added, or comes too late, is not added again.

    Args:
        shard: A primary.
        block: Its number.
        frame: Says which round, whose ranks and at which learning rate.
        total: The sum, of the block's length.
        step: The solver's.

    Returns:
        Whether this sum is settled; if not, ask again: it is not the node's turn yet.
    """
    rounds, mask = frame.number, frame.mask
    now, added = shard.progress(block)
    if now > rounds or (now == rounds and added & mask):
        return True
    waited_for = [m for m in missing(shard, now, added) if not m.mask & mask]  # other nodes only
    if now < rounds or before(waited_for, mask):
        return False
    return add_to_sum(shard, block, rounds, mask, total, frame.rate, step)


def skip_rounds(shard: Shard, block: int, number: int, step: Step) -> None:
    """End rounds before this one that nobody is in.

    They are left over when a node joins late, or when a promoted primary is behind its replicas.
    """
    while (now := shard.progress(block))[0] < number and not missing(shard, *now):
        settle(shard, block, now[0], step)


def has_ended(shard: Shard, block: int, rounds: int, step: Step) -> bool:
    """Return whether this many rounds of a block have ended.

    A round whose last missing members have died is ended here.
    """
    now, added = shard.progress(block)
    if now < rounds and added and not missing(shard, now, added):
        settle(shard, block, now, step)
    return shard.progress(block)[0] >= rounds


def copy_weights(shard: Shard, run: range, into: Sequence[torch.Tensor]) -> int:
    """Copy the weights of neighbouring blocks; return how many rounds all of them have had."""
    seen: list[int] = []

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        into[block - run.start].copy_(parts[0])
        seen.append(shard.progress(block)[0])

    shard.read_run(run, copy)
    return min(seen)
