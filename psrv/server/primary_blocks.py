"""What a server does at the home of a shard for another node's learners, block by block.

In rounds the node has a proxy among the shard's members, which speaks for the ranks of all of its
learners and takes part in their turn: `Members.proxy` and `enter`, from the round on that
`next_round` says, once they have joined there; `Members.pause` when none of them lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from psrv.push.rounds import Step, add_to_sum, before, missing, next_round, settle
from psrv.shard.format import COUNT_BITS
from psrv.shard.shard import Rows, Shard
from psrv.solvers.native import Fused, FusedRounds
from psrv.solvers.solver import Solver

__all__ = ["add_sum", "copy_weights", "has_ended", "merge", "next_round", "skip_rounds"]


def merge(
    shard: Shard,
    run: range,
    solver: Solver,
    totals: Sequence[torch.Tensor],
    pushes: int,
    rate: float,
    number: int,
    into: Sequence[torch.Tensor],
    is_new: Callable[[int, int], bool],
    fused: Fused | None = None,
) -> int:
    """Take in what a node's learners have gathered, and copy the new weights; solvers at once.

    Args:
        shard: A home.
        run: Neighbouring blocks.
        solver: The training's.
        totals: What was gathered, of each block; may be overwritten.
        pushes: How many pushes that is of.
        rate: The learning rate.
        number: Of the exchange; each block keeps it.
        into: Gets the weights of each block.
        is_new: Whether a block has not had it yet: asked under the lock with the block and the
            number that it has had last.
        fused: The solver in one pass, if there is that: for totals of float32.

    Returns:
        How many pushes the weights have had: those of each block, or more.
    """
    seen: list[int] = []

    def work(parts: Sequence[torch.Tensor], block: int) -> None:
        had, added = shard.progress(block)
        total, weights = totals[block - run.start], into[block - run.start]
        new = is_new(block, added >> COUNT_BITS)
        if new and fused is not None:
            fused.push(block, total.data_ptr(), weights.data_ptr(), rate)
        else:
            if new:
                solver.merge(parts, total, pushes, rate)
            weights.copy_(parts[0])
        if new:
            had += pushes
            shard.set_progress(block, had, number << COUNT_BITS)
        seen.append(had)

    shard.update_run(run, work, changes=Rows(copied=fused is None))
    return min(seen)


def add_sum(
    shard: Shard,
    block: int,
    rounds: int,
    mask: int,
    total: torch.Tensor,
    rate: float,
    step: Step,
    fused: FusedRounds | None = None,
) -> bool:
    """Take part in a round for the learners of a node, once it is their turn.

    It may be told twice: what was added is not added again, nor is what comes too late.

    Args:
        shard: A home.
        block: Its number.
        rounds: The round's number.
        mask: Bits of the ranks in the sum.
        total: The sum, of the block's length.
        rate: Its learning rate, the lowest of these ranks'.
        step: The solver's.
        fused: The solver in one pass, if there is that.

    Returns:
        Whether that is settled; otherwise it is to be asked again: it is not their turn yet.
    """
    now, added = shard.progress(block)
    if now > rounds or (now == rounds and added & mask):
        return True
    waited_for = [m for m in missing(shard, now, added) if not m.mask & mask]  # but for itself
    if now < rounds or before(waited_for, mask):
        return False
    return add_to_sum(shard, block, rounds, mask, total, rate, step, fused)


def skip_rounds(shard: Shard, block: int, number: int, step: Step) -> None:
    """End rounds before this one that nobody is in: whoever is there has come later.

    Or this home is new, and the relays are ahead.
    """
    while (now := shard.progress(block))[0] < number and not missing(shard, *now):
        settle(shard, block, now[0], step)


def has_ended(shard: Shard, block: int, rounds: int, step: Step) -> bool:
    """Return whether a block has so many rounds behind it.

    A round that waits for nobody any more, because its last ones died, is ended.
    """
    now, added = shard.progress(block)
    if now < rounds and added and not missing(shard, now, added):
        settle(shard, block, now, step)
    return shard.progress(block)[0] >= rounds


def copy_weights(shard: Shard, run: range, into: Sequence[torch.Tensor]) -> int:
    """Copy the weights of neighbouring blocks; return how many rounds each has had, or more."""
    seen: list[int] = []

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        into[block - run.start].copy_(parts[0])
        seen.append(shard.progress(block)[0])

    shard.read_run(run, copy)
    return min(seen)
