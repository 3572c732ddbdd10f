"""A shard whose home this node is, for the servers of all other nodes."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from psrv.errors import ServerError
from psrv.push.rounds import Step
from psrv.server.primary_blocks import merge, next_round, skip_rounds
from psrv.server.queues import Queues
from psrv.shard.format import SLOTS, no_room
from psrv.shard.membership import RANKS
from psrv.shard.shard import ThreadedShard
from psrv.solvers.native import fused_for, fused_rounds_for
from psrv.solvers.solver import RoundSolver, Solver
from psrv.transport.base import DisconnectedError, Frame, RefusedError

NODES = SLOTS
"""Each needs a slot."""


class Merged:
    """Which exchange each node had last of each block, in shared memory: none is taken in twice.

    The newest one of a block, and whose it was, the block itself says (second word of its
    progress), which is changed with the weights; it is noted here before the next one is taken in.
    So a server that takes over knows all of them, whenever the one before was killed.
    """

    def __init__(self, path: Path, nodes: int, blocks: int) -> None:
        size = max(mmap.PAGESIZE, 8 * nodes * blocks)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._words = memoryview(mmap.mmap(descriptor, size)).cast("q")
        except OSError as error:
            raise no_room(path.parent, size, error) from error
        finally:
            os.close(descriptor)
        self._blocks = blocks

    def last(self, node: int, block: int) -> int:
        """Return the number of the last exchange, 0 for none."""
        return self._words[node * self._blocks + block]

    def note(self, node: int, block: int, number: int) -> None:
        """Remember it."""
        self._words[node * self._blocks + block] = number


class Home:
    """One shard, for all connections.

    Args:
        number: Its number.
        shard: Its file.
        solver: The training's.
        nodes: How many nodes the training began with.
        queues: Where totals are taken in, at once; None: in rounds there are none.
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
        """The solver, if it is one in rounds. (Asking for its type takes longer than a block.)"""
        self._queues = queues
        self._on_cpu = solver
        self.fused_rounds = fused_rounds_for(shard, solver)
        """The solver in one pass, if it is one in rounds and there is that."""
        # The total of elastic averaging is a step already.
        self._fused = None if solver.sends_weights else fused_for(shard, solver)
        self._merged = Merged(
            shard.path.with_name(f"{shard.path.name}.merged"), nodes, shard.layout.blocks
        )
        masks = {member.slot: member.mask for member in shard.members.all()}
        self._masks = {node: masks.get(n, 0) for node, n in shard.members.proxies().items()}
        self._nodes = nodes
        self._rounds = shard.all_rounds()
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        step = shard.layout.block_count
        self._lengths = [len(part) for part in torch.split(shard.rows[0], step)]

    def length(self, block: int) -> int:
        """Return the number of elements of a block.

        Raises:
            DisconnectedError: there is no such block.
        """
        if block >= len(self._lengths):
            raise DisconnectedError(f"shard {self.number} has no block {block}")
        return self._lengths[block]

    def run_of(self, frame: Frame, elements: int) -> range:
        """Return the neighbouring blocks that have so many elements together, from a frame's on.

        Raises:
            DisconnectedError: there are no such blocks.
        """
        end, left = frame.block, elements
        while left > 0:
            left -= self.length(end)
            end += 1
        if left or end == frame.block:
            raise DisconnectedError(f"totals of {elements} elements came")
        return range(frame.block, end)

    def merge(
        self,
        node: int,
        frame: Frame,
        run: range,
        totals: Sequence[torch.Tensor],
        into: Sequence[torch.Tensor],
    ) -> int:
        """Merge the new totals of neighbouring blocks; see psrv.server.primary_blocks.merge."""
        number, merged = frame.number, self._merged

        def is_new(block: int, last: int) -> bool:
            merged.note(last % NODES, block, last // NODES)
            return merged.last(node, block) != number

        assert self._queues is not None
        return self._queues.run(
            sum(total.numel() for total in totals),
            lambda solver: merge(
                self.shard, run, solver, totals, frame.pushes, frame.rate,
                number * NODES + node, into, is_new,
                self._fused if solver is self._on_cpu else None,
            ),
        )  # fmt: skip

    def weights(self, frame: Frame, into: torch.Tensor) -> tuple[int, bool]:
        """Copy the weights, if they are newer than asked for; return their number, and whether."""
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
        """Return whether rounds have begun: once all have joined who are to.

        At a home that has moved: once all nodes have said who lives there.
        """
        shard = self.shard
        if shard.expected == 1:
            return True
        with self._lock:
            if not shard.expected:
                begun = not self.unknown()
            else:
                begun = (
                    any(shard.progress(0)) or shard.members.ranks().bit_count() >= shard.expected
                )
            if begun:
                shard.expected = 1  # whoever dies or is lost from now on
            return begun

    def unknown(self) -> set[int]:
        """Return the nodes that have not said who lives there, at a home that has moved.

        Nobody has said there how many learners are to join: they have joined before.
        """
        if self.in_rounds is None or self.shard.expected:
            return set()
        return set(range(self._nodes)) - self._lost - set(self.shard.members.proxies())

    def expect(self, learners: int) -> None:
        """Wait for no more than so many before the first round."""
        self.shard.expect(learners)

    def note_clock(self, node: int, frame: Frame) -> tuple[int, int]:
        """Take in who lives on a node, and its clock.

        Returns:
            The slowest and the furthest clock of the others. In rounds: the first one that the node
            takes part in, and 0.
        """
        members = self.shard.members
        with self._lock:
            if node in self._lost:
                raise RefusedError(f"node {node} was given up")
            slot = members.proxy(node)
            if slot is None:
                raise ServerError(f"all slots of {self.shard.path} are taken")
            if not frame.mask:
                members.pause(slot)
            elif self.in_rounds is not None:
                return self._enter(node, slot, frame, self.in_rounds.step), 0
            else:
                members.set_clock(slot, frame.number)
                members.enter(slot, 1 << node % RANKS)
            return members.slowest(but=slot), members.furthest(but=slot)

    def _enter(self, node: int, slot: int, frame: Frame, step: Step) -> int:
        """Let a node's learners take part in rounds, from the first one on that nobody is in.

        At a home that has moved, until all nodes are known, that is the one that they are at. Those
        who have been there before may not take part before a later one any more.
        """
        known = self._masks.get(node, 0)
        # Whoever has been there stays in the mask: it says whose turn it is, not who lives.
        mask = self._masks[node] = known | frame.mask
        now = [m.first_round for m in self.shard.members.all() if m.slot == slot]
        if not now:
            open_now = next_round(self.shard) if self.shard.expected else 0
            first = max(open_now, frame.number, frame.pushes)
        else:
            first = max(now[0], frame.number)
        if now != [first] or mask != known:
            self.shard.members.enter(slot, mask, first)
            # Who has added to a round before that does not wait for it: see psrv.push.rounds.Turn.
            while not now and self.shard.expected and (later := next_round(self.shard)) > first:
                first = later
                self.shard.members.enter(slot, mask, first)
        if self.shard.expected == 1:  # told again and again: those who were in may have left since
            for block in np.flatnonzero(self._rounds < first).tolist():
                skip_rounds(self.shard, block, first, step)
        return first

    def pause(self, node: int) -> None:
        """Wait for a node's learners no longer."""
        with self._lock:
            members = self.shard.members
            if node in members.proxies() or node in self.unknown():
                slot = members.proxy(node)
                if slot is not None:
                    members.pause(slot)

    def remove(self, node: int) -> None:
        """Take a node's proxy away, for ever."""
        with self._lock:
            self._lost.add(node)
            slot = self.shard.members.proxies().get(node)
            if slot is not None:
                self.shard.members.remove(slot)
