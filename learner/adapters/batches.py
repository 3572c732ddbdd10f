"""Which samples a step takes, as a function of the step: a program that goes on takes the next."""

from __future__ import annotations

import random
from collections.abc import Iterator


class Batches:
    """The batches of this learner, epoch after epoch, each epoch in an order of its own.

    A `batch_sampler` for torch's DataLoader, or any loop's source of indices. Every iteration is
    the rest of one epoch: the first one begins where `first_step` is, the next ones are whole.

    Args:
        samples: How many there are.
        batch_size: Of all learners together.
        first_step: How many steps were taken before.
        rank, learners: Which part of each batch is this learner's.
    """

    def __init__(
        self, samples: int, batch_size: int, first_step: int = 0, *, seed: int = 0,
        rank: int = 0, learners: int = 1,
    ) -> None:  # fmt: skip
        if batch_size < learners or batch_size > samples:
            raise ValueError(
                f"batch_size {batch_size} must be at least {learners}, one for each learner, and "
                f"at most {samples}, the samples"
            )
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._mine = slice(rank, None, learners)
        self._step = first_step

    def __len__(self) -> int:
        """Return the steps of an epoch; samples that fill no batch are left out."""
        return self._samples // self._batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """Return the batches of the epoch in which the next step falls."""
        epoch, first = divmod(self._step, len(self))
        self._step = (epoch + 1) * len(self)
        order = list(range(self._samples))
        random.Random(f"{self._seed} {epoch}").shuffle(order)  # noqa: S311
        for number in range(first, len(self)):
            batch = order[number * self._batch_size : (number + 1) * self._batch_size]
            yield batch[self._mine]
