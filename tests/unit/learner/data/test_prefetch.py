import threading
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from learner.data.chunk_loader import ChunkLoader
from learner.data.hdf5 import Hdf5Dataset
from learner.data.prefetch import Prefetcher, may_prefetch
from learner.data.sampling import epoch_order
from learner.errors import UserFault
from psrv.cursor.base import Chunk
from psrv.cursor.file import FileCursor

SAMPLES = 100
TENSORS = TensorDataset(torch.arange(float(SAMPLES)), torch.arange(SAMPLES))
BATCHES = [np.arange(start, start + 10) for start in range(0, SAMPLES, 10)]


class Watched(Dataset[tuple[float, int]]):
    """Remembers which thread read which sample."""

    def __init__(self, fails_at=None):
        self.read = []
        self.fails_at = fails_at

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        if index == self.fails_at:
            raise ValueError(f"sample {index} is broken")
        self.read.append((threading.current_thread().name, index))
        return float(index), index


class Pure(Watched):
    pure = True


def threads():
    return {t.name for t in threading.enumerate() if t.name.startswith("prefetch")}


@pytest.mark.parametrize("dataset", [TENSORS, Pure(), Watched()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("depth", [0, 1, 2, 20])
def test_batches_come_in_order(dataset, depth):
    with Prefetcher(dataset, BATCHES, depth) as batches:
        seen = [targets.tolist() for _, targets in batches]
        assert seen == [batch.tolist() for batch in BATCHES]
        assert batches.read_wait_s() > 0
        assert batches.read_wait_s() == 0
        assert batches.wait_s > 0
    assert not threads()


def test_only_pure_datasets_are_prefetched():
    class Augmented(Hdf5Dataset):
        pass

    assert may_prefetch(TENSORS)
    assert may_prefetch(Subset(Subset(TENSORS, [1, 2, 3]), [0]))
    assert not may_prefetch(Subset(Watched(), [1]))
    assert not may_prefetch(Augmented.__new__(Augmented))
    assert may_prefetch(Hdf5Dataset.__new__(Hdf5Dataset))
    watched, pure = Watched(), Pure()
    for dataset in (watched, pure):
        with Prefetcher(dataset, BATCHES) as batches:
            assert len(list(batches)) == len(BATCHES)
    here = {threading.current_thread().name}
    assert {name for name, _ in watched.read} == here
    assert all(name.startswith("prefetch") for name, _ in pure.read)
    trusted, off = Watched(), Pure()
    for dataset, mode in ((trusted, "on"), (off, "off")):
        with Prefetcher(dataset, BATCHES, mode=mode) as batches:
            assert len(list(batches)) == len(BATCHES)
    assert all(name.startswith("prefetch") for name, _ in trusted.read)
    assert {name for name, _ in off.read} == here


def test_prefetching_is_bounded():
    dataset = Pure()
    with Prefetcher(dataset, BATCHES, depth=2) as batches:
        next(batches)
        next(batches)
    assert {index for _, index in dataset.read} <= set(range(40))
    with pytest.raises(StopIteration):
        next(batches)


def test_an_error_is_raised_at_its_batch():
    with Prefetcher(Pure(fails_at=25), BATCHES) as batches:
        assert next(batches)[1].tolist() == list(range(10))
        assert next(batches)[1].tolist() == list(range(10, 20))
        with pytest.raises(ValueError, match="sample 25 is broken"):
            next(batches)
    assert not threads()


def test_a_consumer_that_leaves_ends_the_thread():
    prefetcher = Prefetcher(TENSORS, BATCHES)
    with pytest.raises(KeyError), prefetcher:
        for _ in prefetcher:
            assert threads()
            raise KeyError
    assert not threads()
    gone = weakref.ref(prefetcher)
    del prefetcher
    assert gone() is None


# Chunks ------------------------------------------------------------------------------------------


@pytest.fixture
def cursor(tmp_path):
    with FileCursor(tmp_path / "cursor", SAMPLES, 2) as made:
        yield made


@pytest.mark.parametrize("dataset", [TENSORS, Watched()], ids=["ahead", "when asked for"])
def test_chunks_are_the_samples_of_the_epochs(cursor, dataset):
    seen = {0: [], 1: []}
    with ChunkLoader(dataset, cursor, samples=30, seed=4) as loader:
        for chunk, (inputs,), targets in loader:
            assert inputs.tolist() == targets.tolist()
            seen[chunk.pass_number] += targets.tolist()
            assert sum(len(entry.leases) for entry in cursor.learners()) <= 2
        assert loader.read_wait_s() > 0
    assert cursor.finished
    assert seen == {number: epoch_order(SAMPLES, 4, number).tolist() for number in (0, 1)}
    assert not threads()


def test_only_finished_chunks_are_done(cursor):
    with ChunkLoader(TENSORS, cursor, samples=30, seed=4) as loader:
        for chunk, _, _ in loader:
            if chunk.start == 30:
                break
        assert cursor.state()["undone"] == [[30, 90]]  # the second and the next chunk
        assert cursor.reported == 1
        assert [chunk for chunk, _, _ in loader][0] == Chunk(0, 30, 60)
    assert cursor.finished


@pytest.mark.parametrize("dataset", [TENSORS, Watched()], ids=["ahead", "not ahead"])
def test_a_checkpoint_of_the_loop_holds_each_chunk_once(cursor, dataset):
    trained = []
    with ChunkLoader(dataset, cursor, samples=30, seed=4) as loader:
        for number, (_, _, targets) in enumerate(loader):
            trained += targets.tolist()
            if number in (0, 2, 3):
                loader.done()
                loader.done()  # the prefetched chunk is not done
            if number == 3:
                state = cursor.state()
                break
        assert loader._taken or dataset is not TENSORS
        assert cursor.reported == 4
    assert state["next"] - sum(b - a for a, b in state["undone"]) == len(trained)
    cursor.restore(state)
    with ChunkLoader(dataset, cursor, samples=30, seed=4) as loader:
        loader.done()  # nothing is trained yet
        trained += [sample for _, _, targets in loader for sample in targets.tolist()]
    assert cursor.finished
    assert sorted(trained) == sorted([*epoch_order(SAMPLES, 4, 0), *epoch_order(SAMPLES, 4, 1)])


def test_a_chunk_of_several_batches(cursor):
    sizes, seen = [], []
    with ChunkLoader(TENSORS, cursor, samples=32, seed=4, batch_samples=12) as loader:
        for chunk, batches in loader.chunks():
            targets = [batch[1].tolist() for batch in batches]
            sizes.append([len(batch) for batch in targets])
            assert loader.indices(chunk).tolist() == [n for batch in targets for n in batch]
            seen += targets
            loader.done()
    assert sizes == 2 * [*3 * [[12, 12, 8]], [4]]
    assert sorted(n for batch in seen for n in batch) == sorted(2 * list(range(SAMPLES)))
    assert cursor.finished


def test_a_chunk_may_be_reported_done_after_the_loop(cursor):
    with ChunkLoader(TENSORS, cursor, samples=60, seed=4) as loader:
        for _ in loader:
            break
        loader.done()
        assert [chunk.start for chunk, _, _ in loader] == [60, 0, 60]
    assert cursor.finished


def test_a_cursor_of_another_dataset_is_refused(cursor):
    with pytest.raises(UserFault, match="99 samples, but its cursor 100"):
        ChunkLoader(Subset(TENSORS, range(99)), cursor, samples=10, seed=0)
    with pytest.raises(UserFault, match="a chunk of 0 samples"):
        list(ChunkLoader(TENSORS, cursor, samples=0, seed=0))


def test_a_lingering_learner_takes_chunks_of_the_dead(tmp_path):
    import subprocess
    import sys

    path = tmp_path / "shared"
    with FileCursor(path, SAMPLES, 1) as cursor:
        program = (
            "import sys; from psrv.cursor_file import FileCursor\n"
            f"cursor = FileCursor(sys.argv[1], {SAMPLES}, 1)\n"
            "print(cursor.take(60), flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen([sys.executable, "-c", program, path], text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:  # fmt: skip
            assert other.stdout.readline() == "Chunk(pass_number=0, start=0, stop=60)\n"
            with ChunkLoader(TENSORS, cursor, samples=20, seed=0, linger_s=0.01) as loader:
                seen = []
                for chunk, _, _ in loader:
                    seen.append(chunk.start)
                    if chunk.start == 80:
                        other.kill()
                assert seen == [60, 80, 0, 20, 40]
