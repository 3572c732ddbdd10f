"""What a server does at the home of a shard for another node's learners, block by block.

In rounds the node has a proxy among the shard's members, which speaks for the ranks of all of its
learners and takes part in their turn: `Members.proxy` and `enter`, from the round on that
`next_round` says, once they have joined there; `Members.pause` when none of them lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from psrv.rounds import Step, add_to_sum, before, missing, next_round, settle
from psrv.rules import RoundSolver, Solver
from psrv.shard import Shard
from psrv.shard_file import COUNT_BITS

__all__ = ["add_sum", "merge", "next_round", "step_of", "weights_after"]


def merge(
    shard: Shard,
    block: int,
    solver: Solver,
    total: torch.Tensor,
    pushes: int,
    rate: float,
    number: int,
    into: torch.Tensor,
    is_new: Callable[[int], bool] | None = None,
) -> int:
    """Take in what a node's learners have gathered, and copy the new weights; solvers at once.

    Args:
        shard: A home.
        block: Its number.
        solver: The training's.
        total: What was gathered, of the block's length; may be overwritten.
        pushes: How many pushes that is of. 0: the weights are only copied.
        rate: The learning rate.
        number: Of the exchange; one that this block has had last is not taken in again.
        into: Gets the weights.
        is_new: Asked instead, under the block's lock, with the number that this block has had last.

    Returns:
        How many pushes the weights have had.
    """
    seen = 0

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        nonlocal seen
        seen, added = shard.progress(block)
        last = added >> COUNT_BITS
        if pushes and (last != number if is_new is None else is_new(last)):
            solver.merge(parts, total, pushes, rate)
            seen += pushes
            shard.set_progress(block, seen, number << COUNT_BITS)
        into.copy_(parts[0])

    if pushes:
        shard.update_block(block, work)
    else:
        shard.read_block(block, work)
    return seen


def add_sum(
    shard: Shard, block: int, rounds: int, mask: int, total: torch.Tensor, step: Step
) -> bool:
    """Take part in a round for the learners of a node, once it is their turn.

    It may be told twice: what was added is not added again, nor is what comes too late.

    Args:
        shard: A home.
        block: Its number.
        rounds: The round's number.
        mask: Bits of the ranks in the sum.
        total: The sum, of the block's length.
        step: See `step_of`.

    Returns:
        Whether that is settled; otherwise it is to be asked again: it is not their turn yet.
    """
    now, added = shard.progress(block)
    if now > rounds or (now == rounds and added & mask):
        return True
    waited_for = [m for m in missing(shard, now, added) if not m.mask & mask]  # but for itself
    if now < rounds or before(waited_for, mask):
        return False
    if not add_to_sum(shard, block, rounds, mask, total):
        return False
    if not missing(shard, *shard.progress(block)):
        settle(shard, block, rounds, step)
    return True


def weights_after(
    shard: Shard, block: int, rounds: int, step: Step, into: torch.Tensor
) -> int | None:
    """Copy the weights of a block once it has so many rounds behind it.

    A round that waits for nobody any more, because its last ones died, is ended.

    Returns:
        How many it has; None: not so many yet.
    """
    now, added = shard.progress(block)
    if now < rounds and added and not missing(shard, now, added):
        settle(shard, block, now, step)
    found = None

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        nonlocal found
        now = shard.progress(block)[0]
        if now >= rounds:
            into.copy_(parts[0])
            found = now

    if shard.progress(block)[0] >= rounds:
        shard.read_block(block, copy)
    return found


def step_of(solver: RoundSolver, rate: float) -> Step:
    """Return a solver's step at a learning rate."""

    def step(server: Sequence[torch.Tensor], total: torch.Tensor, count: int, block: int) -> None:
        del block
        solver.step(server, total, count, rate)

    return step
