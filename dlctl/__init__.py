"""dlctl: deep learning as a service on any Slurm cluster, driven from a laptop.

This file travels to the nodes with `dlctl.contract`: it imports nothing. On a laptop the functions
of `dlctl.api` stand here, too: `dlctl.submit("manifest.yml")`.
"""

from __future__ import annotations

__version__ = "0.1.0"
_API = (
    "Search", "StoredModel", "Training", "model", "search_of", "searches", "start_search",
    "store_model", "stored_models", "submit", "training", "trainings",
)  # fmt: skip


def __getattr__(name: str) -> object:
    if name in _API:
        import importlib

        return getattr(importlib.import_module("dlctl.api"), name)
    raise AttributeError(f"module 'dlctl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*(name for name in globals() if name.startswith("__")), *_API]  # and no rooms
