"""The computations of both built-in loops: forward pass, loss, metrics, and validation."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from learner.checkpoint.rng import preserved
from learner.data.classes import count_classes
from learner.data.sampling import batch_count, fetch, share_of_batch, to_device
from learner.errors import UserFault
from learner.exchange import Group
from learner.export.inputs import batch_size, take
from learner.model.user_model import Parts

_TIMES = (1, 2, 3)
"""How often samples come, to tell a sum from a mean. (A contrastive loss may double as a sum does,
but not treble.)"""

_MEAN = 1
"""ATen's number for `reduction="mean"`, which the nodes of torch's own losses have kept."""


class HaltedInValidation(Exception):
    """A halt came during validation: a resume repeats the end of the epoch."""


class Evaluation:
    """The user's model, loss and metrics on one device."""

    def __init__(self, parts: Parts, device: torch.device, learners: int = 1) -> None:
        self._parts = parts
        self._device = device
        self._learners = learners
        self._checked = learners == 1
        self.names = ("loss", *parts.metrics)
        """The names of the values that `sums` returns."""

    def forward(self, batch: tuple[tuple[Any, ...], Any]) -> tuple[Any, Any]:
        """Return the model's outputs and the targets for a batch of (inputs, targets)."""
        inputs, targets = to_device(batch, self._device)
        try:
            return self._parts.model(*inputs), targets
        except Exception as error:
            _name_layer(error, self._parts.model)
            raise

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return the mean loss over the batch.

        Raises:
            UserFault: the user's loss returned something other than one number.
        """
        loss = self._parts.loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UserFault(
                f"the loss returned {shape}, not a tensor with one element",
                hint="it must be the mean over the batch",
            )
        if not self._checked and loss.requires_grad:
            self._check_mean(loss, outputs, targets)
        return loss

    def _check_mean(self, loss: torch.Tensor, outputs: Any, targets: Any) -> None:
        """Refuse a sum: a mean over a few samples is the same if each comes several times.

        The user's loss is called again only if autograd shows no mean: it may count its calls.

        Raises:
            UserFault: the loss grows with the batch.
        """
        if (batch_size((targets,)) or 0) < 2:  # a single row could be anything
            return
        self._checked = True
        if _has_mean(loss, outputs):
            return
        try:
            with preserved(self._device), torch.no_grad():
                batches = [take((targets, outputs), [0, 1] * times) for times in _TIMES]
                probe = copy.deepcopy(self._parts.loss)
                once, *more = (float(probe(ours, theirs)) for theirs, ours in batches)
        except Exception:  # the loss takes no such batch: nobody knows
            return
        if once and np.allclose(more, [n * once for n in _TIMES[1:]], rtol=1e-3, atol=0):
            raise UserFault(
                "the loss is a sum over the batch's samples: the built-in loop weights each "
                f"learner's gradient as that of a mean, so {self._learners} learners would take "
                "smaller steps than one",
                hint='return the mean over the batch (reduction="mean"); the same steps need the '
                "learning rate times the batch size",
            )

    def sums(self, loss: torch.Tensor, outputs: Any, targets: Any, samples: int) -> list[float]:
        """Return the sums of loss and metrics over the batch's samples, in the order of `names`."""
        with torch.no_grad():
            means = [float(f(outputs, targets)) for f in self._parts.metrics.values()]
        return [value * samples for value in (float(loss.detach()), *means)]

    def classes(self) -> int | None:
        """Return among how many classes the model chooses, if its loss and its labels tell."""
        loss, functional = self._parts.loss, torch.nn.functional
        of_classes = isinstance(loss, (torch.nn.CrossEntropyLoss, torch.nn.NLLLoss))
        if of_classes or loss is functional.cross_entropy or loss is functional.nll_loss:
            with contextlib.suppress(Exception):  # of a dataset of the user's own
                return count_classes(self._parts.train)
        return None

    def validate(
        self, batch_size: int, exchange: Group, halted: Callable[[], bool]
    ) -> dict[str, float]:
        """Return loss and metrics of the validation data; keep the random states unchanged.

        Raises:
            HaltedInValidation: any learner got a halt.
        """
        model = self._parts.model
        with preserved(self._device), torch.no_grad():
            model.eval()
            totals, samples = [0.0] * len(self.names), 0
            for sums, count in self._validation_batches(batch_size, exchange, halted):
                totals = [a + b for a, b in zip(totals, sums, strict=True)]
                samples += count
        return {
            f"validation_{name}": total / samples
            for name, total in zip(self.names, totals, strict=True)
        }

    def _validation_batches(
        self, size: int, exchange: Group, halted: Callable[[], bool]
    ) -> Iterator[tuple[list[float], int]]:
        dataset = self._parts.validation
        order = np.arange(len(dataset), dtype=np.int64)
        for batch in range(batch_count(len(dataset), size)):
            share = share_of_batch(order, batch, size, exchange.rank, exchange.size)
            sums = [0.0] * len(self.names)
            if len(share.indices) > 0:
                outputs, targets = self.forward(fetch(dataset, share.indices))
                loss = self.loss(outputs, targets)
                sums = self.sums(loss, outputs, targets, len(share.indices))
            rows = exchange.gather([*sums, float(halted())])
            if rows[:, -1].any():
                raise HaltedInValidation
            yield sum_in_order(rows[:, :-1]), share.batch_samples


def _has_mean(loss: torch.Tensor, outputs: Any) -> bool:
    """Return whether autograd took a mean between the model's outputs and the loss."""
    leaves = tree_leaves(outputs)
    known = {leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor)}
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        if node.name() == "MeanBackward0" or getattr(node, "_saved_reduction", None) == _MEAN:
            return True
        nodes += [before for before, _ in node.next_functions]
    return False


def _name_layer(error: Exception, model: torch.nn.Module) -> None:
    """Add the layer that failed to an error's message: no line of the user may be in its frames."""
    layer: torch.nn.Module | None = None
    trace = error.__traceback__
    while trace is not None:
        owner = trace.tb_frame.f_locals.get("self")
        layer = owner if isinstance(owner, torch.nn.Module) else layer
        trace = trace.tb_next
    name = next((name for name, module in model.named_modules() if module is layer), "")
    if layer is None or not name or [type(each) for each in error.args] != [str]:
        return
    shown = type(layer).__name__ if any(layer.children()) else str(layer)
    error.args = (f"{error.args[0]} (in the model's layer {name}: {shown})",)


class LossWatch:
    """Warns once when the loss is not finite, and keeps the warning for the progress file."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._warned = False
        self.warning = ""

    def look(self, loss: float, step: int) -> None:
        """Check the loss of a step."""
        if math.isfinite(loss):
            self.warning = ""
            return
        self.warning = self.warning or f"the loss is {loss} since step {step}"
        if not self._warned:
            self._warned = True
            self._say(f"WARNING: the loss is {loss} at step {step}")


def sum_in_order(rows: NDArray[np.float64]) -> list[float]:
    """Return the sum of the rows, added in order, so that every learner gets the same bits."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total = total + row
    return [float(value) for value in total]
