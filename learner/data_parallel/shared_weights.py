"""Shared weights: one copy per node, of which each learner steps its part.

Every learner has the summed gradients. It takes the optimizer's step for its part of the weights
only, in place, where all learners of the node read them. The step's cost and the optimizer's state
are divided by the learners of the node, and nothing is gathered (ZeRO stage 1: Rajbhandari et al.,
2020, section 5.1; in shared memory instead of messages).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from learner.data_parallel.buckets import BucketLayout
from learner.data_parallel.gradients import Gradients
from learner.errors import UserFault
from learner.exchange.arithmetic import part_of
from learner.exchange.base import Exchange
from learner.exchange.pipeline import wait_until
from learner.exchange.shm import READY, Counters

ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop",
    "Rprop",
)  # fmt: skip
"""Optimizers of torch.optim that step every element by itself."""
WHOLE = ("LBFGS",)
"""Optimizers whose step couples all parameters: every learner takes the whole step."""


def splitting_of(optimizer: torch.optim.Optimizer) -> str:
    """Return how a step may be divided: by `elements`, by `tensors`, or not at all (`none`).

    An optimizer that is not torch's own may couple its parameters (by a norm of all gradients,
    say), so that parts would give other weights: it is not divided.
    """
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim"):
        return "none"
    if kind.__name__ in ELEMENTWISE:
        return "elements"
    return "none" if kind.__name__ in WHOLE else "tensors"


def overlap(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether parameters share a storage, and so perhaps memory."""
    storages = [p.untyped_storage().data_ptr() for p in parameters if p.numel()]
    return len(set(storages)) < len(storages)


@dataclass
class Piece:
    """A part of one parameter that this learner steps."""

    index: int
    """The parameter's number."""
    start: int
    stop: int
    """Elements of the flattened parameter."""
    values: torch.nn.Parameter
    """A view of the shared weights."""
    whole: bool
    shape: torch.Size
    """The parameter's."""


class SharedWeights:
    """The weights of laid-out parameters in the node's shared memory."""

    def __init__(self, gradients: Gradients, exchange: Exchange, splitting: str) -> None:
        assert gradients.layout is not None
        self.parameters = gradients.parameters
        self.layout: BucketLayout = gradients.layout
        self._exchange = exchange
        self._counters = Counters(exchange)
        self._waits = 0
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._flats = [self._share(flat.count, flat.dtype) for flat in self.layout.flats]
        self._views: dict[int, torch.Tensor] = {}
        self._move_in()
        find = self._pieces_of_elements if splitting == "elements" else self._pieces_of_tensors
        self.pieces = {piece.index: piece for piece in find()}
        """This learner's pieces, at most one of each parameter."""

    def _share(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        shared = self._exchange.shared(count, dtype)
        assert shared is not None
        return shared

    def _move_in(self) -> None:
        """Make the parameters views of the shared memory, holding what they hold now."""
        topology = self._exchange.topology
        with torch.no_grad():
            for index, place in self.layout.places.items():
                parameter = self.parameters[index]
                view = place.view(self._flats[place.flat], parameter)
                if topology.local_rank == 0:
                    view.copy_(parameter)
                parameter.data = self._views[index] = view
        self.wait_for_node()

    def wait_for_node(self) -> None:
        """Wait until every learner of this node is here."""
        self._waits += 1
        self._counters.set(READY, self._waits)
        wait_until(lambda: self._counters.reached(READY, self._waits))

    def _pieces_of_elements(self) -> Iterator[Piece]:
        topology = self._exchange.topology
        for index, place in self.layout.places.items():
            if not self.parameters[index].is_contiguous():  # its state has its own memory order
                if index % topology.local_size == topology.local_rank:
                    yield self._piece(index, 0, self.parameters[index].numel())
                continue
            count = self.layout.flats[place.flat].count
            first, last = part_of(0, count, topology.local_rank, topology.local_size)
            start, stop = max(place.start, first), min(place.stop, last)
            if start < stop:
                yield self._piece(index, start - place.start, stop - place.start)

    def _pieces_of_tensors(self) -> Iterator[Piece]:
        """Give each learner whole tensors: the largest first, to the learner that has least."""
        topology = self._exchange.topology
        loads = [0] * topology.local_size
        sizes = {index: self.parameters[index].numel() for index in self.layout.places}
        for index in sorted(sizes, key=lambda i: (-sizes[i], i)):
            owner = loads.index(min(loads))
            loads[owner] += sizes[index]
            if owner == topology.local_rank:
                yield self._piece(index, 0, sizes[index])

    def _piece(self, index: int, start: int, stop: int) -> Piece:
        place, parameter = self.layout.places[index], self.parameters[index]
        if stop - start == parameter.numel():
            return Piece(index, start, stop, parameter, whole=True, shape=parameter.shape)
        flat = self._flats[place.flat][place.start + start : place.start + stop]
        values = torch.nn.Parameter(flat)
        return Piece(index, start, stop, values, whole=False, shape=parameter.shape)

    def attach_gradients(self) -> None:
        """Give each piece its part of its parameter's gradient."""
        for piece in self.pieces.values():
            if piece.whole:
                continue
            grad = self.parameters[piece.index].grad
            flat = None if grad is None else grad.detach().reshape(-1)
            piece.values.grad = None if flat is None else flat[piece.start : piece.stop]

    def adopt(self) -> None:
        """Take over weights that the user's program has moved (`p.data = …`).

        Call it once every learner of the node has moved them.

        Raises:
            UserFault: Their shape, dtype or device has changed.
        """
        for index, view in self._views.items():
            parameter = self.parameters[index]
            if parameter.data_ptr() == view.data_ptr() or not view.numel():
                continue
            if (parameter.shape, parameter.dtype) != (view.shape, view.dtype) or parameter.is_cuda:
                raise UserFault(
                    f"the parameter number {index} of the shape {tuple(view.shape)} became "
                    f"{tuple(parameter.shape)} {parameter.dtype} on {parameter.device} after its "
                    "optimizer was wrapped",
                    hint="bring the model into its last form before ddl.DistributedOptimizer",
                )
            self._adopt(parameter, view, self.pieces.get(index))

    def _adopt(self, parameter: torch.Tensor, view: torch.Tensor, piece: Piece | None) -> None:
        """Copy this learner's part, as the others copy theirs, and share the memory again."""
        with torch.no_grad():
            if piece is not None and piece.whole:
                view.copy_(parameter)
            elif piece is not None:
                part = slice(piece.start, piece.stop)
                view.view(-1)[part].copy_(parameter.reshape(-1)[part])
            parameter.data = view

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """Return shared memory (uint8) for exchanging values between the node's learners."""
        if len(self._scratch) < size_bytes:
            self._scratch = self._share(-(-size_bytes // 64) * 64, torch.uint8)
        return self._scratch

    def move_out(self) -> None:
        """Give every parameter its own memory again."""
        with torch.no_grad():
            for index in self.layout.places:
                self.parameters[index].data = self.parameters[index].detach().clone()
        self._flats.clear()
        self._views.clear()
