"""A shard whose primary this node is, as it serves the servers of all other nodes.

In rounds a node has a proxy among the shard's members, which stands for the ranks of all its
learners and adds in their turn. `Membership.proxy` makes it; `Membership.enter` enters it, from the
round that `next_round` returns, once the node's learners have joined there; `Membership.pause`
takes it out when none of them lives.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from psrv.errors import ServerError
from psrv.push.rounds import Step, add_to_sum, before, missing, next_round, settle
from psrv.server.queues import Queues
from psrv.shard.format import COUNT_BITS, SLOTS, map_reserved
from psrv.shard.membership import RANKS
from psrv.shard.shard import Rows, Shard, ThreadedShard
from psrv.solvers.native import Native, native_for
from psrv.solvers.solver import ElasticAveraging, RoundSolver, Solver
from psrv.transport.base import DisconnectedError, Frame, RefusedError

NODES = SLOTS
"""Each node needs a slot."""


class LastExchanges:
    """The last exchange of each node for each block, in shared memory: no exchange is merged twice.

    The block itself names its newest exchange and that one's node, in the second word of its
    progress, which changes together with the weights. The exchange is noted here before the next
    one is merged. So a server that takes over knows all exchanges, whenever its predecessor was
    killed.
    """

    def __init__(self, path: Path, nodes: int, blocks: int) -> None:
        size_bytes = max(mmap.PAGESIZE, 8 * nodes * blocks)
        self._words = memoryview(map_reserved(path, size_bytes)).cast("q")
        self._blocks = blocks

    def last(self, node: int, block: int) -> int:
        """Return the number of the last exchange, 0 if there was none."""
        return self._words[node * self._blocks + block]

    def note(self, node: int, block: int, number: int) -> None:
        """Note the number of an exchange that was merged."""
        self._words[node * self._blocks + block] = number


class Primary:
    """A shard whose primary this node is, as used by all connections.

    Args:
        number: The shard's number.
        shard: Its file.
        solver: The training's.
        nodes: How many nodes the training began with.
        queues: The devices that merge totals; None with a solver in rounds.
    """

    def __init__(
        self,
        number: int,
        shard: ThreadedShard,
        solver: Solver | RoundSolver,
        nodes: int,
        queues: Queues | None,
    ) -> None:
        self.number = number
        self.shard = shard
        self.in_rounds: RoundSolver | None = solver if isinstance(solver, RoundSolver) else None
        """The solver, if it works in rounds. (An isinstance check takes longer than a block.)"""
        self._solver = solver
        # The total of elastic averaging is a step already.
        self.native = None if isinstance(solver, ElasticAveraging) else native_for(shard, solver)
        self._queues = queues
        self._merged = LastExchanges(
            shard.path.with_name(f"{shard.path.name}.merged"), nodes, shard.layout.blocks
        )
        masks = {member.slot: member.mask for member in shard.members.all()}
        self._known_masks = {node: masks.get(n, 0) for node, n in shard.members.proxies().items()}
        self._nodes = nodes
        self._rounds = shard.all_rounds()
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        step = shard.layout.block_count
        self._lengths = [len(part) for part in torch.split(shard.rows[0], step)]

    def length(self, block: int) -> int:
        """Return the number of elements of a block.

        Raises:
            DisconnectedError: There is no such block.
        """
        if block >= len(self._lengths):
            raise DisconnectedError(f"shard {self.number} has no block {block}")
        return self._lengths[block]

    def run_of(self, frame: Frame, elements: int) -> range:
        """Return the neighbouring blocks, from a frame's on, that have this many elements together.

        Raises:
            DisconnectedError: There are no such blocks.
        """
        end, left = frame.block, elements
        while left > 0:
            left -= self.length(end)
            end += 1
        if left or end == frame.block:
            raise DisconnectedError(
                f"received totals of {elements} elements, which match no blocks"
            )
        return range(frame.block, end)

    def merge(
        self,
        node: int,
        frame: Frame,
        run: range,
        totals: Sequence[torch.Tensor],
        into: Sequence[torch.Tensor],
    ) -> int:
        """Apply what a node's learners have gathered, and copy the new weights; not in rounds.

        A block that has this exchange already is only copied.

        Args:
            node: The learners' node.
            frame: Says which exchange, how many pushes it holds, and at which learning rate.
            run: Neighbouring blocks.
            totals: One of each block; may be overwritten.
            into: Gets the weights of each block.

        Returns:
            How many pushes the weights of every block have had, at least.
        """
        assert self._queues is not None
        shard, merged, counts = self.shard, self._merged, []

        def update(solver: Solver) -> None:
            native = self.native if solver is self._solver else None

            def work(parts: Sequence[torch.Tensor], block: int) -> None:
                had, added = shard.progress(block)
                last = added >> COUNT_BITS
                merged.note(last % NODES, block, last // NODES)
                total, weights = totals[block - run.start], into[block - run.start]
                new = merged.last(node, block) != frame.number
                if new and native is not None:
                    native.push(block, total.data_ptr(), weights.data_ptr(), frame.rate)
                elif new:
                    solver.merge(parts, total, frame.pushes, frame.rate)
                if new:
                    had += frame.pushes
                    shard.set_progress(block, had, (frame.number * NODES + node) << COUNT_BITS)
                if native is None or not new:
                    weights.copy_(parts[0])
                counts.append(had)

            shard.update_run(run, work, changes=Rows(copied=native is None))

        self._queues.run(sum(total.numel() for total in totals), update)
        return min(counts)

    def weights(self, frame: Frame, into: torch.Tensor) -> tuple[int, bool]:
        """Copy the weights if they are newer than the frame's; return their number, and whether."""
        newer, number = False, 0

        def work(parts: Sequence[torch.Tensor], block: int) -> None:
            nonlocal newer, number
            number, _ = self.shard.progress(block)
            newer = number != frame.number
            if newer:
                into.copy_(parts[0])

        self.shard.read_block(frame.block, work)
        return number, newer

    def begun(self) -> bool:
        """Return whether rounds have begun: they begin once all expected learners have joined.

        On a promoted primary they continue once every node has said which of its learners live.
        """
        shard = self.shard
        if shard.expected == 1:
            return True
        with self._lock:
            if not shard.expected:
                begun = not self.unknown_nodes()
            else:
                begun = (
                    any(shard.progress(0)) or shard.members.ranks().bit_count() >= shard.expected
                )
            if begun:
                shard.expected = 1  # no longer wait for learners that die or are lost
            return begun

    def unknown_nodes(self) -> set[int]:
        """Return the nodes that have not yet told a promoted primary which of their learners live.

        Nobody tells a promoted primary how many learners to expect: they have joined before.
        """
        if self.in_rounds is None or self.shard.expected:
            return set()
        return set(range(self._nodes)) - self._lost - set(self.shard.members.proxies())

    def note_clock(self, node: int, frame: Frame) -> tuple[int, int]:
        """Note which learners of a node live, and the node's clock.

        Returns:
            The smallest and the largest clock of the other nodes. With a solver in rounds: the
            first round that the node takes part in, and 0.
        """
        members = self.shard.members
        with self._lock:
            if node in self._lost:
                raise RefusedError(f"node {node} was given up")
            slot = members.proxy(node)
            if slot is None:
                raise ServerError(f"all slots of {self.shard.path} are in use")
            if not frame.mask:
                members.pause(slot)
            elif self.in_rounds is not None:
                return self._enter(node, slot, frame, self.in_rounds.step), 0
            else:
                members.set_clock(slot, frame.number)
                members.enter(slot, 1 << node % RANKS)
            return members.slowest(excluding=slot), members.furthest(excluding=slot)

    def _enter(self, node: int, slot: int, frame: Frame, step: Step) -> int:
        """Let a node's learners take part in rounds, from the first that nobody has added to.

        On a promoted primary, until all nodes are known, that is the round that the node is at. A
        node that took part before may not move to an earlier round.
        """
        known = self._known_masks.get(node, 0)
        # A rank that was there stays in the mask: the mask gives the node's turn, not who lives.
        mask = self._known_masks[node] = known | frame.mask
        now = [m.first_round for m in self.shard.members.all() if m.slot == slot]
        if not now:
            open_now = next_round(self.shard) if self.shard.expected else 0
            first = max(open_now, frame.number, frame.pushes)
        else:
            first = max(now[0], frame.number)
        if now != [first] or mask != known:
            self.shard.members.enter(slot, mask, first)
            # A learner that added earlier does not wait for this node: see psrv.push.rounds.Turn.
            while not now and self.shard.expected and (later := next_round(self.shard)) > first:
                first = later
                self.shard.members.enter(slot, mask, first)
        if self.shard.expected == 1:  # repeated: some may have left since
            for block in np.flatnonzero(self._rounds < first).tolist():
                skip_rounds(self.shard, block, first, step)
        return first

    def pause(self, node: int) -> None:
        """Stop waiting for a node's learners."""
        with self._lock:
            members = self.shard.members
            if node in members.proxies() or node in self.unknown_nodes():
                slot = members.proxy(node)
                if slot is not None:
                    members.pause(slot)

    def remove(self, node: int) -> None:
        """Remove a node's proxy for good."""
        with self._lock:
            self._lost.add(node)
            slot = self.shard.members.proxies().get(node)
            if slot is not None:
                self.shard.members.remove(slot)


def add_sum(
    shard: Shard,
    block: int,
    frame: Frame,
    total: torch.Tensor,
    step: Step,
    native: Native | None = None,
) -> bool:
    """Add a node's sum to the round of a block, once it is that node's turn.

    Repeating it does no harm: a sum that was added, or comes too late, is not added again.

    Args:
        shard: A primary.
        block: Its number.
        frame: Says which round, whose ranks and at which learning rate.
        total: The sum, of the block's length.
        step: The solver's.
        native: See psrv.push.rounds.add_to_sum.

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
    return add_to_sum(shard, block, rounds, mask, total, frame.rate, step, native)


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
    counts: list[int] = []

    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        into[block - run.start].copy_(parts[0])
        counts.append(shard.progress(block)[0])

    shard.read_run(run, copy)
    return min(counts)
