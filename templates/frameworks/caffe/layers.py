"""Caffe's layers as torch modules, made from a layer's message and the inputs that it gets."""

# ruff: noqa: ARG001, ARG005 - all makers of layers get the same two arguments
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from learner.errors import UserFault

from .prototxt import Message

Make = Callable[[Message, Sequence[Tensor]], nn.Module]


class Function(nn.Module):
    """A layer without weights."""

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the layer's tops."""
        return self._function(*inputs)


class Weighted(nn.Module):
    """A layer of weights and, if the layer has one, a bias: Caffe's blobs 0 and 1."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None,
        function: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias)
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's top."""
        return self._function(x, self.weight, self.bias)


class Normalized(nn.BatchNorm1d):
    """BatchNorm: the blobs are the mean, the variance and the factor by which both are scaled."""

    def __init__(self, channels: int, eps: float, fraction: float) -> None:
        super().__init__(channels, eps=eps, momentum=1 - fraction, affine=False)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        """Accept any number of dimensions."""


def fill(filler: Message, shape: Sequence[int]) -> Tensor:
    """Return new weights as a filler makes them.

    Raises:
        UserFault: the filler is unknown.
    """
    kind = filler.get("type", "constant")
    weights = torch.empty(tuple(shape))
    count = weights.numel()
    fan_in, fan_out = count / shape[0], count / shape[1] if len(shape) > 1 else float(count)
    chosen = filler.get("variance_norm", "FAN_IN")
    n = {"FAN_IN": fan_in, "FAN_OUT": fan_out}.get(chosen, (fan_in + fan_out) / 2)
    if kind == "constant":
        return weights.fill_(filler.get("value", 0.0))
    if kind == "uniform":
        return weights.uniform_(filler.get("min", 0.0), filler.get("max", 1.0))
    if kind == "gaussian":
        return weights.normal_(filler.get("mean", 0.0), filler.get("std", 1.0))
    if kind == "xavier":
        limit = math.sqrt(3 / n)
        return weights.uniform_(-limit, limit)
    if kind == "msra":
        return weights.normal_(0, math.sqrt(2 / n))
    raise UserFault(f"{filler.where}: the filler {kind!r} is not in dlctl's small caffe")


def _pair(p: Message, name: str, default: int) -> tuple[int, int]:
    """Return a spatial setting, (height, width), in each of Caffe's ways of writing it."""
    base = {"kernel_size": "kernel", "stride": "stride", "pad": "pad"}.get(name, name)
    values = p.list_of(name, 0)
    both = (values[0], values[-1]) if values else (default, default)
    return p.get(f"{base}_h", both[0]), p.get(f"{base}_w", both[1])


def _convolution(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("convolution_param")
    kernel, stride, pad = _pair(p, "kernel_size", 0), _pair(p, "stride", 1), _pair(p, "pad", 0)
    dilation = _pair(p, "dilation", 1)
    outputs, groups = p.get("num_output", 0), p.get("group", 1)
    if not outputs or not all(kernel):
        raise UserFault(f"{layer.where}: a Convolution needs num_output and kernel_size")
    channels = inputs[0].shape[1]
    if channels % groups or outputs % groups:
        raise UserFault(f"{layer.where}: {channels} channels can't be divided into {groups} groups")
    weight = fill(p.message("weight_filler"), (outputs, channels // groups, *kernel))
    bias = fill(p.message("bias_filler"), (outputs,)) if p.get("bias_term", True) else None
    p.all("engine")
    return Weighted(weight, bias, lambda x, w, b: functional.conv2d(
        x, w, b, stride, pad, dilation, groups))  # fmt: skip


def _inner_product(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("inner_product_param")
    axis, outputs = p.get("axis", 1), p.get("num_output", 0)
    if not outputs:
        raise UserFault(f"{layer.where}: an InnerProduct needs num_output")
    size = math.prod(inputs[0].shape[axis:])
    weight = fill(p.message("weight_filler"), (outputs, size))
    bias = fill(p.message("bias_filler"), (outputs,)) if p.get("bias_term", True) else None
    return Weighted(weight, bias, lambda x, w, b: functional.linear(x.flatten(axis), w, b))


def _pooling(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("pooling_param")
    kind = p.get("pool", "MAX")
    stride, pad = _pair(p, "stride", 1), _pair(p, "pad", 0)
    whole = p.get("global_pooling", False)
    height, width = inputs[0].shape[-2:]
    kernel = (height, width) if whole else _pair(p, "kernel_size", 0)
    p.all("engine")
    if not all(kernel):
        raise UserFault(f"{layer.where}: a Pooling needs kernel_size")
    if kind == "MAX":
        return Function(lambda x: functional.max_pool2d(x, kernel, stride, pad, ceil_mode=True))
    if kind == "AVE":
        return Function(lambda x: functional.avg_pool2d(x, kernel, stride, pad, ceil_mode=True))
    raise UserFault(f"{layer.where}: the pooling {kind!r} is not in dlctl's small caffe")


def _lrn(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("lrn_param")
    size, alpha = p.get("local_size", 5), p.get("alpha", 1.0)
    beta, k = p.get("beta", 0.75), p.get("k", 1.0)
    p.all("engine")
    if p.get("norm_region", "ACROSS_CHANNELS") == "ACROSS_CHANNELS":
        return nn.LocalResponseNorm(size, alpha, beta, k)
    return Function(
        lambda x: x / (1 + alpha * functional.avg_pool2d(x * x, size, 1, size // 2)) ** beta
    )


def _batch_norm(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("batch_norm_param")
    p.all("use_global_stats")
    eps, fraction = p.get("eps", 1e-5), p.get("moving_average_fraction", 0.999)
    return Normalized(inputs[0].shape[1], eps, fraction)


def _scale(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("scale_param")
    channels = inputs[0].shape[1]
    filler = p.message("filler")
    weight = fill(filler, (channels,)) if filler.has("type") else torch.ones(channels)
    bias = fill(p.message("bias_filler"), (channels,)) if p.get("bias_term", False) else None

    def scaled(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        shape = (1, -1, *[1] * (x.dim() - 2))
        return x * w.view(shape) + (0 if b is None else b.view(shape))

    return Weighted(weight, bias, scaled)


def _prelu(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("prelu_param")
    filler = p.message("filler")
    shape = (1 if p.get("channel_shared", False) else inputs[0].shape[1],)
    weight = fill(filler, shape) if filler.has("type") else torch.full(shape, 0.25)
    return Weighted(weight, None, lambda x, w, _: functional.prelu(x, w))


def _relu(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("relu_param")
    slope = p.get("negative_slope", 0.0)
    p.all("engine")
    return Function(lambda x: functional.leaky_relu(x, slope) if slope else functional.relu(x))


def _dropout(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    return nn.Dropout(layer.message("dropout_param").get("dropout_ratio", 0.5))


def _eltwise(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("eltwise_param")
    kind, factors = p.get("operation", "SUM"), p.list_of("coeff", 0.0) or [1.0] * len(inputs)

    def together(*xs: Tensor) -> Tensor:
        result = xs[0] * factors[0] if kind == "SUM" else xs[0]
        for x, factor in zip(xs[1:], factors[1:], strict=True):
            if kind == "SUM":
                result = result + x * factor
            else:
                result = result * x if kind == "PROD" else torch.maximum(result, x)
        return result

    return Function(together)


def _concat(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    axis = layer.message("concat_param").get("axis", 1)
    return Function(lambda *xs: torch.cat(xs, axis))


def _slice(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("slice_param")
    axis, points, parts = p.get("axis", 1), p.list_of("slice_point", 0), len(layer.all("top"))
    return Function(lambda x: x.tensor_split(points or parts, axis))


def _flatten(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    axis = layer.message("flatten_param").get("axis", 1)
    return Function(lambda x: x.flatten(axis))


def _reshape(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    dims = layer.message("reshape_param").message("shape").list_of("dim", 0)
    return Function(lambda x: x.reshape([x.shape[n] if d == 0 else d for n, d in enumerate(dims)]))


def _softmax(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    axis = layer.message("softmax_param").get("axis", 1)
    return Function(lambda x: functional.softmax(x, axis))


def _power(layer: Message, inputs: Sequence[Tensor]) -> nn.Module:
    p = layer.message("power_param")
    power, scale, shift = p.get("power", 1.0), p.get("scale", 1.0), p.get("shift", 0.0)
    return Function(lambda x: (x * scale + shift) ** power)


def _plain(function: Callable[[Tensor], Tensor]) -> Make:
    return lambda layer, inputs: Function(function)


LAYERS: dict[str, Make] = {
    "Convolution": _convolution, "InnerProduct": _inner_product, "Pooling": _pooling, "LRN": _lrn,
    "BatchNorm": _batch_norm, "Scale": _scale, "PReLU": _prelu, "ReLU": _relu, "Dropout": _dropout,
    "Eltwise": _eltwise, "Concat": _concat, "Slice": _slice, "Flatten": _flatten,
    "Reshape": _reshape, "Softmax": _softmax, "Power": _power,
    "Sigmoid": _plain(torch.sigmoid), "TanH": _plain(torch.tanh), "AbsVal": _plain(torch.abs),
    "BNLL": _plain(functional.softplus), "ELU": _plain(functional.elu), "Exp": _plain(torch.exp),
    "Log": _plain(torch.log),
    "Split": lambda layer, inputs: Function(lambda x: (x,) * len(layer.all("top"))),
}  # fmt: skip
"""The layers by `type`."""


def blobs_of(module: nn.Module) -> Sequence[Tensor]:
    """Return a layer's blobs in Caffe's order, as they are in a .caffemodel."""
    if isinstance(module, Normalized):
        assert module.running_mean is not None and module.running_var is not None
        return [module.running_mean, module.running_var, torch.ones(1)]
    if isinstance(module, Weighted):
        return [module.weight] + ([] if module.bias is None else [module.bias])
    return []


def take_blobs(module: nn.Module, blobs: Sequence[Tensor]) -> None:
    """Set a layer's blobs; their shapes are those of `blobs_of`."""
    with torch.no_grad():
        if isinstance(module, Normalized):
            factor = float(blobs[2]) or 1.0
            blobs = [blobs[0] / factor, blobs[1] / factor]
        for mine, theirs in zip(blobs_of(module), blobs, strict=False):
            mine.copy_(theirs.reshape(mine.shape))
