"""`examples/digits` with Nesterov SGD instead of Adam: a file for `framework.job`."""

from __future__ import annotations

from typing import Any

import torch
import train  # type: ignore[import-not-found] # the example's own file


def build(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the example's parts."""
    parts: dict[str, Any] = train.build(arguments)
    parameters = parts["model"].parameters()
    sgd = torch.optim.SGD(parameters, lr=arguments["lr"], momentum=0.9, nesterov=True)
    return {**parts, "optimizer": sgd}
