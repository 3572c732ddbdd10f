"""One learner of checkpoint.py: `… WHAT BYTES RUNS WARM_UP FOLDER FILE`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.checkpoint.writer_process import WriterProcess

WRITER = WriterProcess() if __name__ == "__main__" else None

import torch  # noqa: E402
from mpi4py import MPI  # noqa: E402
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # noqa: E402
from torch.distributed.checkpoint.state_dict_loader import load as load_dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import async_save as async_save_dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict_saver import save as save_dcp  # noqa: E402

from benchmarks.report import Rounds  # noqa: E402
from benchmarks.rounds import Candidate, measure, one_thread, start_gloo, write  # noqa: E402
from learner.checkpoint.engine import CheckpointEngine  # noqa: E402
from learner.checkpoint.share_reader import read_all  # noqa: E402
from learner.checkpoint.state_tree import Pieces  # noqa: E402

TENSORS = 24
_CHUNK_BYTES = 16 * 1024**2
_PAGE_BYTES = 4096


class Learners:
    """Lets the engine's learners agree, over MPI."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def share(self, value: Any) -> Any:
        """Return rank 0's value."""
        return self._comm.bcast(value)

    def collect(self, value: Any) -> list[Any]:
        """Return every learner's value."""
        return self._comm.allgather(value)


class Bench:
    """The state, and every method to save and load it."""

    def __init__(self, comm: MPI.Intracomm, folder: Path, size_bytes: int) -> None:
        self.comm, self.folder, self.rank = comm, folder, comm.Get_rank()
        generator = torch.Generator().manual_seed(self.rank)
        elements = size_bytes // TENSORS // 4
        # One page-aligned buffer, as the floor with O_DIRECT requires.
        raw = torch.empty(TENSORS * elements * 4 + 2 * _PAGE_BYTES, dtype=torch.uint8)
        skip = -raw.data_ptr() % _PAGE_BYTES
        self.flat = raw[skip : skip + TENSORS * elements * 4]
        self.values = self.flat.view(torch.float32).view(TENSORS, elements)
        self.values.normal_(generator=generator)
        self.copy = self.flat.clone()
        self.state = {f"rank{self.rank}.{n}": self.values[n] for n in range(TENSORS)}
        shape = (comm.Get_size(), elements)
        self.tree = {
            str(n): Pieces(shape, torch.float32, [(self.rank * elements, self.values[n])])
            for n in range(TENSORS)
        }
        self.engine = CheckpointEngine(folder / "ours", Learners(comm), print, writer=WRITER)
        self.engine.prepare(self.tree)
        self.step = 0
        self.pending: Any = None
        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    # Ours ---------------------------------------------------------------------------------------

    def save_begin(self) -> None:
        """Take the snapshot."""
        self.step += 1
        assert self.engine.save(self.step, self.tree)

    def save(self) -> None:
        """Save, until the checkpoint is durable."""
        self.save_begin()
        assert self.engine.wait()

    def finish(self) -> None:
        """Wait for the writer."""
        assert self.engine.wait()

    def load(self) -> None:
        """Load into existing memory."""
        target = self.copy.view(torch.float32).view(TENSORS, -1)

        def use(loaded: Any) -> bool:
            tree, first = loaded.tree(), self.rank * target[0].nbytes
            raw = target.view(torch.uint8)
            read_all((tree[str(n)], raw[n], first) for n in range(TENSORS))
            return True

        assert self.engine.load(use)

    # Floors -------------------------------------------------------------------------------------

    def memcpy(self) -> None:
        """Copy the state."""
        self.copy.copy_(self.flat)

    def raw_write(self, flags: int = 0) -> None:
        """Write the same bytes."""
        path = self.folder / f"raw-{self.rank}"
        descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | flags, 0o600)
        data = memoryview(self.flat.numpy().data)
        if flags:
            data = data[: len(data) // _PAGE_BYTES * _PAGE_BYTES]
            os.posix_fallocate(descriptor, 0, len(data))
        for start in range(0, len(data), _CHUNK_BYTES):
            os.write(descriptor, data[start : start + _CHUNK_BYTES])
        os.fsync(descriptor)
        os.close(descriptor)
        _sync(self.folder)

    def raw_read(self) -> None:
        """Read the same bytes."""
        data = memoryview(self.copy.numpy().data)
        with (self.folder / f"raw-{self.rank}").open("rb", buffering=0) as file:
            for start in range(0, len(data), _CHUNK_BYTES):
                file.readinto(data[start : start + _CHUNK_BYTES])

    # Peers --------------------------------------------------------------------------------------

    def torch_save(self) -> None:
        """Save with torch.save, and make the file durable."""
        with (self.folder / f"torch-{self.rank}").open("wb") as file:
            torch.save(self.state, file)
            file.flush()
            os.fsync(file.fileno())
        _sync(self.folder)

    def torch_load(self) -> None:
        """Load with torch.load, into existing memory."""
        target = self.copy.view(torch.float32).view(TENSORS, -1)
        loaded = torch.load(self.folder / f"torch-{self.rank}", weights_only=True)
        for n, value in enumerate(loaded.values()):
            target[n].copy_(value)

    def dcp_save(self) -> None:
        """Save with DCP."""
        save_dcp(self.state, checkpoint_id=self.folder / "dcp")

    def dcp_load(self) -> None:
        """Load with DCP, in place."""
        target = self.copy.view(torch.float32).view(TENSORS, -1)
        state = {f"rank{self.rank}.{n}": target[n] for n in range(TENSORS)}
        load_dcp(state, checkpoint_id=self.folder / "dcp")

    def dcp_async(self, stager: Any = None) -> None:
        """Start an asynchronous save with DCP."""
        self.pending = async_save_dcp(
            self.state, checkpoint_id=self.folder / "dcp", async_stager=stager
        )

    def dcp_finish(self) -> None:
        """Wait for the asynchronous save."""
        self.pending.result()

    # Order --------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove what was written."""
        self.comm.Barrier()
        if self.rank == 0:
            for path in self.folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.comm.Barrier()

    def forget(self) -> None:
        """Drop all files from the page cache, and clear what was read before."""
        self.comm.Barrier()
        if self.rank == 0:
            for path in self.folder.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:
                        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.copy.zero_()

    def compare(self) -> None:
        """Fail if the loaded state differs from the saved one."""
        assert torch.equal(self.copy, self.flat)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _candidates(what: str, bench: Bench) -> list[Candidate]:
    b = bench
    if what == "checkpoint_stall_2gb":
        return [
            Candidate("ours", b.save_begin, b.clear, b.finish),
            Candidate("floor", b.memcpy),
            Candidate("torch_save", b.torch_save, b.clear),
            Candidate("dcp", b.dcp_save, b.clear),
            Candidate("dcp_async", b.dcp_async, b.clear, b.dcp_finish),
            Candidate("dcp_async_reused", lambda: b.dcp_async(b.stager), b.clear, b.dcp_finish),
        ]
    if what == "checkpoint_save_2gb":
        return [
            Candidate("ours", b.save, b.clear),
            Candidate("floor", b.raw_write, b.clear),
            Candidate("raw_direct", lambda: b.raw_write(os.O_DIRECT), b.clear),
            Candidate("torch_save", b.torch_save, b.clear),
            Candidate("dcp", b.dcp_save, b.clear),
        ]
    for prepare in (b.save, b.raw_write, b.torch_save, b.dcp_save):
        prepare()
    loads: dict[str, Callable[[], None]] = {
        "ours": b.load, "floor": b.raw_read, "torch_save": b.torch_load, "dcp": b.dcp_load,
    }  # fmt: skip
    return [Candidate(name, run, b.forget, b.compare) for name, run in loads.items()]


def main(what: str, size_bytes: str, runs: str, warm_up: str, folder: str, file: str) -> None:
    """Measure one key and write the result."""
    one_thread()
    comm = MPI.COMM_WORLD
    start_gloo(comm)
    bench = Bench(comm, Path(folder), int(size_bytes))
    medians = measure(comm, _candidates(what, bench), Rounds(int(runs), int(warm_up)))
    write(comm, file, what=what, medians=medians, runs=int(runs))
    bench.engine.close()
    comm.Barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
