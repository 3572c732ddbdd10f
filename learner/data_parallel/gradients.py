"""Gradients in an exchange's buffers, summed while the backward pass still runs.

A hook on each parameter moves its fresh gradient into the buffer and makes `.grad` a view of it
(one copy while the gradient is in the cache; adding to a cleared view would touch it three times).
When a bucket is complete its exchange begins. Every later hook lets the exchange progress without
waiting; the end of the backward pass waits for the rest (Li et al., PyTorch Distributed:
Experiences on Accelerating Data Parallel Training, 2020, section 3.2).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from learner.data_parallel.buckets import BUCKET_BYTES, BucketLayout, lay_out
from learner.errors import UserFault
from learner.exchange.base import Buffer, Exchange

NOTHING, DENSE, SPARSE = 0.0, 1.0, 2.0
_EXCHANGED: MutableMapping[torch.Tensor, bool] = WeakTensorKeyDictionary()
"""The parameters whose gradients some instance exchanges."""
_NUMBERS = itertools.count()
_AT_END: list[Gradients] = []
"""The instances that exchange at the end of the running backward pass."""


def _finish_all() -> None:
    """Exchange at the end of a backward pass; several optimizers in the same order everywhere.

    The first hook of each may run in another order on another learner.
    """
    _AT_END.sort(key=lambda gradients: gradients.number)
    while _AT_END:
        _AT_END.pop(0).finish()


class Gradients:
    """The gradients of parameters (distinct, all trainable), by their number in the given sequence.

    After `finish` a parameter that any learner used has the sum (or mean) on every learner; one
    that no learner used has None, as in one process: the optimizer skips it.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        exchange: Exchange,
        *,
        average: bool,
        at_end: bool,
        names: Sequence[str] = (),
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self.parameters = list(parameters)
        self.number = next(_NUMBERS)
        """How many instances were made before, the same on every learner."""
        self.unexchanged = False
        """Whether `no_sync` passes have left gradients that are not exchanged."""
        self.layout: BucketLayout | None = None
        """Made at the end of the first backward pass, which shows order and kinds."""
        self.buffers: list[Buffer] = []
        self.exchange_s = 0.0
        """Seconds spent in the exchange since the caller last set it to 0."""
        self.paused = False
        """While set, gradients are added up on this learner alone."""
        self._exchange = exchange
        self._divisor = exchange.size if average else 1
        self._at_end = at_end
        self._names = list(names)
        self._bucket_bytes = bucket_bytes
        self._order: dict[int, None] = {}
        self._views: dict[int, torch.Tensor] = {}
        self._given: dict[int, torch.Tensor] = {}
        """The tensors given to `.grad`: views of the same memory, which a user may replace."""
        self._used: Buffer | None = None
        self._arrived: set[int] = set()
        self._missing: list[int] = []
        self._next = 0
        self._stopped = False
        self._claim_parameters()
        self._handles = [
            p.register_post_accumulate_grad_hook(self._hook(i))  # type: ignore[no-untyped-call]
            for i, p in enumerate(self.parameters)
        ]

    def _claim_parameters(self) -> None:
        """Claim the parameters; refuse those that another DistributedOptimizer exchanges."""
        for index, parameter in enumerate(self.parameters):
            if parameter in _EXCHANGED:
                raise UserFault(
                    f"the parameter {self.name(index)} already belongs to a DistributedOptimizer",
                    hint="close() that before wrapping another optimizer of the same parameters",
                )
        _EXCHANGED.update(dict.fromkeys(self.parameters, True))

    def disable(self) -> None:
        """Stop exchanging, and leave the gradients to ordinary execution."""
        self._remove_hooks()
        self.paused = self._stopped = True

    @property
    def interrupted(self) -> bool:
        """Return whether the last backward pass ended with an error."""
        return self in _AT_END

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def name(self, index: int) -> str:
        """Return a parameter's name, for messages."""
        return self._names[index] if self._names else f"number {index}"

    # In the backward pass -----------------------------------------------------------------------

    def _hook(self, index: int) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if self.layout is None:
                self._order[index] = None
            else:
                self._attach(index)
            if self.paused:
                self.unexchanged = True
                return
            if self._at_end and self not in _AT_END:
                _AT_END.append(self)
                engine: Any = torch.autograd.Variable._execution_engine
                engine.queue_callback(_finish_all)
            if self.layout is not None:
                self._arrive(index)

        return hook

    def _attach(self, index: int) -> None:
        """Copy a parameter's gradient into its place, unless it is there."""
        view, parameter = self._views.get(index), self.parameters[index]
        grad = parameter.grad
        if view is None or grad is None:
            return
        if grad is not self._given[index] or grad.data_ptr() != view.data_ptr():
            with torch.no_grad():
                view.copy_(grad.to_dense() if grad.is_sparse else grad)
            self._give(index)

    def _give(self, index: int) -> None:
        """Make `.grad` the parameter's place in the buffer."""
        view, given = self._views[index], self._given.get(index)
        if given is None or given.data_ptr() != view.data_ptr():  # the user gave it other memory
            given = self._given[index] = view.detach()
        self.parameters[index].grad = given

    def _arrive(self, index: int) -> None:
        if self.layout is None or index not in self.layout.places:
            return
        bucket = self.layout.places[index].bucket
        if index in self._arrived:
            if bucket < self._next:
                raise UserFault(
                    f"the parameter {self.name(index)} got a gradient twice in one backward pass",
                    hint="use non-reentrant activation checkpointing, or no_sync() for all "
                    "backward passes but the last",
                )
            return
        self._arrived.add(index)
        self._missing[bucket] -= 1
        started = time.perf_counter()
        self._begin_whole()
        for buffer in self.buffers:
            buffer.progress()
        self.exchange_s += time.perf_counter() - started

    def _begin_whole(self) -> None:
        """Begin the exchange of complete buckets, in their order."""
        assert self.layout is not None
        buckets = self.layout.buckets
        while self._next < len(buckets) and self._missing[self._next] == 0:
            bucket = buckets[self._next]
            self.buffers[bucket.flat].begin(bucket.start, bucket.stop, self._divisor)
            self._next += 1

    # At its end ---------------------------------------------------------------------------------

    def finish(self) -> None:
        """Exchange what is not exchanged yet, and wait. Called by every learner."""
        if self._stopped:
            return
        started = time.perf_counter()
        if self.layout is None:
            self._lay_out()
        assert self.layout is not None and self._used is not None
        for index in self.layout.places:
            if index not in self._arrived:
                self._fill(index)
        self._missing = [0] * len(self._missing)
        self._begin_whole()
        kinds = [NOTHING if p.grad is None else DENSE for p in self.parameters]
        self._used.values.copy_(torch.tensor(kinds))
        self._used.begin(0, len(kinds))
        for buffer in [*self.buffers, self._used]:
            buffer.wait()
        self._take_results(self._used.values.tolist())
        self._reset()
        self.exchange_s += time.perf_counter() - started

    def _fill(self, index: int) -> None:
        """Fill the place of a parameter that this pass did not reach."""
        if self.parameters[index].grad is None:
            self._views[index].zero_()
        else:  # from an earlier pass
            self._attach(index)

    def _take_results(self, used: list[float]) -> None:
        assert self.layout is not None
        for index, parameter in enumerate(self.parameters):
            if used[index] == NOTHING:
                parameter.grad = None
            elif index in self.layout.places:
                self._give(index)
            else:
                parameter.grad = _sum_sparse(parameter, self._exchange, self._divisor)

    def _reset(self) -> None:
        assert self.layout is not None
        self.unexchanged = False
        self._arrived.clear()
        self._missing = [len(bucket.parameters) for bucket in self.layout.buckets]
        self._next = 0

    def _lay_out(self) -> None:
        """Fix the layout, equal on every learner: rank 0's order; sparse anywhere is sparse."""
        grads = [p.grad for p in self.parameters]
        kinds = [NOTHING if g is None else SPARSE if g.is_sparse else DENSE for g in grads]
        everyone = self._exchange.gather(kinds)
        dense = {i for i in range(len(kinds)) if not (everyone[:, i] == SPARSE).any()}
        first: list[int] = self._exchange.share(list(self._order))
        order = dict.fromkeys([*first, *reversed(range(len(kinds)))])
        self._make([i for i in order if i in dense])

    def arrange(self, order: Sequence[int]) -> None:
        """Fix the layout before the first backward pass, from an earlier `layout.places`."""
        known = set(order) <= set(range(len(self.parameters)))
        if self.layout is None and not self._stopped and known:
            self._make(order)

    def _make(self, order: Sequence[int]) -> None:
        self.layout = lay_out(self.parameters, order, self._bucket_bytes)
        self.buffers = [
            self._exchange.buffer(flat.count, flat.dtype, flat.device) for flat in self.layout.flats
        ]
        self._used = self._exchange.buffer(len(self.parameters), torch.float32)
        for index, place in self.layout.places.items():
            values = self.buffers[place.flat].values
            self._views[index] = place.view(values, self.parameters[index])
            self._given[index] = self._views[index].detach()
        self._reset()

    def free(self) -> None:
        """Remove the hooks and free the memory; the gradients are gone."""
        self._remove_hooks()
        self._stopped = True
        if self in _AT_END:
            _AT_END.remove(self)
        for parameter in self.parameters:
            parameter.grad = None
            _EXCHANGED.pop(parameter, None)
        self._views.clear()
        self._given.clear()
        for buffer in [*self.buffers, *([self._used] if self._used else [])]:
            buffer.free()


def _sum_sparse(parameter: torch.Tensor, exchange: Exchange, divisor: int) -> torch.Tensor:
    """Return the sum of the learners' gradients of one parameter, divided, sparse (COO).

    A learner whose gradient is None adds nothing. Rows that several learners have are added in
    rank order.
    """
    grad = parameter.grad
    mine = None
    if grad is not None:
        sparse = (grad if grad.is_sparse else grad.detach().to_sparse(1)).coalesce()
        mine = (sparse.indices().cpu(), sparse.values().cpu(), sparse.sparse_dim())
    parts = [part for part in exchange.collect(mine) if part is not None]
    total = torch.sparse_coo_tensor(
        torch.cat([indices for indices, _, _ in parts], dim=1),
        torch.cat([values for _, values, _ in parts]),
        parameter.shape,
        device=parameter.device,
        check_invariants=False,
    ).coalesce()
    if divisor != 1:
        total.values().div_(divisor)
    return total
