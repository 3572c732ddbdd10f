"""Gradients as views of one flat buffer per dtype: they are exchanged without packing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from learner.exchange.base import Exchange

ALIGNMENT_BYTES = 64


@dataclass
class _Flat:
    buffer: torch.Tensor
    """Any dtype, shape (n,)."""
    parameters: list[tuple[int, torch.nn.Parameter, torch.Tensor]]
    """(index, parameter, its view of the buffer in the parameter's shape)."""


class GradientBuffer:
    """The gradients of a model's trainable parameters.

    A parameter that no learner used in a step has no gradient (None), as in one process: the
    optimizer then skips it. One that some learner used has the sum on every learner.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self.used = [0.0] * len(self._parameters)
        """1.0 for each parameter that this learner's last backward pass reached."""
        self._flats = [self._flat(kind) for kind in self._kinds()]
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._mark(index)
            )

    def _kinds(self) -> list[tuple[torch.dtype, torch.device]]:
        return list(dict.fromkeys((p.dtype, p.device) for p in self._parameters))

    def _mark(self, index: int) -> Callable[[torch.Tensor], None]:
        def mark(_: torch.Tensor) -> None:
            self.used[index] = 1.0

        return mark

    def _flat(self, kind: tuple[torch.dtype, torch.device]) -> _Flat:
        mine = [(i, p) for i, p in enumerate(self._parameters) if (p.dtype, p.device) == kind]
        step = max(1, ALIGNMENT_BYTES // mine[0][1].element_size())
        starts = [0]
        for _, parameter in mine:
            starts.append(starts[-1] + -(-parameter.numel() // step) * step)
        buffer = torch.zeros(starts[-1], dtype=kind[0], device=kind[1])
        views = [
            (index, parameter, buffer[start : start + parameter.numel()].view(parameter.shape))
            for (index, parameter), start in zip(mine, starts, strict=False)
        ]
        return _Flat(buffer, views)

    def clear(self) -> None:
        """Set every gradient to zero, ready for a backward pass."""
        self.used[:] = [0.0] * len(self.used)
        for flat in self._flats:
            flat.buffer.zero_()
            for _, parameter, view in flat.parameters:
                parameter.grad = view

    def reduce(self, exchange: Exchange) -> None:
        """Sum the gradients over the learners."""
        for flat in self._flats:
            for _, parameter, view in flat.parameters:
                if parameter.grad is not view and parameter.grad is not None:
                    view.copy_(parameter.grad)  # the user's code has put another tensor there
                    parameter.grad = view
            exchange.sum_in_place(flat.buffer)

    def drop_unused(self, used_anywhere: list[bool]) -> None:
        """Set the gradient to None where no learner used the parameter."""
        for flat in self._flats:
            for index, parameter, _ in flat.parameters:
                if not used_anywhere[index]:
                    parameter.grad = None
