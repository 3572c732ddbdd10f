"""The built-in training loop on a parameter server: learners that do not wait for one another.

Each learner takes chunks of the global cursor: `push_every` batches of batch_size / learners
samples. It pushes after a chunk, and only then is the chunk done; so the unfinished chunk of a
learner that dies is given out again. Step and epoch mean the same as in the other loop: a step is
batch_size samples, by whichever learners. Buffers (running statistics of batch norm) belong to each
learner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from learner.data.chunk_loader import ChunkLoader
from learner.data.prefetch import Batch
from learner.data.sampling import batch_count
from learner.job.metrics import PROGRESS_INTERVAL_S
from learner.parameter_server.checkpoint_state import ServerTraining
from learner.parameter_server.coordinator import Coordinator
from learner.training.evaluation import Evaluation, HaltedInValidation, LossWatch
from psrv.cursor.base import Chunk, chunk_count, chunk_ranges
from psrv.cursor.file import FileCursor
from psrv.errors import LateError

_LINGER_S = 0.05
"""Pause between two looks for chunks of dead learners, once all chunks have been given out."""


class ServerLoop:
    """The training loop of one learner.

    Args:
        cursor: Of the training samples, with a pass for each epoch.
        sizes: Samples of a chunk, and of a batch.
        coordinator: The duties of learner 0; None on the others.
    """

    def __init__(
        self,
        training: ServerTraining,
        cursor: FileCursor,
        sizes: tuple[int, int],
        coordinator: Coordinator | None,
    ) -> None:
        trained, settings = training.trained, training.settings
        self._training, self._cursor, self._coordinator = training, cursor, coordinator
        self._settings, self._trained, self._reports = settings, trained, training.reports
        self._model, self._server_model = trained.parts.model, training.server_model
        self._samples, self._batch_samples = sizes
        self._evaluation = Evaluation(trained.parts, trained.device, training.learners)
        self._steps = batch_count(cursor.samples, settings.batch_size)
        self._watch = LossWatch(training.reports.say)
        self._batches = 0
        self._reported_at = float("-inf")
        self._stats: dict[str, float] = {}
        self._newest: tuple[int, int, dict[str, float]] | None = None
        """Step, epoch and values of the last chunk."""
        self._all_done = False
        """Whether all learners' chunks are trained on; this learner's last may not be the last."""

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
        except LateError as error:  # the chunk is given out again after `resume`
            self._reports.say(f"{error.message}: halting without the end of its chunk")
            return False
        finally:
            self._stats["pushes"] = float(self._server_model.stats.pushes)
            self._report_progress()

    def _all_chunks(self, loader: ChunkLoader) -> bool:
        if self._coordinator is not None:
            self._coordinator.finish_validation()
        while not self._training.halt.is_set:
            for chunk, batches in loader.chunks():
                self._train(chunk, batches, loader)
                if self._training.halt.is_set:
                    return False
            self._all_done = self._cursor.finished
            if self._all_done:
                return True
            self._linger()
        return False

    def _linger(self) -> None:
        """Wait for chunks of learners that die; nobody waits for this one meanwhile."""
        if self._coordinator is not None:
            self._coordinator.end_epochs_or_warn()
        if self._server_model.others_wait:
            self._server_model.leave()
        time.sleep(_LINGER_S)

    # A chunk ------------------------------------------------------------------------------------

    def _train(self, chunk: Chunk, batches: Iterator[Batch], loader: ChunkLoader) -> None:
        self._server_model.join()
        self._server_model.begin()
        self._training.saved.step_schedule(self._trained.schedule, chunk.pass_number)
        totals = [0.0] * len(self._evaluation.names)
        for start, stop in chunk_ranges(chunk.start, chunk.stop, self._batch_samples):
            self._trained.schedule.before_step(self._step_at(chunk.pass_number, start))
            sums = self._step(next(batches), stop - start, last=stop == chunk.stop)
            totals = [a + b for a, b in zip(totals, sums, strict=True)]
        self._server_model.exchange(self._training.rate.now())
        loader.done()
        self._report(chunk, totals, loader)

    def _step_at(self, pass_number: int, place: int) -> int:
        """Return how many steps come before a place in a pass."""
        return pass_number * self._steps + place // self._settings.batch_size

    def _step(self, batch: Batch, samples: int, *, last: bool) -> list[float]:
        """Train on a batch; return its sums of loss and metrics."""
        optimizer, weights = self._trained.parts.optimizer, self._server_model.sends_weights
        self._server_model.begin_batch()
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
        self._server_model.step(self._training.rate.now(), last=last)
        self._batches += 1
        return self._evaluation.sums(loss, outputs, targets, samples)

    # Reports ------------------------------------------------------------------------------------

    def _report(self, chunk: Chunk, totals: list[float], loader: ChunkLoader) -> None:
        names, samples = self._evaluation.names, chunk.samples
        values = {name: total / samples for name, total in zip(names, totals, strict=True)}
        step = self._step_at(chunk.pass_number, chunk.stop)
        self._watch.look(values["loss"], step)
        values["learning_rate"] = self._training.rate.now()
        values["batches"] = float(self._batches)
        self._newest = (step, chunk.pass_number + 1, values)
        now = time.monotonic()
        if now - self._reported_at >= PROGRESS_INTERVAL_S:
            self._reported_at, self._stats = now, self._server_model.stats.read()
            self._report_progress()
        if self._coordinator is not None:
            times: dict[str, Any] = {
                "exchange_s": self._server_model.stats.read_exchange_s(),
                "data_wait_s": loader.read_wait_s(),
            }
            batches = chunk_count(samples, self._batch_samples)
            self._coordinator.after_chunk(
                chunk.pass_number, step, totals, samples, batches, times, {**values, **self._stats}
            )

    def _report_progress(self) -> None:
        if self._newest is not None:
            step, epoch, values = self._newest
            done = min(1.0, step / (self._steps * self._settings.epochs))
            self._reports.progress.update(
                step, epoch, {**values, **self._stats}, warning=self._watch.warning,
                done=1.0 if self._all_done else done, force=True,
            )  # fmt: skip
