"""All shards of a node: its primaries and forwarders, and the links to primaries on other nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch

from dlctl.contract import Homes
from psrv.push.snapshots import write_snapshot
from psrv.server.connections import PeerConnections
from psrv.server.forwarder import AtOnceForwarder, Forwarder, RoundsForwarder
from psrv.server.link import AHEAD, Link, Peer
from psrv.server.outbox import Outbox
from psrv.server.primary import Primary
from psrv.server.queues import Queues, devices_for
from psrv.server.shard_files import Settings, ShardFiles
from psrv.shard.format import PRIMARY
from psrv.shard.shard import GROUP, Operation, ThreadedShard
from psrv.solvers import native
from psrv.solvers.solver import RoundSolver
from psrv.transport.base import Purpose
from psrv.transport.tcp import Connection

Dial = Callable[[int, Purpose], Connection]
"""Opens a connection to a node, for a purpose."""
_FEWEST_AHEAD, _OUTBOX_ENTRIES = 2, 32


class NodeShards:
    """Opens the shards of a node, and follows the shard placement.

    Args:
        files: Makes and opens the files.
        placement: Which node is the primary of which shard, now.
        settings: The server's.
        dial: Opens connections.
        log: Gets a line for each event.
        fail: Gets an error that must end the server.
    """

    def __init__(
        self,
        files: ShardFiles,
        placement: Homes,
        settings: Settings,
        *,
        dial: Dial,
        log: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        solver, node = settings.solver, settings.node
        self._files = files
        self._node = node
        self._learners = settings.learners_per_node
        self._nodes = len(self._learners)
        self._solver = solver
        self._bounded = settings.bounded
        self._queues = None
        if not isinstance(solver, RoundSolver):
            self._queues = Queues(solver, devices_for(self._nodes), log)
        self._dial = dial
        self._log = log
        self._fail = fail
        is_primary = [primary == node for primary in placement.shard_nodes]
        files.check_memory(is_primary)
        if line := native.build(files.shards.folder, solver):
            log(line)
        self._shards = [files.open(number, here) for number, here in enumerate(is_primary)]
        if not files.can_host_another_primary(is_primary):
            log("shared memory has no space for a shard of another node, if that is lost")
        have = [n for n, shard in enumerate(self._shards) if shard.layout.kind == PRIMARY]
        first = self._shards[0]
        self.connections = PeerConnections(
            [self._make_primary(number, self._shards[number]) for number in have],
            first.rows[0].dtype,
            first.layout.block_count,
            in_rounds=isinstance(solver, RoundSolver),
        )
        self._promoted: list[ThreadedShard] = []
        self._forwarders = self._make_forwarders()
        self._links: list[Link] = []
        self._placement = placement
        self.apply_placement(placement)

    def _make_primary(self, number: int, shard: ThreadedShard) -> Primary:
        return Primary(number, shard, self._solver, self._nodes, self._queues)

    def _make_forwarders(self) -> dict[int, Forwarder]:
        """Make the forwarders; the outbox keeps what an earlier server had not been answered."""
        kept = {n: s for n, s in enumerate(self._shards) if s.layout.kind != PRIMARY}
        if isinstance(self._solver, RoundSolver) or not kept:
            return {number: RoundsForwarder(number, shard) for number, shard in kept.items()}
        first = next(iter(kept.values()))
        wanted = (AHEAD // GROUP + 1) * max(1, self._nodes - 1)
        path = first.path.with_name("window")
        outbox = Outbox(path, min(_OUTBOX_ENTRIES, wanted), first.rows[0].dtype)
        forwarders = {
            n: AtOnceForwarder(n, shard, self._solver, outbox) for n, shard in kept.items()
        }
        outbox.keep_only(
            {number for forwarder in forwarders.values() for number in forwarder.exchanges()}
        )
        return dict(forwarders)

    def apply_placement(self, placement: Homes) -> None:
        """Apply a new placement: promote shards, refuse lost nodes, and reconnect.

        Learners that were given up are not waited for before the first round.
        """
        left = learners_left(placement, self._learners)
        self.connections.give_up(set(placement.lost_nodes), sum(left))
        for forwarder in self._forwarders.values():
            forwarder.shard.expect(left[self._node])
        if self._links and _routing(placement) == _routing(self._placement):
            return
        for link in self._links:  # first: no answer may change a replica that is promoted
            link.close()
        have = {primary.number for primary in self.connections.all()}
        for number, primary in enumerate(placement.shard_nodes):
            if primary == self._node and number not in have:
                promoted = self._files.promote(self._forwarders[number])
                self._promoted.append(promoted)
                self.connections.add(self._make_primary(number, promoted))
                self._log(f"this node is the primary of shard {number} now")
        self._placement = placement
        self._links = [self._link(primary) for primary in sorted(self._targets())]

    def _targets(self) -> set[int]:
        return {self._placement.shard_nodes[number] for number in self._forwarders}

    def _link(self, primary: int) -> Link:
        forwarders = [
            forwarder
            for number, forwarder in self._forwarders.items()
            if self._placement.shard_nodes[number] == primary
        ]
        for forwarder in forwarders:
            forwarder.distrust_replica()
        entries = GROUP * _OUTBOX_ENTRIES // len(self._targets())
        peer = Peer(
            f"primary on node {primary}", partial(self._dial, primary), self._log, self._fail
        )
        return Link(
            peer,
            forwarders,
            ahead=min(AHEAD, max(_FEWEST_AHEAD, entries)),
            frequent_clocks=self._bounded,
        )

    def poll(self) -> None:
        """Remove dead and absent members, and publish which refreshes are done."""
        for shard in [*self._shards, *self._promoted]:
            shard.members.remove_dead()
        for node in self.connections.pause_absent():
            self._log(
                f"node {node} has no connection any more: its learners are no longer waited for"
            )
        for link in self._links:
            link.note_refreshes()

    def has_learners(self) -> bool:
        """Return whether a learner of this node takes part, as of the last `poll`."""
        for shard in self._shards:
            proxies = set(shard.members.proxies().values())
            if any(member.slot not in proxies for member in shard.members.all()):
                return True
        return False

    def write_snapshots(
        self, request: int, stopped: Callable[[], bool], is_primary: Callable[[int], bool]
    ) -> bool:
        """Write a snapshot of each primary on this node; return whether all were written.

        A full disk does not end the training: the error is logged, and the old snapshot stays.

        Args:
            request: The number of the request that the snapshots answer.
            stopped: Returns whether to stop; called before each snapshot.
            is_primary: Returns whether this node is still the primary of a shard; called before its
                snapshot replaces the old one. A node that was cut off for long must not overwrite a
                snapshot of the new primary.
        """
        done = True
        for primary in self.connections.all():
            if stopped():
                return False
            begin = time.monotonic()
            shards, count = self._files.shards, primary.shard.layout.count
            path = shards.snapshot(primary.number)
            blocks = blocks_of(primary.shard, shards.parameters.rows)
            try:
                written = write_snapshot(
                    path, blocks, count, request, partial(is_primary, primary.number)
                )
            except OSError as error:
                written = False
                self._log(f"{path} can't be written: {error.strerror}")
            if written:
                took_s = time.monotonic() - begin
                self._log(f"snapshot of shard {primary.number} in {took_s:.2f} s")
            done &= written
        return done

    def close(self) -> None:
        """Close all connections; the files stay."""
        for link in self._links:
            link.close()
        if not self.connections.close():
            return  # a thread still works on a shard: the shards are closed when the process ends
        for shard in [*self._shards, *self._promoted]:
            with suppress(OSError):
                shard.close()


def learners_left(placement: Homes, learners: Sequence[int]) -> list[int]:
    """Return how many learners of each node are not given up.

    Args:
        placement: Lists the lost nodes and learners.
        learners: How many each node had at first; ranks are consecutive.
    """
    left, first = [], 0
    for node, count in enumerate(learners):
        ranks = set() if node in placement.lost_nodes else set(range(first, first + count))
        left.append(len(ranks - set(placement.lost_learners)))
        first += count
    return left


def _routing(placement: Homes) -> tuple[list[int], list[int]]:
    return placement.shard_nodes, placement.lost_nodes


def blocks_of(shard: ThreadedShard, rows: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield each block's first element and a copy of its first rows, as they are now."""
    step = shard.layout.block_count
    entries = torch.empty(rows, step, dtype=shard.rows[0].dtype, device="cpu")
    for block in range(shard.layout.blocks):
        length = min(step, shard.layout.count - block * step)
        parts = [row[:length] for row in entries]
        shard.read_block(block, _copying(parts))
        yield block * step, parts


def _copying(into: list[torch.Tensor]) -> Operation:
    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        del block
        for to, part in zip(into, parts, strict=False):
            to.copy_(part)

    return copy
