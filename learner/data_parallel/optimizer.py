"""Any torch optimizer, trained with all learners: gradients averaged, the step sharded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from learner.data_parallel.buckets import BUCKET_BYTES
from learner.data_parallel.consistency import check_same_parameters
from learner.data_parallel.gradients import Gradients
from learner.data_parallel.local_sgd import WeightAverage
from learner.data_parallel.sharded_optimizer import ShardedOptimizer
from learner.data_parallel.shared_weights import SharedWeights, overlap, splitting_of
from learner.errors import UserFault
from learner.exchange.base import Exchange

SPLITTINGS = ("auto", "elements", "tensors", "none")


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer; use it in its place.

    When `backward()` returns, every gradient is the mean over the learners; `step()` then gives all
    learners the same weights. Learners that share a node's memory (exchange `shm` or
    `hierarchical`) also share one copy of the weights, and each steps its part of it: change
    weights only through the optimizer, or pass shared_weights=False.

    Args:
        optimizer: Any torch optimizer; its parameters must be the same on every learner.
        exchange: Connects the learners.
        parameters: Those whose gradients are exchanged; the optimizer's by default.
        names: The parameters' names by identity, for messages.
        average: Take the mean over the learners; False: the sum (with at_end=False only).
        at_end: Exchange at the end of every backward pass; False: when `finish()` is called.
        average_every: Local SGD (Stich, Local SGD Converges Fast and Communicates Little, 2019): no
            gradient is exchanged; instead the weights are averaged every so many steps, and with
            them the optimizer's state (Yu et al., Linear Speedup Analysis of Communication
            Efficient Momentum SGD, 2019).
        shared_weights: Share one copy of the weights where learners share memory.
        splitting: How a step may be divided over a node's learners: `elements`, `tensors`, `none`,
            or `auto`, which knows torch's own optimizers and takes `none` for others.
        bucket_bytes: See learner.data_parallel.buckets.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        exchange: Exchange,
        *,
        parameters: Iterable[torch.nn.Parameter] | None = None,
        names: dict[int, str] | None = None,
        average: bool = True,
        at_end: bool = True,
        average_every: int = 1,
        shared_weights: bool = True,
        splitting: str = "auto",
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        # Optimizer.__init__ is not called: groups, state and settings are the wrapped optimizer's.
        if splitting not in SPLITTINGS:
            raise UserFault(
                f"splitting is {splitting!r}", hint=f"it is one of {', '.join(SPLITTINGS)}"
            )
        if at_end and not average:  # a second pass would add its gradients to every learner's sum
            raise UserFault(
                "sums of gradients (average=False) can't be exchanged by every backward pass",
                hint="say at_end=False, too, and call finish() once before each step",
            )
        if average_every < 1:
            raise UserFault(f"average_every is {average_every}", hint="1 averages every gradient")
        self.wrapped = optimizer
        self.exchange = exchange
        self._splitting = splitting_of(optimizer) if splitting == "auto" else splitting
        self._shares = shared_weights and average_every == 1 and self._splitting != "none"
        self._sharded: ShardedOptimizer | None = None
        self._weights: SharedWeights | None = None
        self._closed = False
        self.average_every = average_every
        self._average = WeightAverage(exchange, average_every) if average_every > 1 else None
        known = names or {}
        own = [p for group in optimizer.param_groups for p in group["params"]]
        distinct = dict.fromkeys(own if parameters is None else parameters)
        every = {p: known.get(id(p), f"number {i}") for i, p in enumerate(distinct)}
        check_same_parameters(every.keys(), every.values(), exchange)
        exchange.broadcast(every)
        exchanged = [p for p in every if p.requires_grad]
        texts = [every[p] for p in exchanged]
        self.gradients = Gradients(
            exchanged, exchange, average=average, at_end=at_end,
            names=texts, bucket_bytes=bucket_bytes,
        )  # fmt: skip
        self._left_out = {
            known.get(id(p), f"number {i}"): p
            for i, p in enumerate(dict.fromkeys(own))
            if parameters is None and exchange.size > 1 and not p.requires_grad
        }
        if self._average is not None or exchange.size == 1:
            self.gradients.disable()

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped optimizer that this one lacks."""
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    _step_supports_amp_scaling = False
    """torch.amp.GradScaler unscales gradients itself, instead of leaving it to a fused step, whose
    scale it would set on this object and not on the wrapped one."""

    # The interface of torch optimizers
    # --------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the wrapped optimizer's groups."""
        return self.wrapped.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """Return the wrapped optimizer's state; of sharded steps, this learner's part."""
        return self.wrapped.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the wrapped optimizer's defaults."""
        return self.wrapped.defaults

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.wrapped!r})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self.wrapped.zero_grad(set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take the optimizer's step; on return all learners of the node have all new weights.

        A closure runs once, before the step, unless the optimizer calls it itself (LBFGS).
        """
        self._check()
        self._shard()
        if self._sharded is None:
            loss: Any = self.wrapped.step(closure) if closure else self.wrapped.step()
        else:
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._sharded.step()
        if self._average is not None:
            self._average.after_step(self.gradients.parameters, self.wrapped.state)
        return loss

    def _check(self) -> None:
        """Refuse a step that would give the learners different weights."""
        gradients = self.gradients
        if gradients.interrupted:
            raise UserFault(
                "the last backward pass ended with an error, and its gradients were not exchanged",
                hint="let the error end this learner: the others wait for it",
            )
        alone = self.exchange.size == 1 or self._average is not None
        local = gradients.unexchanged or gradients.layout is None
        if not alone and local and any(p.grad is not None for p in gradients.parameters):
            raise UserFault(
                "the gradients were not exchanged since they changed",
                hint="take the last backward pass before a step outside no_sync(); or call "
                "finish() on this DistributedOptimizer first",
            )
        for name, parameter in self._left_out.items():
            if parameter.grad is not None:
                raise UserFault(
                    f"the parameter {name} has a gradient that the learners don't exchange: it "
                    "was frozen when its optimizer was wrapped",
                    hint="unfreeze it before wrapping; or close() this DistributedOptimizer, "
                    "unfreeze, and wrap again",
                )

    def _shard(self) -> None:
        """Share the weights, once the first backward pass has fixed the layout."""
        if self._weights is not None or not self._shares or self.gradients.layout is None:
            return  # done already, never to be done, or too early
        # equal on every learner: some nodes may have one learner only
        several = self.exchange.size > self.exchange.topology.nodes
        self._shares = several and self.exchange.shared(0, torch.uint8) is not None
        if overlap(self.gradients.parameters):
            self._shares = False
        if self._shares:
            self._weights = SharedWeights(self.gradients, self.exchange, self._splitting)
            self._sharded = ShardedOptimizer(self.wrapped, self._weights, self.exchange)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, on every learner. Called by every learner."""
        return self._sharded.state_dict() if self._sharded else self.wrapped.state_dict()

    def pieces_of_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint that all learners write: sharded, not gathered."""
        state = self._sharded.pieces_of_state() if self._sharded else self.wrapped.state_dict()
        return {
            **state,
            "order": list(self.gradients.layout.places) if self.gradients.layout else [],
        }

    def shard_as(self, order: Sequence[int]) -> ShardedOptimizer | None:
        """Share the weights before the first backward pass, if the first step would share them.

        Called by every learner. `order` comes from `pieces_of_state` of an earlier attempt: with it
        a learner knows its part of that state, and need not read all of it.
        """
        if order:
            self.gradients.arrange(order)
        self._shard()
        return self._sharded

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a whole state."""
        if self._sharded:
            self._sharded.load_state_dict(state_dict)
        else:
            self.wrapped.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse new parameters: the learners' buffers are laid out for the existing ones."""
        raise UserFault(
            f"a group of {len(list(param_group['params']))} parameters can't be added to a "
            "DistributedOptimizer",
            hint="add it to the optimizer before wrapping that",
        )

    # Distributed training
    # ---------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients on this learner; the next backward pass outside exchanges them."""
        before, self.gradients.paused = self.gradients.paused, True
        try:
            yield
        finally:
            self.gradients.paused = before

    def finish(self) -> None:
        """Exchange the gradients now, where `at_end` is False. Called by every learner."""
        self.gradients.finish()

    @property
    def settled(self) -> bool:
        """Return whether all learners have the same weights: always, except in local SGD."""
        return self._average is None or self._average.settled

    def settle(self) -> None:
        """Average the weights now (local SGD). Called by every learner."""
        if self._average is not None and not self._average.settled:
            self._average.average(self.gradients.parameters, self.wrapped.state)

    def read_exchange_s(self) -> float:
        """Return the seconds spent in the exchange since the last call."""
        spent_s, self.gradients.exchange_s = self.gradients.exchange_s, 0.0
        if self._average is not None:
            spent_s, self._average.exchange_s = self._average.exchange_s, 0.0
        if self._sharded is not None:
            spent_s, self._sharded.exchange_s = spent_s + self._sharded.exchange_s, 0.0
        return spent_s

    def close(self) -> None:
        """Give this learner its own weights and whole optimizer state. Called by every learner.

        The wrapped optimizer is then an ordinary one again, which may be wrapped again.
        """
        if self._closed:
            return
        self._closed = True
        state = self._sharded.state_dict() if self._sharded else None
        if self._weights is not None:
            self._weights.move_out()
        self.gradients.free()
        if self._average is not None:
            self._average.free()
        self._weights = self._sharded = None
        self._shares = False
        if state is not None:
            self.wrapped.load_state_dict(state)
