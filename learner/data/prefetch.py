"""Prefetching: a thread fetches the next batch while the current one trains.

Only where that can't change the training. A dataset that draws random numbers (augmentation) would
draw them from torch's and numpy's global generators at the same time as dropout does, and a resumed
training would not be bit-equal. So a dataset must be known to be pure: a TensorDataset, an
Hdf5Dataset, a Subset of a pure one, or one with the attribute `pure = True`. Any other is fetched
when its batch is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data import Subset, TensorDataset

from learner.data.hdf5 import Hdf5Dataset
from learner.data.sampling import Indices, fetch

if TYPE_CHECKING:
    from typing_extensions import Self

Batch = tuple[tuple[Any, ...], Any]
"""(inputs, targets), as learner.data.sampling.fetch returns them."""


def may_prefetch(dataset: Any) -> bool:
    """Return whether a dataset's samples are the same whenever and wherever they are read.

    Subclasses may do anything, so only the exact type counts, or an attribute that says so.
    """
    if type(dataset) is Subset:
        return may_prefetch(dataset.dataset)
    return type(dataset) in (TensorDataset, Hdf5Dataset) or getattr(dataset, "pure", False) is True


class Fetcher:
    """Fetches batches in order, ahead of their use where that is allowed; close it.

    `mode` is a plan's `prefetch`: `auto` asks may_prefetch, `on` trusts the user, `off` is off.
    """

    def __init__(self, dataset: Any, mode: str = "auto") -> None:
        self._dataset = dataset
        ahead = mode == "on" or (mode == "auto" and may_prefetch(dataset))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch") if ahead else None
        self.wait_s = 0.0
        """Seconds waited for batches, in total."""
        self._reported_s = 0.0

    @property
    def ahead(self) -> bool:
        """Return whether batches are fetched ahead."""
        return self._pool is not None

    def begin(self, indices: Indices) -> Future[Batch] | Indices:
        """Begin to fetch a batch; pass the result to `get`."""
        return indices if self._pool is None else self._pool.submit(fetch, self._dataset, indices)

    def get(self, begun: Future[Batch] | Indices) -> Batch:
        """Return the batch, or raise the error of its fetch."""
        start = perf_counter()
        try:
            return begun.result() if isinstance(begun, Future) else fetch(self._dataset, begun)
        finally:
            self.wait_s += perf_counter() - start

    def read_wait_s(self) -> float:
        """Return how long batches were waited for since the last call."""
        waited_s, self._reported_s = self.wait_s - self._reported_s, self.wait_s
        return waited_s

    def close(self) -> None:
        """Wait for the thread to end; batches that it has fetched are dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Prefetcher(Fetcher):
    """Iterates over a dataset's batches in the order of their indices; use it in a `with`.

    Args:
        dataset: Any map-style dataset of (input, …, target).
        batches: The indices of each batch; read by the consumer's thread, `depth` ahead.
        depth: Batches prefetched beside the one in use, at most. 0 fetches none ahead.
        mode: `auto`, `on` or `off` (see Fetcher).
    """

    def __init__(
        self, dataset: Any, batches: Iterable[Indices], depth: int = 2, mode: str = "auto"
    ) -> None:
        super().__init__(dataset, mode)
        self._batches = iter(batches)
        self._depth = depth if self.ahead else 0
        self._begun: deque[Future[Batch] | Indices] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        self._begin(self._depth + 1)
        if not self._begun:
            raise StopIteration
        first = self._begun.popleft()
        self._begin(self._depth)
        return self.get(first)

    def close(self) -> None:
        """End the thread; nothing can be read afterwards."""
        self._batches = iter(())
        self._begun.clear()
        super().close()

    def _begin(self, count: int) -> None:
        while len(self._begun) < count:
            try:
                indices = next(self._batches)
            except StopIteration:
                return
            self._begun.append(self.begin(indices))
