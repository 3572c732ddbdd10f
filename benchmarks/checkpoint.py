"""Checkpoints, compared with torch.save and torch's DCP (`python -m benchmarks.checkpoint`).

2 learners with 1 GB of float32 each, in 24 tensors, one thread per learner, on a real disk. The
slowest learner counts. The candidates take turns; each one's files are deleted before the next.

    checkpoint_stall_2gb    how long a save stalls training. Ours: until `save` returns.
                            Floor: one copy of the state into memory that was used before
    checkpoint_save_2gb     time until it is written and durable (fsync of file and folder). Floor:
                            each learner writes the same bytes to a file: write and fsync
    checkpoint_restore_2gb  from the disk (page cache dropped) into existing memory, with
                            checksums compared. Floor: each learner reads the same bytes
    checkpoint_kills        a learner of 64 MB and its writer are killed repeatedly with -9 while
                            they save; losses in 100 kills: nothing to load, mixed content,
                            or a state older than what was reported as complete

Peers: `torch_save`: torch.save of each learner's state, with fsync; `dcp`: DCP over gloo;
`dcp_async`: its async_save; `dcp_async_reused`: the same with one stager for all saves;
`raw_direct`: the floor, but bypassing the page cache (O_DIRECT), as ours does; `h5py`: a file
reopened with "w". In the kills, the peers overwrite one path, as most scripts do.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.checkpoint_kills import losses
from benchmarks.learners import run_learners
from benchmarks.report import Load, Result, main, rounds

_ROUNDS = rounds(7, 1)
_STATE_BYTES = 1_000_000_000, 1_000_000_000, 10_000_000
_KILLS, _KILLS_OF_PEERS = (100, 2, 1), (20, 1, 1)
_KEYS = ("checkpoint_restore_2gb", "checkpoint_stall_2gb", "checkpoint_save_2gb")
"""Restore first: for minutes after writing tens of GB the disk reads at half its speed."""


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    for what in _KEYS:
        yield _timed(what, load)
    yield _killed(load)


def _timed(what: str, load: Load) -> Result:
    folder = _folder_on_disk()
    sizes = map(str, (_STATE_BYTES[load], *_ROUNDS[load]))
    try:
        (line,) = run_learners(2, "benchmarks.checkpoint_learner", what, *sizes, str(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    medians = {name: round(value, 4) for name, value in line["medians"].items()}
    return Result(what, "s", medians.pop("ours"), medians.pop("floor"), medians, line["runs"])


def _killed(load: Load) -> Result:
    kills, peers = _KILLS[load], ("torch_save", "h5py", "dcp")
    counts = {"ours": kills} | dict.fromkeys(peers, _KILLS_OF_PEERS[load])
    lost = {}
    for name, count in counts.items():
        folder = _folder_on_disk()
        try:
            lost[name] = round(100 * losses(name, folder, count) / count, 1)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return Result("checkpoint_kills", "losses in 100 kills", lost.pop("ours"), 0.0, lost, kills)


def _folder_on_disk() -> Path:
    """Return a new folder on disk, not in memory."""
    base = next((p for p in (Path("/var/tmp"), Path.cwd()) if p.is_dir()), None)
    return Path(tempfile.mkdtemp(prefix="dlctl-bench-", dir=base))


if __name__ == "__main__":
    main(measure)
