"""Learners that save in a loop and are killed with -9, and how often their state is lost.

Each is forked from this process, so that torch is not imported a hundred times.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ELEMENTS = 16_000_000
_SAVES_BEFORE = 2


def losses(kind: str, folder: Path, kills: int) -> int:
    """Kill a learner `kills` times while it saves; return how often its state was lost."""
    import torch

    import learner.checkpoint.engine  # noqa: F401 - before the forks

    logging.disable()  # DCP logs at length what it misses
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a fork does not survive the threads of OpenMP
    lost = 0
    chance = random.Random(1)  # noqa: S311 - no secret
    for turn in range(kills):
        complete = _kill_one(kind, folder, turn * 1000, chance)
        try:
            found = _LOADERS[kind](folder)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # DCP's is no Exception; any error means nothing to load
            found = -1
        lost += found < complete
    return lost


def _kill_one(kind: str, folder: Path, first: int, chance: random.Random) -> int:
    """Let a learner save, kill it and its writer; return the last step it reported as complete."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _learn(kind, folder, first, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        began, lines = time.monotonic(), [pipe.readline() for _ in range(_SAVES_BEFORE)]
        each_s = (time.monotonic() - began) / _SAVES_BEFORE
        time.sleep(chance.random() * min(each_s, 0.5))
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        lines += pipe.readlines()
    return max((int(line) for line in lines if line.endswith(b"\n")), default=0)


def _learn(kind: str, folder: Path, first: int, write_end: int) -> None:
    """Save the steps after `first` until killed; report the number of each complete one."""
    try:
        os.setpgid(0, 0)  # its writer is killed with it
        _SAVERS[kind](folder, first, lambda step: os.write(write_end, b"%d\n" % step))
    except BaseException as error:
        print(f"{kind}: {error!r}", file=sys.stderr)
    finally:
        os._exit(1)


def _state(step: int) -> dict[str, Any]:
    import torch

    return {"a": torch.full((_ELEMENTS // 2,), step), "b": torch.full((_ELEMENTS // 4,), step)}


def _step_of(state: dict[str, Any]) -> int:
    """Return the step of a state; raise if it mixes several."""
    step = int(state["a"][0])
    if not all(bool((value == step).all()) for value in state.values()):
        raise ValueError("it is of several steps")
    return step


def _save_ours(folder: Path, first: int, tell: Callable[[int], object]) -> None:
    from learner.checkpoint.engine import CheckpointEngine
    from learner.checkpoint.writer_process import WriterProcess
    from learner.exchange.single import SingleExchange

    engine = CheckpointEngine(folder, SingleExchange(), print, writer=WriterProcess())
    for step in range(first + 1, first + 1000):
        engine.save(step, _state(step))
        if engine.wait():
            tell(step)


def _load_ours(folder: Path) -> int:
    from learner.checkpoint.engine import CheckpointEngine
    from learner.checkpoint.load import filled
    from learner.exchange.single import SingleExchange

    engine = CheckpointEngine(folder, SingleExchange(), print)
    return _step_of(engine.load(lambda loaded: filled(loaded.tree())) or {})


def _save_torch(folder: Path, first: int, tell: Callable[[int], object]) -> None:
    import torch

    for step in range(first + 1, first + 1000):
        torch.save(_state(step), folder / "state.pt")
        tell(step)


def _load_torch(folder: Path) -> int:
    import torch

    return _step_of(torch.load(folder / "state.pt", weights_only=True))


def _save_h5py(folder: Path, first: int, tell: Callable[[int], object]) -> None:
    import h5py

    for step in range(first + 1, first + 1000):
        with h5py.File(folder / "state.h5", "w") as file:
            for name, value in _state(step).items():
                file[name] = value.numpy()
        tell(step)


def _load_h5py(folder: Path) -> int:
    import h5py
    import torch

    with h5py.File(folder / "state.h5") as file:
        return _step_of({name: torch.from_numpy(file[name][()]) for name in ("a", "b")})


def _save_dcp(folder: Path, first: int, tell: Callable[[int], object]) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

    for step in range(first + 1, first + 1000):
        save_dcp(_state(step), checkpoint_id=folder / "dcp", no_dist=True)
        tell(step)


def _load_dcp(folder: Path) -> int:
    from torch.distributed.checkpoint.state_dict_loader import load as load_dcp

    state = _state(-1)
    load_dcp(state, checkpoint_id=folder / "dcp", no_dist=True)
    return _step_of(state)


_SAVERS = {"ours": _save_ours, "torch_save": _save_torch, "h5py": _save_h5py, "dcp": _save_dcp}
_LOADERS = {"ours": _load_ours, "torch_save": _load_torch, "h5py": _load_h5py, "dcp": _load_dcp}
