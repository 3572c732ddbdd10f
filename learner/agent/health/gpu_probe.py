"""Write patterns to the memory of the visible GPUs, and read them back: a program of its own.

It prints `loaded` before it asks a GPU, and one line of JSON at the end: `gpus` (how many were
checked), `checked_bytes`, `remarks`, and `error`, a sentence, if a GPU fails.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_SHARE = 0.9
"""The share of the free memory that is checked."""
_CHUNK_BYTES = 1 << 30
_PATTERNS = (0x5A5A5A5A, 0x25A5A5A5)
_LEAST_FREE = 0.05


def own_devices(visible: int, gpus: int, local_rank: int, local_size: int) -> range:
    """Return the numbers of a learner's GPUs: its share, if it sees those of the others, too."""
    first = local_rank * gpus if visible >= local_size * gpus else 0
    return range(first, min(first + gpus, visible))


def main(arguments: list[str]) -> int:
    """Check the GPUs of a learner: how many, its place on the node, how many learners are there.

    Returns 0 even if one fails.
    """
    import torch

    print("loaded", flush=True)
    answer: dict[str, Any] = {"gpus": 0, "checked_bytes": 0, "remarks": [], "error": ""}
    if torch.cuda.is_available():
        for index in own_devices(torch.cuda.device_count(), *map(int, arguments)):
            try:
                checked = _check(torch, index, answer)
            except torch.cuda.OutOfMemoryError:
                answer["remarks"].append(f"shares GPU {index} with another process")
                continue
            except RuntimeError as error:
                first = str(error).strip().splitlines()[0]
                answer["error"] = f"GPU {index}: {first}"
                break
            answer["gpus"] += 1
            answer["checked_bytes"] += checked
    print(json.dumps(answer))
    return 0


def _check(torch: Any, index: int, answer: dict[str, Any]) -> int:
    """Check one GPU; return how many bytes kept what was written to them."""
    device = torch.device("cuda", index)
    free, total = torch.cuda.mem_get_info(device)
    if free < _LEAST_FREE * total:
        answer["error"] = f"GPU {index} has {free >> 20} of its {total >> 20} MiB free"
        return 0
    left, chunks = int(free * _SHARE), []
    while left > 0:
        size = min(left, _CHUNK_BYTES)
        chunks.append(torch.empty(size // 4, dtype=torch.int32, device=device))
        left -= size
    for pattern in _PATTERNS:
        for chunk in chunks:
            chunk.fill_(pattern)
        if not all(bool((chunk == pattern).all()) for chunk in chunks):
            answer["error"] = f"GPU {index} does not keep what is written to its memory"
            return 0
    return sum(chunk.numel() * 4 for chunk in chunks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
