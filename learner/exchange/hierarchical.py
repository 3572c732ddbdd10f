"""The hierarchical exchange: shared memory inside each node, one message per node between them.

Sums stay in rank order whatever the placement: a partial sum travels along the ranks, from node to
node, each adding its learners' rows, and the result comes back the same way. Cut into blocks that
follow each other, every link carries the payload once each way, as in a ring. The first learners of
each node (as many as the smallest node has) each lead for a share of the blocks.
"""

from __future__ import annotations

import itertools

import torch
from mpi4py import MPI

from learner.exchange.arithmetic import blocks, divide, part_of, wide_dtype
from learner.exchange.base import Buffer, GroupedExchange
from learner.exchange.memory import NodeMemory
from learner.exchange.mpi import MpiBuffer, MpiGroup, as_bytes
from learner.exchange.pipeline import Protocol, wait_until
from learner.exchange.shm import DONE, READY, Counters, shared_zeros
from learner.exchange.topology import Topology

BLOCK = 262144
"""Elements of a message: 1 MiB of float32."""
_TAGS = 8192


def runs_of_ranks(topology: Topology) -> list[tuple[int, list[int]]]:
    """Return (node, its ranks) in rank order; a node repeats if its ranks are not consecutive."""
    grouped = itertools.groupby(enumerate(topology.node_of), key=lambda item: item[1])
    return [(node, [rank for rank, _ in items]) for node, items in grouped]


class HierarchicalBuffer(MpiBuffer):
    """A Buffer in the node's shared memory, summed over the nodes by messages."""

    def __init__(self, group: MpiGroup, count: int, dtype: torch.dtype) -> None:
        topology = self._topology = group.topology
        self._rank_rows = _rows(group, count, dtype)
        super().__init__(group.comm, self._rank_rows[group.rank])
        self._counters = Counters(group)
        self._leaders = min(len(topology.ranks_on(node)) for node in range(topology.nodes))
        self._runs = runs_of_ranks(topology)
        # the way back: from the last run's node over the others, each once
        self._back = list(dict.fromkeys(node for node, _ in reversed(self._runs)))
        self._begun = self._blocks = 0

    def begin(self, start: int, stop: int, divisor: int = 1) -> None:
        """Announce that a part of this learner's row is ready; a leader queues its blocks."""
        self._begun += 1
        self._counters.set(READY, self._begun)
        lead = self._topology.local_rank
        if lead < self._leaders:
            for a, b in blocks(*part_of(start, stop, lead, self._leaders), BLOCK):
                tag = self._blocks % _TAGS
                self._pipeline.add(self._sum_block(a, b, divisor, tag, self._begun))
                self._blocks += 1
        self._pipeline.progress()

    def wait(self) -> None:
        """Finish this learner's blocks, and wait for the node's other leaders."""
        self._pipeline.wait()
        self._counters.set(DONE, self._begun)
        wait_until(lambda: self._counters.reached(DONE, self._begun))

    def free(self) -> None:
        """Drop the memory and the communicator."""
        self._rank_rows = {}
        super().free()

    def _sum_block(self, start: int, stop: int, divisor: int, tag: int, number: int) -> Protocol:
        topology = self._topology
        yield lambda: self._counters.reached(READY, number)
        rows = {rank: row[start:stop] for rank, row in self._rank_rows.items()}
        total = self.values.new_empty(stop - start, dtype=wide_dtype(self.values.dtype))
        for at, (node, ranks) in enumerate(self._runs):
            if node != topology.node:
                continue
            if at == 0:
                total.copy_(rows[ranks[0]])
            else:
                received = self._receive(total, self._runs[at - 1][0], 2 * tag)
                yield received.Test
            for rank in ranks[1:] if at == 0 else ranks:
                total += rows[rank]
            if at < len(self._runs) - 1:
                sent = self._send(total, self._runs[at + 1][0], 2 * tag)
                yield sent.Test
        yield from self._return(total, divisor, 2 * tag + 1)
        for row in rows.values():
            row.copy_(total)

    def _return(self, total: torch.Tensor, divisor: int, tag: int) -> Protocol:
        """Send the whole sum from the last run's node to all."""
        place = self._back.index(self._topology.node)
        if place == 0:
            divide(total, divisor)
        else:
            received = self._receive(total, self._back[place - 1], tag)
            yield received.Test
        if place < len(self._back) - 1:
            sent = self._send(total, self._back[place + 1], tag)
            yield sent.Test

    def _peer(self, node: int) -> int:
        return self._topology.ranks_on(node)[self._topology.local_rank]

    def _send(self, values: torch.Tensor, node: int, tag: int) -> MPI.Request:
        return self._comm.Isend(as_bytes(values), self._peer(node), tag)

    def _receive(self, values: torch.Tensor, node: int, tag: int) -> MPI.Request:
        return self._comm.Irecv(as_bytes(values), self._peer(node), tag)


def _rows(group: MpiGroup, count: int, dtype: torch.dtype) -> dict[int, torch.Tensor]:
    """Return the rows of this node's ranks in shared memory."""
    ranks = group.topology.local_ranks
    memory = NodeMemory(group, [count * dtype.itemsize] * len(ranks))
    return {rank: region.view(dtype) for rank, region in zip(ranks, memory.regions, strict=True)}


class HierarchicalExchange(GroupedExchange[MpiGroup]):
    """An Exchange of learners on several nodes, several on some of them."""

    name = "hierarchical"

    def buffer(self, count: int, dtype: torch.dtype, device: torch.device | None = None) -> Buffer:
        """Return a buffer of `count` zeros in shared memory; for a GPU see the exchange `torch`."""
        self._refuse_gpus(device)
        return HierarchicalBuffer(self.group, count, dtype)

    def shared(self, count: int, dtype: torch.dtype) -> torch.Tensor | None:
        """Return zeros, one copy for all learners of the node."""
        return shared_zeros(self.group, count, dtype)
