"""All parameters of a model as one flat tensor, and their gradients, for a parameter server.

On the CPU, if all have the shards' dtype, each parameter is a view of the flat tensor: nothing is
copied. Otherwise (GPU, bfloat16) a flat tensor of the model's own kind lies beside it; if
parameters are of several kinds, each is copied by itself. Knows no server.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn.parameter import UninitializedParameter

from learner.data_parallel.buckets import ParameterPlace, is_dense
from learner.errors import UserFault
from learner.exchange.arithmetic import ALIGNMENT


class FlatParameters:
    """The trainable parameters of a model; frozen ones and buffers belong to each learner.

    A parameter begins at a multiple of ALIGNMENT elements; the gaps are zero.

    Args:
        parameters: The model's, which become views of memory made here.
        gradients: Whether to keep gradients, too.
        accrue: Whether gradients are added up over several batches, in their own memory.

    Raises:
        UserFault: Nothing is trainable, or shards don't support a parameter's kind.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        gradients: bool = True,
        accrue: bool = False,
    ) -> None:
        given = list(parameters)
        self.parameters = [parameter for parameter in given if parameter.requires_grad]
        self._frozen = [parameter for parameter in given if not parameter.requires_grad]
        _check(self.parameters)
        dtypes = {parameter.dtype for parameter in self.parameters}
        self.dtype = torch.float64 if torch.float64 in dtypes else torch.float32
        """The shards' dtype: float64 if any parameter has it, which would be rounded otherwise."""
        self._places = _places(self.parameters)
        self._weights = self._mirror()
        for parameter, view in zip(self.parameters, self._weights.views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self._newest = self._mirror() if gradients else None
        """The last batch's gradient."""
        self._sum = self._mirror() if gradients and accrue else self._newest
        if self._newest is not None:
            self._attach(self._newest)

    @property
    def count(self) -> int:
        """Return the number of elements."""
        return len(self._weights.flat)

    def check(self) -> None:
        """Refuse a model that has changed since: its training would have no effect.

        Raises:
            UserFault: A parameter has moved, or a frozen one no longer is.
        """
        for number, (parameter, view) in enumerate(
            zip(self.parameters, self._weights.views, strict=True)
        ):
            if parameter.data_ptr() != view.data_ptr():
                raise UserFault(
                    f"{_name(number, parameter)} is in other memory than the one that the "
                    "parameter server's weights come to: the model was moved or converted since",
                    hint="move, convert and tie the model first; later on change its parameters in "
                    "place, as load_state_dict does",
                )
        for parameter in self._frozen:
            if parameter.requires_grad:
                raise UserFault(
                    f"a parameter of the shape {tuple(parameter.shape)} requires a gradient now, "
                    "and was frozen when the model was given to the parameter server",
                    hint="unfreeze it before; or leave out its gradient, with requires_grad False",
                )

    # Weights ------------------------------------------------------------------------------------

    def gather(self) -> torch.Tensor:
        """Return the model's weights: the flat tensor itself, of shape (count,), on the CPU."""
        self._weights.gather()
        return self._weights.flat

    @property
    def flat(self) -> torch.Tensor:
        """Return the flat tensor without reading the model; `scatter` copies it into the model."""
        return self._weights.flat

    def scatter(self) -> None:
        """Copy the flat tensor's weights into the model."""
        self._weights.scatter()

    # Gradients ----------------------------------------------------------------------------------

    def descend(self, rate: float) -> None:
        """Take a step with the last batch's gradient: w ← w − rate·g."""
        for weights, gradient in zip(self._weights.near, self._gradients().near, strict=True):
            weights.add_(gradient, alpha=-rate)

    def collect(self) -> None:
        """Collect the last batch's gradient, after its backward pass (and clipping).

        A gradient in other memory (after `zero_grad`) is copied.
        """
        newest = self._gradients()
        for parameter, view in zip(self.parameters, newest.views, strict=True):
            gradient = parameter.grad
            if gradient is None:
                view.zero_()
            elif gradient.layout != torch.strided:
                view.copy_(gradient.to_dense())
            elif gradient.data_ptr() != view.data_ptr():
                view.copy_(gradient)
        if self._sum is not None and self._sum is not newest:
            for total, gradient in zip(self._sum.near, newest.near, strict=True):
                total.add_(gradient)

    def clear(self) -> None:
        """Clear the gradient for the next batch."""
        newest = self._gradients()
        for gradient in newest.near:
            gradient.zero_()
        self._attach(newest)

    def gradient(self) -> torch.Tensor:
        """Return the gradient collected since `clear_sum`: shape (count,), on the CPU."""
        assert self._sum is not None
        self._sum.gather()
        return self._sum.flat

    def clear_sum(self) -> None:
        """Begin a new sum of gradients, after the last one was pushed."""
        if self._sum is not None and self._sum is not self._newest:
            for total in self._sum.near:
                total.zero_()

    def _gradients(self) -> _Mirror:
        assert self._newest is not None, "made without gradients"
        return self._newest

    def _attach(self, newest: _Mirror) -> None:
        for parameter, view in zip(self.parameters, newest.views, strict=True):
            parameter.grad = view

    def _mirror(self) -> _Mirror:
        return _Mirror(self.parameters, self._places, self.dtype)


class _Mirror:
    """A flat tensor for the server, and its counterpart in the model; zeros at first."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        places: Sequence[ParameterPlace],
        dtype: torch.dtype,
    ) -> None:
        count = -(-places[-1].stop // ALIGNMENT) * ALIGNMENT
        on_gpu = any(parameter.is_cuda for parameter in parameters)
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
        self.flat = torch.zeros(count, dtype=dtype, device="cpu", pin_memory=on_gpu)
        self.near: list[torch.Tensor]
        """Everything in the model's own kind; or, if kinds differ, one tensor per parameter."""
        if kinds == {(dtype, torch.device("cpu"))}:
            self.near, self._pairs = [self.flat], []
        elif len(kinds) == 1:
            kind, device = kinds.pop()
            self.near = [torch.zeros(count, dtype=kind, device=device)]
            self._pairs = [(self.near[0], self.flat)]
        else:
            self.views = self.near = [torch.zeros_like(p, requires_grad=False) for p in parameters]
            self._pairs = [
                (view, place.view(self.flat, view))
                for view, place in zip(self.near, places, strict=True)
            ]
            return
        self.views = [
            place.view(self.near[0], parameter)
            for place, parameter in zip(places, parameters, strict=True)
        ]
        """One for each parameter, in its shape and memory order."""

    def gather(self) -> None:
        """Copy the model's side into the flat tensor."""
        for near, flat in self._pairs:
            flat.copy_(near)

    def scatter(self) -> None:
        """Copy the flat tensor to the model's side."""
        for near, flat in self._pairs:
            near.copy_(flat)


def _places(parameters: Sequence[torch.Tensor]) -> list[ParameterPlace]:
    places, start = [], 0
    for index, parameter in enumerate(parameters):
        places.append(ParameterPlace(index, 0, start, start + parameter.numel(), 0))
        start += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
    return places


def _check(parameters: Sequence[torch.Tensor]) -> None:
    if not parameters:
        raise UserFault(
            "no parameter of the model requires a gradient: nothing can be trained",
            hint="unfreeze some of them, with requires_grad_(True), before",
        )
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
            raise UserFault(
                f"parameter {number} of the model has no values yet: it is lazy, or on meta",
                hint="run the model once, or move it with to_empty and fill it, before",
            )
        what = _name(number, parameter)
        if not parameter.is_floating_point():
            raise UserFault(
                f"{what} is of {parameter.dtype}, which a parameter server can't hold",
                hint="use parameters of real numbers, or train without parameter_server",
            )
        if not is_dense(parameter):
            raise UserFault(
                f"{what} shares memory with itself, which a parameter server can't hold",
                hint="make it contiguous",
            )


def _name(number: int, parameter: torch.Tensor) -> str:
    return f"parameter {number}, of the shape {tuple(parameter.shape)},"
