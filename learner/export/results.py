"""The results of a training: the model as a plain state_dict, and its metrics."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

from dlctl.contract import SCHEMA_VERSION, write_whole
from dlctl.contract.metrics import finite
from learner.model.weights import state_of

MODEL_FILE = "model.pt"
METRICS_FILE = "metrics.json"


def export_model(model: torch.nn.Module, results: Path) -> Path:
    """Write model.pt, which torch.load(path, weights_only=True) loads without dlctl or a GPU."""
    state = {
        name: value.detach().cpu() if isinstance(value, torch.Tensor) else value
        for name, value in state_of(model).items()
    }
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_whole(results / MODEL_FILE, buffer.getvalue())
    return results / MODEL_FILE


def export_metrics(history: list[dict[str, Any]], results: Path, **facts: int) -> Path:
    """Write metrics.json: the last epoch's values, and those of every epoch."""
    epochs = [{name: _plain(value) for name, value in epoch.items()} for epoch in history]
    last = {k: v for k, v in (epochs[-1] if epochs else {}).items() if k != "epoch"}
    content = {"schema_version": SCHEMA_VERSION, **facts, "final": last, "history": epochs}
    write_whole(results / METRICS_FILE, json.dumps(content, indent=2, allow_nan=False) + "\n")
    return results / METRICS_FILE


def _plain(value: Any) -> Any:
    return finite(value) if isinstance(value, float) else value
