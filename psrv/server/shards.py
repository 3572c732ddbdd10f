"""All shards of a node in its server: homes and relays, and the links to other homes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import torch

from dlctl.contract import Homes
from psrv.push.snapshots import write_snapshot
from psrv.server.connections import Serving
from psrv.server.forwarder import AtOnceRelay, Relay, RoundsRelay
from psrv.server.link import AHEAD, Link
from psrv.server.outbox import Window
from psrv.server.primary import Home
from psrv.server.queues import Queues, devices_for
from psrv.server.shard_files import OwnShards
from psrv.shard.format import HOME
from psrv.shard.shard import GROUP, Operation, ThreadedShard
from psrv.solvers.solver import RoundSolver, Solver
from psrv.transport.base import Connection, Purpose

Dial = Callable[[int, Purpose, int], Connection]
"""Opens a connection: to which node, what for, which stripe."""
_FEWEST_AHEAD, _PLACES = 2, 32


class NodeShards:
    """Opens them, and follows where homes go.

    Args:
        files: Makes and opens the files.
        homes: Who is home of what, now.
        node: This one.
        learners: On each node that the training began with.
        solver: The training's.
        gated: Whether learners wait for one another's clocks.
        stripes: Connections for blocks to another home; as many as the server before this one had.
        dial: Opens connections.
        log: Gets a line for each thing that is new.
        fail: Gets what must end the server.
    """

    def __init__(
        self,
        files: OwnShards,
        homes: Homes,
        node: int,
        learners: Sequence[int],
        solver: Solver | RoundSolver,
        *,
        gated: bool,
        stripes: int,
        dial: Dial,
        log: Callable[[str], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._node = node
        self._learners = learners
        self._nodes = len(learners)
        self._solver = solver
        self._gated = gated
        self._stripes = stripes
        self._queues = None
        if not isinstance(solver, RoundSolver):
            self._queues = Queues(solver, devices_for(self._nodes), log)
        self._dial = dial
        self._log = log
        self._fail = fail
        files.check_room([home == node for home in homes.shard_nodes])
        if line := files.compile_pushes():
            log(line)
        self._shards = [
            files.open(number, home == node) for number, home in enumerate(homes.shard_nodes)
        ]
        if not files.room_for_a_master([home == node for home in homes.shard_nodes]):
            log("there is no room in shared memory for a shard of a node that may be lost")
        have = [n for n, shard in enumerate(self._shards) if shard.layout.kind == HOME]
        first = self._shards[0]
        self.serving = Serving(
            [self._home(number, self._shards[number]) for number in have],
            first.rows[0].dtype,
            first.layout.block_count,
            in_rounds=isinstance(solver, RoundSolver),
        )
        self._masters: list[ThreadedShard] = []
        self._relays = self._make_relays()
        self._links: list[Link] = []
        self._followed = homes
        self.follow(homes)

    def _home(self, number: int, shard: ThreadedShard) -> Home:
        return Home(number, shard, self._solver, self._nodes, self._queues)

    def _make_relays(self) -> dict[int, Relay]:
        """Make the relays; what is kept of a server before this one is on its way again."""
        kept = {n: s for n, s in enumerate(self._shards) if s.layout.kind != HOME}
        if isinstance(self._solver, RoundSolver) or not kept:
            return {number: RoundsRelay(number, shard) for number, shard in kept.items()}
        first = next(iter(kept.values()))
        wanted = (AHEAD // GROUP + self._stripes) * max(1, self._nodes - 1)
        path = first.path.with_name("window")
        window = Window(path, min(_PLACES, wanted), first.rows[0].dtype)
        relays = {n: AtOnceRelay(n, shard, self._solver, window) for n, shard in kept.items()}
        window.free_but({number for relay in relays.values() for number in relay.exchanges()})
        return dict(relays)

    def follow(self, homes: Homes) -> None:
        """Take over shards whose home this node is now, refuse lost nodes, and link anew.

        Who is given up is not waited for before the first round.
        """
        left = learners_left(homes, self._learners)
        self.serving.give_up(set(homes.lost_nodes), sum(left))
        for relay in self._relays.values():
            relay.shard.expect(left[self._node])
        if self._links and _places(homes) == _places(self._followed):
            return
        for link in self._links:  # first: a home is made of relays that no answer changes
            link.close()
        have = {home.number for home in self.serving.all()}
        for number, home in enumerate(homes.shard_nodes):
            if home == self._node and number not in have:
                master = self._files.open_master(self._relays[number])
                self._masters.append(master)
                self.serving.add(self._home(number, master))
                self._log(f"this node is the home of shard {number} now")
        self._followed = homes
        self._links = [self._link(home) for home in sorted(self._targets())]

    def _targets(self) -> set[int]:
        return {self._followed.shard_nodes[number] for number in self._relays}

    def _link(self, home: int) -> Link:
        relays = [
            relay
            for number, relay in self._relays.items()
            if self._followed.shard_nodes[number] == home
        ]
        for relay in relays:
            relay.meet()
        room = GROUP * _PLACES // len(self._targets())
        return Link(
            f"home on node {home}",
            relays,
            lambda purpose, stripe: self._dial(home, purpose, stripe),
            often=self._gated,
            stripes=self._stripes,
            ahead=min(AHEAD, max(_FEWEST_AHEAD * self._stripes, room)),
            log=self._log,
            fail=self._fail,
        )

    def look_around(self) -> None:
        """Strike off who is dead or absent, and tell learners what was brought up to date."""
        for shard in [*self._shards, *self._masters]:
            shard.members.strike_dead()
        for node in self.serving.strike_absent():
            self._log(f"node {node} has no connection any more: nobody waits for its learners")
        for link in self._links:
            link.note_refreshes()

    def has_learners(self) -> bool:
        """Return whether a learner of this node takes part; see `look_around`."""
        for shard in self._shards:
            proxies = set(shard.members.proxies().values())
            if any(member.slot not in proxies for member in shard.members.all()):
                return True
        return False

    def write_snapshots(
        self, request: int, stopped: Callable[[], bool], is_home: Callable[[int], bool]
    ) -> bool:
        """Write a snapshot of each shard whose home this node is; return whether all are written.

        A disk that is full ends no training: it is logged, and the old one stays.

        Args:
            request: The number of the one that they answer.
            stopped: Asked before each.
            is_home: Asked before one takes the old one's place: a node that was cut off for long
                must not put its own there, when another node is the home.
        """
        done = True
        for home in self.serving.all():
            if stopped():
                return False
            begin = time.monotonic()
            path = self._files.snapshot(home.number)
            rows = self._files.rows
            blocks, count = blocks_of(home.shard, rows), home.shard.layout.count
            try:
                written = write_snapshot(
                    path, blocks, count, request, partial(is_home, home.number)
                )
            except OSError as error:
                written = False
                self._log(f"{path} can't be written: {error.strerror}")
            if written:
                took_s = time.monotonic() - begin
                self._log(f"snapshot of shard {home.number} in {took_s:.2f} s")
            done &= written
        return done

    def close(self) -> None:
        """End all connections; the files stay."""
        for link in self._links:
            link.close()
        if not self.serving.close():
            return  # a thread still works on a shard: the process's end closes them
        for shard in [*self._shards, *self._masters]:
            with suppress(OSError):
                shard.close()


def learners_left(homes: Homes, learners: Sequence[int]) -> list[int]:
    """Return how many learners of each node are not given up.

    Args:
        homes: They say who is.
        learners: Of each node at the begin; their ranks follow one another.
    """
    left, first = [], 0
    for node, count in enumerate(learners):
        ranks = set() if node in homes.lost_nodes else set(range(first, first + count))
        left.append(len(ranks - set(homes.lost_learners)))
        first += count
    return left


def _places(homes: Homes) -> tuple[list[int], list[int]]:
    return homes.shard_nodes, homes.lost_nodes


def blocks_of(shard: ThreadedShard, rows: int) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """Yield first element and a copy of the first rows of each block, as it is now."""
    step = shard.layout.block_count
    room = torch.empty(rows, step, dtype=shard.rows[0].dtype, device="cpu")
    for block in range(shard.layout.blocks):
        length = min(step, shard.layout.count - block * step)
        parts = [row[:length] for row in room]
        shard.read_block(block, _copying(parts))
        yield block * step, parts


def _copying(into: list[torch.Tensor]) -> Operation:
    def copy(parts: Sequence[torch.Tensor], block: int) -> None:
        del block
        for to, part in zip(into, parts, strict=False):
            to.copy_(part)

    return copy
