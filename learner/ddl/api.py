"""The functions of `learner.ddl`: join, broadcast, sum, divide samples, wrap an optimizer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from learner.data_parallel.consistency import check_same_parameters
from learner.data_parallel.optimizer import DistributedOptimizer as _Optimizer
from learner.ddl import reducer as _all
from learner.ddl.abort import AbortOnError
from learner.ddl.gpu_assignment import choose, detect_gpus
from learner.ddl.reducer import Reducer
from learner.ddl.samples import LearnerSamples
from learner.errors import UserFault
from learner.exchange import Exchange, find_group, make_exchange
from learner.exchange.single import SingleExchange
from learner.exchange.topology import check_mode
from learner.model.trainable import refuse_batch_statistics
from learner.system.memory import keep_freed_memory

if TYPE_CHECKING:
    from learner.checkpoint import api
    from learner.checkpoint.writer_process import WriterProcess

__all__ = [
    "CHECKPOINT_VARIABLE", "SWITCH", "Assigned", "Checkpoints", "DistributedOptimizer", "abort",
    "allreduce_n", "allreduce_n_", "barrier", "broadcast_object", "broadcast_parameters", "empty_n",
    "exchange", "init", "is_initialized", "local_gpuid", "local_rank", "local_size", "mode",
    "partition", "rank", "scale_learning_rate", "shutdown", "size",
]  # fmt: skip
SWITCH = "DDL"
"""Set to `off`, this variable makes `init` continue as an ordinary single process."""
CHECKPOINT_VARIABLE = "CHECKPOINT_DIR"
"""Set by dlctl. If set, `init` starts a process that writes checkpoints."""
Tensors = TypeVar("Tensors", Sequence[torch.Tensor], Mapping[str, torch.Tensor])
Value = TypeVar("Value")


@dataclass(frozen=True)
class Assigned:
    """This learner's place, as `init` found it."""

    rank: int
    size: int
    local_rank: int
    """This learner's number among those of its node."""
    local_size: int
    local_gpuid: int | None
    """The GPU of this learner, or None."""


@dataclass
class _Joined:
    exchange: Exchange
    assigned: Assigned
    reducer: Reducer
    hook: AbortOnError
    names: WeakTensorKeyDictionary = field(default_factory=WeakTensorKeyDictionary)
    """The parameters' names, for messages. (An id may be reused, on one learner only.)"""
    optimizers: list[_Optimizer] = field(default_factory=list)
    writer: WriterProcess | None = None
    """For the first `Checkpoints`."""


_joined: list[_Joined] = []


def init(
    mode: str = "auto",
    *,
    user_gpuid: int | None = None,
    pci: bool = True,
    exchange: str = "auto",
    distributed: bool | None = None,
) -> Assigned:
    """Join the other learners. Call it once, before everything else of this module.

    Args:
        mode: The expected topology, learners per node x nodes (`4x2`); `auto` accepts any.
        user_gpuid: The GPU that this learner prefers.
        pci: Number GPUs by their place on the PCI bus.
        exchange: `auto`, `shm`, `mpi`, `hierarchical` or `torch`.
        distributed: False continues as an ordinary single process, whatever started it; by default
            the variable DDL=off does that.

    Raises:
        UserFault: Called twice, the topology is not `mode`, or nothing connects the learners.
    """
    if _joined:
        raise UserFault("ddl.init() was called before", hint="ddl.shutdown() undoes it")
    if distributed is None:
        distributed = os.environ.get(SWITCH, "").lower() not in ("off", "0", "no", "false")
    keep_freed_memory()
    hook = AbortOnError()
    writer = _start_writer()
    group = find_group() if distributed else None
    hook.group = members = group or SingleExchange()
    topology = members.topology
    check_mode(mode if distributed else "auto", topology)

    requests = members.collect(detect_gpus(user_gpuid, pci=pci))
    gpu = choose([requests[rank] for rank in topology.local_ranks], topology.local_rank)
    if gpu is not None:
        torch.cuda.set_device(gpu)
    joined = make_exchange(group, exchange, gpu=gpu is not None)
    assigned = Assigned(joined.rank, joined.size, topology.local_rank, topology.local_size, gpu)
    _joined.append(_Joined(joined, assigned, Reducer(joined), hook, writer=writer))
    return assigned


def _start_writer() -> WriterProcess | None:
    """Start the process that writes checkpoints, if any are expected, before MPI and CUDA start."""
    if CHECKPOINT_VARIABLE not in os.environ:
        return None
    from learner.checkpoint.writer_process import WriterProcess

    return WriterProcess()


def shutdown() -> None:
    """Leave the other learners, once all have come here. Weights stay as they are."""
    while _joined:
        state = _joined.pop()
        for optimizer in state.optimizers:
            optimizer.close()
        if state.writer is not None:
            state.writer.close()
        state.reducer.free()
        state.exchange.close()
        state.hook.remove()


def abort(code: int = 1) -> None:
    """End all learners now. An uncaught error does that by itself; sys.exit() does not."""
    sys.stdout.flush()
    _state().exchange.abort(code)
    sys.exit(code)


def is_initialized() -> bool:
    """Return whether `init` was called."""
    return bool(_joined)


def rank() -> int:
    """Return this learner's number, from 0."""
    return _state().assigned.rank


def size() -> int:
    """Return the number of learners."""
    return _state().assigned.size


def local_rank() -> int:
    """Return this learner's number among those of its node, from 0."""
    return _state().assigned.local_rank


def local_size() -> int:
    """Return the number of learners on this node."""
    return _state().assigned.local_size


def local_gpuid() -> int | None:
    """Return the GPU that `init` assigned, or None."""
    return _state().assigned.local_gpuid


def mode() -> str:
    """Return the topology: learners per node x nodes (`4x2`)."""
    return _state().exchange.topology.mode


def exchange() -> str:
    """Return the name of the exchange in use."""
    return _state().exchange.name


def barrier() -> None:
    """Wait until every learner is here."""
    _state().exchange.barrier()


def broadcast_parameters(
    parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[torch.Tensor],
) -> None:
    """Replace every parameter (and a module's buffers) by rank 0's."""
    state = _state()
    if isinstance(parameters, torch.nn.Module):
        if state.exchange.size > 1 and not torch.distributed.is_initialized():
            refuse_batch_statistics(parameters)
        named = dict([*parameters.named_parameters(), *parameters.named_buffers()])
    elif isinstance(parameters, Mapping):
        named = dict(parameters)
    else:
        named = {f"number {i}": tensor for i, tensor in enumerate(parameters)}
    check_same_parameters(named.values(), named, state.exchange)
    if isinstance(parameters, (torch.nn.Module, Mapping)):
        state.names.update({tensor: name for name, tensor in named.items()})
    state.exchange.broadcast(named.values())


def broadcast_object(value: Value) -> Value:
    """Return rank 0's value (plain Python; small)."""
    shared: Value = _state().exchange.share(value)
    return shared


@overload
def allreduce_n(
    tensors: Mapping[str, torch.Tensor], op: str = "sum", mpi: bool = False, check: float = 0.0
) -> dict[str, torch.Tensor]: ...
@overload
def allreduce_n(
    tensors: Sequence[torch.Tensor], op: str = "sum", mpi: bool = False, check: float = 0.0
) -> list[torch.Tensor]: ...
def allreduce_n(tensors: Any, op: str = "sum", mpi: bool = False, check: float = 0.0) -> Any:
    """Return N new tensors: the sum or mean of each over the learners, in one operation.

    Args:
        tensors: A sequence, or a mapping from names; the same shapes and dtypes on every learner.
        op: `sum` or `avg`.
        mpi: Use MPI_Allreduce alone, as a baseline.
        check: If more than 0, compare with MPI_Allreduce; the largest relative error allowed.

    Raises:
        UserFault: `op` is unknown, learners give different tensors, or an error is over `check`;
            then the worst tensor is named.
    """
    values, names = _listed(tensors)
    state, divisor = _state(), _divisor(op)
    state.reducer.agree(values, names, f"op={op!r} mpi={mpi} check={check > 0}")
    if mpi:
        results = list(_plain(values, divisor))
    else:
        results = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in values]
        state.reducer.reduce(values, results, divisor)
    if check > 0:
        _all.check_against(results, list(_plain(values, divisor)), names, check)
    if isinstance(tensors, Mapping):
        named = dict(zip(names, results, strict=True))
        return {name: named[name] for name in tensors}
    return results


def allreduce_n_(tensors: Sequence[torch.Tensor], op: str = "sum") -> None:
    """Replace N tensors by their sum or mean; those of `empty_n` are summed in place."""
    divisor = _divisor(op)
    held = _all.held_set(tensors)
    if held is not None:
        held.reduce(divisor)
    else:
        reducer, (values, names) = _state().reducer, _listed(tensors)
        reducer.agree(values, names, f"op={op!r} in place")
        reducer.reduce(values, values, divisor)


def empty_n(
    shapes: Iterable[Sequence[int]], dtype: torch.dtype = torch.float32, device: Any = None
) -> list[torch.Tensor]:
    """Return N tensors in memory that the exchange works on in place; for `allreduce_n_`."""
    like = [torch.empty(tuple(shape), dtype=dtype, device=device) for shape in shapes]
    state = _state()
    state.reducer.agree(*_listed(like), "empty_n")
    return _all.empty_set(state.exchange, like)[0]


def scale_learning_rate(target: Any) -> Any:
    """Multiply a learning rate, or those of all groups of an optimizer, by the number of learners.

    With the same batch on each learner the global batch grows with their number, and so must the
    rate (Goyal et al., Accurate, Large Minibatch SGD, 2017). Returns the number, or the optimizer.

    Raises:
        UserFault: The optimizer has a scheduler already, which remembers the old rates.
    """
    if isinstance(target, (int, float)):
        return target * size()
    if any("initial_lr" in group for group in target.param_groups):
        raise UserFault(
            "this optimizer has a learning-rate scheduler already, which would undo the scaling",
            hint="call scale_learning_rate before the scheduler is made",
        )
    for group in target.param_groups:
        group["lr"] = group["lr"] * size()
    return target


def partition(
    dataset: Any, *, seed: int = 0, uneven: str = "pad", shuffle: bool = True
) -> LearnerSamples:
    """Return this learner's part of a map-style dataset: no sample is in two parts.

    If the samples don't divide evenly, `pad` repeats some and `drop` leaves some out, so that every
    learner has equally many. Call `.set_epoch(n)` for another order.
    """
    return LearnerSamples(dataset, rank(), size(), seed=seed, uneven=uneven, shuffle=shuffle)


def Checkpoints(  # a class to callers; imported late, because it needs h5py
    directory: str | Path, keep: int = 2, *, keep_every_steps: int | None = None
) -> api.Checkpoints:
    """Return the checkpoints of all learners in a directory; see learner.checkpoint.api."""
    from learner.checkpoint import api

    state = _state()
    writer, state.writer = state.writer, None
    return api.Checkpoints(
        directory, keep, keep_every_steps=keep_every_steps, learners=state.exchange, writer=writer
    )


class DistributedOptimizer(_Optimizer):
    """An optimizer that trains with all learners; see learner.data_parallel.optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        state = _state()
        names = {id(t): name for t, name in state.names.items()}  # type: ignore[no-untyped-call]
        super().__init__(optimizer, state.exchange, names=names, **options)
        state.optimizers.append(self)

    def close(self) -> None:
        """Give this learner its own weights and state; see learner.data_parallel.optimizer."""
        super().close()
        for state in _joined:
            if self in state.optimizers:
                state.optimizers.remove(self)


def _state() -> _Joined:
    if not _joined:
        raise UserFault("ddl.init() was not called", hint="call it first")
    return _joined[-1]


def _divisor(op: str) -> int:
    if op not in ("sum", "avg"):
        raise UserFault(f"op is {op!r}", hint="allowed are 'sum' and 'avg'")
    return size() if op == "avg" else 1


def _listed(tensors: Any) -> tuple[list[torch.Tensor], list[str]]:
    if isinstance(tensors, Mapping):  # learners may have made it in another order
        names = sorted(tensors)
        return [tensors[name] for name in names], names
    values = list(tensors)
    return values, [f"number {i}" for i in range(len(values))]


def _plain(values: Sequence[torch.Tensor], divisor: int) -> Iterable[torch.Tensor]:
    return _all.flattened(values, lambda flat: _state().exchange.plain_sum(flat, divisor))
