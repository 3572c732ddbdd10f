"""The built-in training loop on a parameter server: learners that do not wait for one another.

Each learner takes chunks of the global cursor: `push_every` batches of batch_size / learners
samples. After a chunk it pushes, and only then is the chunk done; so what a learner was at when it
died is given out again. Step and epoch mean what they mean in the other loop: a step is batch_size
samples, of whichever learners. Buffers (running statistics of batch norm) are each learner's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from dlctl.contract import Training
from learner.data.chunk_loader import ChunkLoader
from learner.data.prefetch import Batch
from learner.data.sampling import batch_count
from learner.job.metrics import PROGRESS_INTERVAL_S
from learner.model.lr_schedule import UsedRate
from learner.parameter_server.checkpoint_state import SavedServer
from learner.parameter_server.coordinator import FirstLearner
from learner.parameter_server.model import ServedModel
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Trained
from learner.training.evaluation import Evaluation, HaltedInValidation, LossWatch
from learner.training.loop import Reports
from psrv.cursor.base import Chunk, Cursor
from psrv.cursor.chunking import part_count, parts
from psrv.errors import LateError

_LINGER_S = 0.05
"""Between two looks for chunks of learners that died, once all have been given out."""


class ServerLoop:
    """One learner's part in a training.

    Args:
        settings: the manifest's.
        trained: the model and what belongs to it.
        served: its parameters.
        saved: knows how often the user's schedule was stepped.
        rate: the learning rate of pushes.
        cursor: of the training samples, with a pass for each epoch.
        sizes: samples of a chunk, and of a batch.
        reports: where it says what it does.
        halt: ends the training after the chunk.
        first: learner 0's duties, on learner 0.
    """

    def __init__(
        self,
        settings: Training,
        trained: Trained,
        served: ServedModel,
        saved: SavedServer,
        rate: UsedRate,
        cursor: Cursor,
        sizes: tuple[int, int],
        reports: Reports,
        halt: HaltFlag,
        first: FirstLearner | None,
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._model = trained.parts.model
        self._served = served
        self._saved = saved
        self._rate = rate
        self._cursor = cursor
        self._samples, self._batch_samples = sizes
        self._reports = reports
        self._halt = halt
        self._first = first
        self._evaluation = Evaluation(trained.parts, trained.device)
        self._steps = batch_count(cursor.samples, settings.batch_size)
        self._watch = LossWatch(reports.say)
        self._batches = 0
        self._told_at = float("-inf")
        self._told: dict[str, float] = {}
        self._newest: tuple[int, int, dict[str, float]] | None = None
        """Step, epoch and values of the last chunk."""

    def run(self) -> bool:
        """Train until nothing is left (True), or until a halt (False)."""
        self._model.train()
        try:
            with ChunkLoader(
                self._trained.parts.train, self._cursor, samples=self._samples,
                seed=self._settings.seed, batch_samples=self._batch_samples,
                prefetch=self._settings.prefetch,
            ) as loader:  # fmt: skip
                return self._all_chunks(loader)
        except HaltedInValidation:
            return False
        except LateError as error:  # what this learner is at is given out again after `resume`
            self._reports.say(f"{error.message}: halting without the end of its chunk")
            return False
        finally:
            self._told["pushes"] = float(self._served.stats.pushes)
            self._tell()

    def _all_chunks(self, loader: ChunkLoader) -> bool:
        if self._first is not None:
            self._first.end_what_was_broken_off()
        while not self._halt.is_set:
            for chunk, batches in loader.chunks():
                self._train(chunk, batches, loader)
                if self._halt.is_set:
                    return False
            if self._cursor.finished:
                return True
            self._linger()
        return False

    def _linger(self) -> None:
        """Wait for chunks of learners that die; nobody waits for this one meanwhile."""
        if self._first is not None:
            self._first.end_epochs_or_say()
        if self._served.others_wait:
            self._served.leave()
        time.sleep(_LINGER_S)

    # A chunk ------------------------------------------------------------------------------------

    def _train(self, chunk: Chunk, batches: Iterator[Batch], loader: ChunkLoader) -> None:
        self._served.join()
        self._served.begin()
        self._saved.step_schedule(self._trained.schedule, chunk.pass_number)
        totals = [0.0] * len(self._evaluation.names)
        for start, stop in parts(chunk.start, chunk.stop, self._batch_samples):
            self._trained.schedule.before_step(self._step_at(chunk.pass_number, start))
            sums = self._step(next(batches), stop - start, last=stop == chunk.stop)
            totals = [a + b for a, b in zip(totals, sums, strict=True)]
        self._served.exchange(self._rate.now())
        loader.done()
        self._report(chunk, totals, loader)

    def _step_at(self, pass_number: int, place: int) -> int:
        """Return how many steps are before a place in a pass."""
        return pass_number * self._steps + place // self._settings.batch_size

    def _step(self, batch: Batch, samples: int, *, last: bool) -> list[float]:
        """Train on a batch; return its sums of loss and metrics."""
        optimizer, weights = self._trained.parts.optimizer, self._served.sends_weights
        self._served.begin_batch()
        if weights:
            optimizer.zero_grad()
        outputs, targets = self._evaluation.forward(batch)
        loss = self._evaluation.loss(outputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        limit = self._settings.clip_gradient_norm
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit)
        if weights:
            optimizer.step()
        self._served.step(self._rate.now(), last=last)
        self._batches += 1
        return self._evaluation.sums(loss, outputs, targets, samples)

    # Reports ------------------------------------------------------------------------------------

    def _report(self, chunk: Chunk, totals: list[float], loader: ChunkLoader) -> None:
        names, samples = self._evaluation.names, chunk.samples
        values = {name: total / samples for name, total in zip(names, totals, strict=True)}
        step = self._step_at(chunk.pass_number, chunk.stop)
        self._watch.look(values["loss"], step)
        values["learning_rate"] = self._rate.now()
        values["batches"] = float(self._batches)
        self._newest = (step, chunk.pass_number + 1, values)
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_INTERVAL_S:
            self._told_at, self._told = now, self._served.stats.read()
            self._tell()
        if self._first is not None:
            times: dict[str, Any] = {
                "exchange_s": self._served.stats.read_exchange_s(),
                "data_wait_s": loader.read_wait_s(),
            }
            batches = part_count(samples, self._batch_samples)
            self._first.after_chunk(
                chunk.pass_number, step, totals, samples, batches, times, {**values, **self._told}
            )

    def _tell(self) -> None:
        if self._newest is not None:
            step, epoch, values = self._newest
            self._reports.progress.update(
                step, epoch, {**values, **self._told}, warning=self._watch.warning, force=True
            )
