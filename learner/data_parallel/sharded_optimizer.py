"""The sharded optimizer: its step, and so its state, is divided over the learners of a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from learner.checkpoint.state_tree import Pieces
from learner.data_parallel.shared_weights import Piece, SharedWeights
from learner.exchange.base import Exchange

State = dict[str, Any]
_GATHER_BYTES = 64 * 1024**2


class ShardedOptimizer:
    """Steps this learner's pieces of the shared weights with the user's own optimizer.

    During a step the optimizer's groups hold pieces instead of parameters; learning rates and all
    other settings stay the optimizer's. Between steps they hold the parameters.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, weights: SharedWeights, exchange: Exchange
    ) -> None:
        self._optimizer = optimizer
        self._weights = weights
        self._exchange = exchange
        self.exchange_s = 0.0
        """Seconds that steps waited for the node since the caller last set it to 0."""
        self._numbers = {id(p): i for i, p in enumerate(weights.parameters)}
        self._stepped_elsewhere = [
            weights.parameters[index]
            for index in weights.layout.places
            if index not in weights.pieces or not weights.pieces[index].whole
        ]
        self._shard_state()

    def step(self) -> None:
        """Step this learner's pieces; on return every weight of the node is stepped."""
        self._weights.attach_gradients()
        self._wait_for_node()  # no weights change before all learners are here
        self._weights.adopt()
        with self._holding_pieces():
            self._optimizer.step()
        self._wait_for_node()
        for parameter in self._stepped_elsewhere:
            torch.autograd.graph.increment_version(parameter)  # as its own step would

    def _wait_for_node(self) -> None:
        started = time.perf_counter()
        self._weights.wait_for_node()
        self.exchange_s += time.perf_counter() - started

    @contextmanager
    def _holding_pieces(self) -> Iterator[None]:
        groups = self._optimizer.param_groups
        held = [group["params"] for group in groups]
        for group, parameters in zip(groups, held, strict=True):
            group["params"] = [p for p in map(self._stepped, parameters) if p is not None]
        try:
            yield
        finally:
            for group, parameters in zip(groups, held, strict=True):
                group["params"] = parameters

    def _stepped(self, parameter: torch.Tensor) -> torch.Tensor | None:
        """Return the part of a parameter that this learner steps: a piece, all of it, or None."""
        index = self._numbers.get(id(parameter))
        if index is None or index not in self._weights.layout.places:
            return parameter  # sparse, or not exchanged: every learner steps its own, equal copy
        piece = self._weights.pieces.get(index)
        return None if piece is None else piece.values

    # State --------------------------------------------------------------------------------------

    def _shard_state(self) -> None:
        """Keep the part of each parameter's state that belongs to this learner's pieces."""
        state = self._optimizer.state
        for index in self._weights.layout.places:
            parameter = self._weights.parameters[index]
            if parameter not in state:
                continue
            whole = state.pop(parameter)
            piece = self._weights.pieces.get(index)
            if piece is not None:
                state[piece.values] = _cut(whole, piece, parameter)

    def load_state_dict(self, state: State) -> None:
        """Load a whole state, as `state_dict` returns it."""
        for piece in self._weights.pieces.values():
            self._optimizer.state.pop(piece.values, None)
        self._optimizer.load_state_dict(state)
        self._shard_state()

    def load_parts(self, state: State, part: Callable[[Any, Piece | None], Any]) -> None:
        """Load this learner's parts of a state.

        Args:
            state: As `state_dict` returns it, perhaps with other values in place of tensors.
            part: Returns the part of a value that belongs to a piece (of the flattened tensor, if
                the value has the parameter's shape), or all of it for None.
        """
        for piece in self._weights.pieces.values():
            self._optimizer.state.pop(piece.values, None)
        self._optimizer.load_state_dict({"state": {}, "param_groups": state["param_groups"]})
        for number, parameter in _numbered(self._optimizer):
            entries, stepped = state["state"].get(number), self._stepped(parameter)
            if entries is not None and stepped is not None:
                of = None if stepped is parameter else self._piece_of(parameter)
                self._optimizer.state[stepped] = {k: part(v, of) for k, v in entries.items()}

    def _piece_of(self, parameter: torch.Tensor) -> Piece:
        return self._weights.pieces[self._numbers[id(parameter)]]

    def pieces_of_state(self) -> State:
        """Return the state with `Pieces` for sharded tensors; the same tree on every learner."""
        return self._whole_state(self._as_pieces)

    def state_dict(self) -> State:
        """Return the whole state on every learner, as the unsharded optimizer would."""
        return self._whole_state(self._gathered)

    def _whole_state(self, entry: Callable[[int, str, Any], Any]) -> State:
        kinds = self._kinds()
        state: dict[int, State] = {}
        for number, parameter in _numbered(self._optimizer):
            index = self._numbers.get(id(parameter), -1)
            if index not in self._weights.layout.places:
                if parameter in self._optimizer.state:
                    state[number] = dict(self._optimizer.state[parameter])
            elif kinds.get(index):
                state[number] = {key: entry(index, key, kind) for key, kind in kinds[index].items()}
        return {"state": state, "param_groups": _groups_of(self._optimizer)}

    def _kinds(self) -> dict[int, dict[str, Any]]:
        """Return for each parameter and key the dtype of a sharded tensor, or a common value."""
        mine: dict[int, dict[str, Any]] = {}
        for index, piece in self._weights.pieces.items():
            entries = self._optimizer.state.get(piece.values, {})
            mine[index] = {
                key: value.dtype if _is_sharded(value, piece) else _Common(value)
                for key, value in entries.items()
            }
        together: dict[int, dict[str, Any]] = {}
        for found in self._exchange.collect(mine):
            for index, entries in found.items():
                together.setdefault(index, entries)
        return together

    def _as_pieces(self, index: int, key: str, kind: Any) -> Any:
        if isinstance(kind, _Common):
            return kind.value
        topology = self._exchange.topology
        parts = []
        if (piece := self._weights.pieces.get(index)) is not None:
            # every node has the whole state, cut in its own way, and gives a part of each tensor
            flat = self._optimizer.state[piece.values][key].detach().reshape(-1)
            count = self._weights.parameters[index].numel()
            first = max(piece.start, count * topology.node // topology.nodes)
            last = min(piece.stop, count * (topology.node + 1) // topology.nodes)
            if first < last:
                parts = [(first, flat[first - piece.start : last - piece.start])]
        return Pieces(tuple(self._weights.parameters[index].shape), kind, parts)

    def _gathered(self, index: int, key: str, kind: Any) -> Any:
        if isinstance(kind, _Common):
            return kind.value
        parameter, piece = self._weights.parameters[index], self._weights.pieces.get(index)
        result = torch.empty(parameter.numel(), dtype=kind)
        step = _GATHER_BYTES // kind.itemsize
        scratch = self._weights.scratch(min(_GATHER_BYTES, len(result) * kind.itemsize))
        for start in range(0, len(result), step):
            stop = min(start + step, len(result))
            if piece is not None and piece.start < stop and piece.stop > start:
                a, b = max(piece.start, start), min(piece.stop, stop)
                flat = self._optimizer.state[piece.values][key].detach().reshape(-1)
                scratch.view(kind)[a - start : b - start] = flat[a - piece.start : b - piece.start]
            self._weights.wait_for_node()
            result[start:stop] = scratch.view(kind)[: stop - start]
            self._weights.wait_for_node()
        return result.view(parameter.shape)


class _Common:
    """A value that is the same for every piece of a parameter, such as a step count."""

    def __init__(self, value: Any) -> None:
        self.value = value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_sharded(value: Any, piece: Piece) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == piece.values.shape


def _cut(whole: State, piece: Piece, parameter: torch.Tensor) -> State:
    """Return the state of a piece, cut from that of its parameter."""
    if piece.whole:
        return whole
    return {
        key: value.detach().reshape(-1)[piece.start : piece.stop].clone()
        if isinstance(value, torch.Tensor) and value.shape == parameter.shape
        else value
        for key, value in whole.items()
    }


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the parameters with their numbers in a state dict."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    yield from enumerate(parameters)


def _groups_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the groups as a state dict has them: numbers instead of parameters."""
    groups, number = [], 0
    for group in optimizer.param_groups:
        packed = {key: value for key, value in group.items() if key != "params"}
        packed["params"] = list(range(number, number + len(group["params"])))
        number += len(group["params"])
        groups.append(packed)
    return groups
