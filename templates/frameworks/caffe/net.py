"""A net's file as one torch module: its graphs for training and testing, with shared weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from learner.errors import UserFault

from .layers import LAYERS, blobs_of, take_blobs
from .prototxt import Message, read
from .weights import Blobs, to_bytes

TRAIN, TEST = "TRAIN", "TEST"
DATA_LAYERS = ("Data", "HDF5Data", "Input", "DummyData", "MemoryData", "ImageData")
_HEADER = ("name", "type", "bottom", "top", "include", "exclude", "phase", "propagate_down")
_SETTINGS = ("loss_param", "accuracy_param", "transform_param")


def _softmax_loss(x: Tensor, label: Tensor) -> Tensor:
    return functional.cross_entropy(x, label.flatten().long())


def _euclidean(x: Tensor, label: Tensor) -> Tensor:
    return ((x.flatten(1) - label.reshape(x.shape[0], -1)) ** 2).sum() / (2 * x.shape[0])


def _sigmoid_loss(x: Tensor, label: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(
        x, label.reshape(x.shape).float(), reduction="sum"
    ) / len(x)


def _hinge(x: Tensor, label: Tensor) -> Tensor:
    sign = 1 - 2 * functional.one_hot(label.flatten().long(), x.shape[1])
    return (1 + sign * x.flatten(1)).clamp(min=0).sum() / len(x)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "SoftmaxWithLoss": _softmax_loss, "EuclideanLoss": _euclidean,
    "SigmoidCrossEntropyLoss": _sigmoid_loss, "HingeLoss": _hinge,
}  # fmt: skip
METRICS = ("Accuracy",)


@dataclass
class Step:
    """One layer in a graph."""

    layer: str
    """Its name, unique in the net."""
    bottoms: list[str]
    tops: list[str]


@dataclass
class End:
    """A loss or a metric: what it compares with the labels."""

    name: str
    kind: str
    blob: str
    weight: float = 1.0
    top_k: int = 1


@dataclass
class Graph:
    """The layers of one phase, in order."""

    data: Message
    """The layer that brings the data."""
    inputs: list[str] = field(default_factory=list)
    """The tops of the data layer without the last, which holds the labels."""
    steps: list[Step] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)


class CaffeNet(nn.Module):
    """The net; in training mode it is the TRAIN graph, else the TEST graph.

    Its outputs are a dict of the blobs that losses and metrics use.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.layers = nn.ModuleDict()
        self.graphs: dict[str, Graph] = {}
        self.keys: dict[str, str] = {}
        """The key in `layers` of each layer by its name: a torch name has no dot."""
        self.kinds: dict[str, str] = {}
        self.multipliers: dict[str, list[tuple[float, float]]] = {}
        """lr_mult and decay_mult of each layer's blobs."""
        self.owners: dict[str, tuple[str, int]] = {}
        """The layer and the blob that each `param.name` means: the first that has the name."""

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        """Return the blobs that the losses and metrics of the phase use."""
        graph = self.graphs[TRAIN if self.training else TEST]
        blobs = dict(zip(graph.inputs, inputs, strict=False))
        for step in graph.steps:
            tops = self.layers[self.keys[step.layer]](*[blobs[name] for name in step.bottoms])
            several = tops if isinstance(tops, tuple) else (tops,)
            blobs.update(zip(step.tops, several, strict=False))
        return {end.blob: blobs[end.blob] for end in graph.ends}

    def loss(self, outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """Return the sum of the losses with their weights."""
        total = torch.zeros((), device=targets.device)
        for end in self.graphs[TRAIN].ends:
            if end.kind in LOSSES and end.blob in outputs:
                total = total + end.weight * LOSSES[end.kind](outputs[end.blob], targets)
        return total

    def metric(self, end: End) -> Callable[[dict[str, Tensor], Tensor], Any]:
        """Return an Accuracy layer as a function of outputs and targets."""

        def accuracy(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
            if end.blob not in outputs:
                return torch.tensor(float("nan"))
            found = outputs[end.blob].flatten(1).topk(end.top_k, 1).indices
            return (found == targets.reshape(-1, 1)).any(1).float().mean()

        return accuracy

    def metrics(self) -> dict[str, Callable[[dict[str, Tensor], Tensor], Any]]:
        """Return the Accuracy layers by name; of those in one phase only, of that phase."""
        ends = [end for graph in self.graphs.values() for end in graph.ends if end.kind in METRICS]
        return {end.name: self.metric(end) for end in ends}

    def groups(self) -> list[dict[str, Any]]:
        """Return a group for each parameter, with its multipliers."""
        found: list[dict[str, Any]] = []
        seen: set[int] = set()
        for name, key in self.keys.items():
            known = self.multipliers[name]
            for number, parameter in enumerate(self.layers[key].parameters()):
                if id(parameter) in seen:
                    continue  # shared: the multipliers are those of the layer that has it first
                seen.add(id(parameter))
                lr_mult, decay_mult = known[number] if number < len(known) else (1.0, 1.0)
                parameter.requires_grad_(lr_mult != 0)
                found.append({"params": [parameter], "lr_mult": lr_mult, "decay_mult": decay_mult})
        return found

    def take(self, blobs: Blobs, where: str) -> list[str]:
        """Take the weights of layers with the same name; return a sentence for each that has none.

        Raises:
            UserFault: a blob has another shape, or no layer has weights there.
        """
        left, taken = [], 0
        for name, key in self.keys.items():
            mine = blobs_of(self.layers[key])
            if mine and not blobs.get(name):
                left.append(f"the layer {name} has no weights there")
            elif mine:
                theirs = blobs[name]
                shapes = [list(b.shape) for b in mine], [list(b.shape) for b in theirs]
                if [b.numel() for b in mine] != [b.numel() for b in theirs]:
                    raise UserFault(
                        f"{where}: the layer {name} has blobs of the shapes {shapes[1]}, the net's "
                        f"{shapes[0]}",
                        hint="rename the layer in the net, so that it begins anew",
                    )
                take_blobs(self.layers[key], theirs)
                taken += 1
        if left and not taken:
            raise UserFault(
                f"{where} has weights for none of the net's {len(left)} layers: {left[0]}",
                hint="the names of layers decide: name those in the net as in the file",
            )
        return left

    def caffemodel(self) -> bytes:
        """Return the weights as the content of a .caffemodel."""
        return to_bytes(self.name, {
            name: (self.kinds[name], blobs_of(self.layers[key])) for name, key in self.keys.items()
        })  # fmt: skip


def read_net(train: Path, test: Path, example: Callable[[Message, str], Tensor | None]) -> CaffeNet:
    """Return the net in the files for both phases.

    Args:
        example: Returns one input of a data layer in a phase, of batch size 1, for the shapes.

    Raises:
        UserFault: a file is wrong, or has a layer that this version lacks.
    """
    files = {TRAIN: read(train), TEST: read(test)}
    net = CaffeNet(files[TRAIN].get("name", "net"))
    for phase, content in files.items():
        if content.has("layers"):
            raise UserFault(
                f"{content.where}: `layers` is the format of Caffe before 1.0",
                hint="Caffe's upgrade_net_proto_text writes the file with `layer`",
            )
        chosen = [layer for layer in content.messages("layer") if _belongs(layer, phase)]
        data = [layer for layer in chosen if layer.get("type", "") in DATA_LAYERS]
        if not data and phase == TEST:
            continue
        if len(data) != 1:
            raise UserFault(
                f"{content.where}: the phase {phase} has {len(data)} data layers; one is allowed"
            )
        net.graphs[phase] = _graph(net, data[0], chosen, example(data[0], phase))
    if not any(end.kind in LOSSES for end in net.graphs[TRAIN].ends):
        raise UserFault(f"{train.name}: there is no loss layer; there are {', '.join(LOSSES)}")
    return net


def _belongs(layer: Message, phase: str) -> bool:
    included = [rule.get("phase", phase) for rule in layer.messages("include")]
    excluded = [rule.get("phase", "") for rule in layer.messages("exclude")]
    return (not included or phase in included) and phase not in excluded


def _graph(
    net: CaffeNet, data: Message, layers: Sequence[Message], example: Tensor | None
) -> Graph:
    tops = data.list_of("top", "")
    if len(tops) < 2 or example is None:
        raise UserFault(f"{data.where}: a data layer needs two tops, the data and the labels")
    graph = Graph(data, tops[:1])
    labels, blobs = set(tops[1:]), {tops[0]: example}
    for layer in layers:
        kind, name = layer.get("type", ""), layer.get("name", "")
        if layer is data or kind == "Silence":
            continue
        bottoms = layer.list_of("bottom", "")
        unknown = [b for b in bottoms if b not in blobs and b not in labels]
        if unknown:
            raise UserFault(f"{layer.where}: the layer {name!r} uses {unknown[0]!r}, which no "
                            "layer before it makes")  # fmt: skip
        if kind in LOSSES or kind in METRICS:
            weight = layer.list_of("loss_weight", 0.0) or [1.0]
            top_k = layer.message("accuracy_param").get("top_k", 1)
            graph.ends.append(End(name, kind, bottoms[0], weight[0], top_k))
            continue
        if labels & set(bottoms):
            raise UserFault(f"{layer.where}: {kind} can't use the labels in dlctl's small caffe")
        if name not in net.keys:
            _add(net, layer, [blobs[b] for b in bottoms])
        with torch.no_grad():
            made = net.layers[net.keys[name]](*[blobs[b] for b in bottoms])
        outputs = layer.list_of("top", "")
        blobs.update(zip(outputs, made if isinstance(made, tuple) else (made,), strict=False))
        graph.steps.append(Step(name, bottoms, outputs))
    return graph


def _add(net: CaffeNet, layer: Message, inputs: Sequence[Tensor]) -> None:
    kind, name = layer.get("type", ""), layer.get("name", "")
    if kind not in LAYERS:
        known = ", ".join(sorted([*LAYERS, *LOSSES, *METRICS]))
        raise UserFault(
            f"{layer.where}: the layer type {kind!r} is not in dlctl's small caffe",
            hint=f"it has {known}; nodes with Caffe itself have all",
        )
    parameters = layer.messages("param")
    net.multipliers[name] = [
        (each.get("lr_mult", 1.0), each.get("decay_mult", 1.0)) for each in parameters
    ]
    shared = [(each.get("name", ""), each.get("share_mode", "STRICT")) for each in parameters]
    try:
        module = LAYERS[kind](layer, inputs)
    except (RuntimeError, IndexError) as error:
        raise UserFault(f"{layer.where}: the layer {name!r}: {error}") from None
    layer.refuse_unknown((*_HEADER, *_SETTINGS), f"the layer {name!r}")
    for part in (value for values in layer.fields.values() for value in values):
        if isinstance(part, Message) and part.fields_read:
            part.refuse_unknown((), f"the layer {name!r}")
    for number, (named, mode) in enumerate(shared):
        if named:
            _share(net, layer, module, number, named, strict=mode == "STRICT")
    key = name.replace(".", "_")
    net.layers[key] = module
    net.keys[name], net.kinds[name] = key, kind


def _share(
    net: CaffeNet, layer: Message, module: nn.Module, number: int, named: str, *, strict: bool
) -> None:
    """Let a blob of a layer be the blob of the layer that has its name first."""
    blobs = [name for name, _ in module.named_parameters()]
    if number >= len(blobs):
        raise UserFault(f"{layer.where}: the layer has no blob {number} that could be {named!r}")
    if named not in net.owners:
        net.owners[named] = layer.get("name", ""), number
        return
    owner, position = net.owners[named]
    theirs = list(net.layers[net.keys[owner]].parameters())[position]
    mine = module.get_parameter(blobs[number])
    if mine.shape != theirs.shape:
        shapes = f"{list(mine.shape)}, in the layer {owner!r} {list(theirs.shape)}"
        how = "needs" if strict else "with the share_mode PERMISSIVE needs, in dlctl's small caffe,"
        raise UserFault(f"{layer.where}: {named!r} has the shape {shapes}: sharing {how} the same")
    setattr(module, blobs[number], theirs)
