"""All random number generators of one learner: Python, numpy, torch on the CPU and its GPU."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def capture(device: torch.device) -> dict[str, Any]:
    """Return all random states."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore(states: dict[str, Any], device: torch.device) -> None:
    """Set all random states."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def preserved(device: torch.device) -> Iterator[None]:
    """Restore all random states at the end, so that the block inside does not affect training."""
    states = capture(device)
    try:
        yield
    finally:
        restore(states, device)


def seed_all(*key: int) -> None:
    """Seed every random generator from a key, e.g. (seed,) or (seed, rank)."""
    words = np.random.SeedSequence([part % 2**64 for part in key]).generate_state(4, np.uint32)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    torch.manual_seed(int(words[2]) << 32 | int(words[3]))  # and every GPU
