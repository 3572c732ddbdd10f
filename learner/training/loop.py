"""The built-in training loop: data-parallel, synchronous, deterministic.

A global batch is divided over the learners. Each computes the gradient of its share, weighted by
its samples; the sum in rank order is the gradient of the whole batch. Every learner then takes the
same optimizer step. A learner's share may be empty.

During an epoch each learner has its own buffers (the running statistics of batch norm); rank 0's
are broadcast before each validation and at the end. Checkpoints keep those of every rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dlctl.contract import Rehearsal, Training
from dlctl.contract.metrics import CHECKPOINT_S, CLASSES, SAMPLES_PER_S, SECONDS, EventKind
from learner.data.prefetch import Prefetcher
from learner.data.sampling import Share, batch_count, epoch_order, places_left, share_of_batch
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.exchange import Exchange
from learner.job.metrics import MetricsFile, Progress, StepTimes
from learner.rehearsal.drill import Drill
from learner.system.signals import HaltFlag
from learner.training.checkpoints import CheckpointKeeper, Position, Trained
from learner.training.epoch_table import EpochTable
from learner.training.evaluation import Evaluation, HaltedInValidation, LossWatch, sum_in_order
from learner.training.steering import Steering, StepControl


@dataclass(frozen=True)
class Reports:
    """Where the loop reports what it does."""

    say: Callable[[str], None]
    """Prints a line on rank 0, and nothing on other ranks."""
    progress: Progress
    metrics: MetricsFile | None
    """Set on rank 0 only: the values cover all learners."""


@dataclass(frozen=True)
class _After:
    """The actions that are due after a step."""

    halt: bool
    save: bool
    newest_order: int


class Trainer:
    """One training, from a position to its end or a halt."""

    def __init__(
        self,
        settings: Training,
        trained: Trained,
        optimizer: DistributedOptimizer,
        exchange: Exchange,
        keeper: CheckpointKeeper,
        reports: Reports,
        halt: HaltFlag,
        steering: Steering | None = None,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self._control = StepControl(steering or Steering(), settings, exchange)
        self._settings = settings
        self._trained = trained
        self._parts = trained.parts
        self._exchange = exchange
        self._keeper = keeper
        self._reports = reports
        self._halt = halt
        self._optimizer = optimizer
        self._times = StepTimes()
        self._evaluation = Evaluation(self._parts, trained.device, exchange.size)
        self._names = self._evaluation.names
        self._steps = 0
        """How many steps the current epoch has, or what is left of it."""
        self._share_before = 0.0
        """The share of the current epoch that those steps leave out."""
        validated = self._parts.validation is not None
        self._table = EpochTable(settings.epochs, self._names, validated=validated)
        self._watch = LossWatch(reports.say)
        self._drill = Drill(rehearsal, exchange.rank, self._tell_now, lambda: halt.is_set)
        self._saved_step: int | None = None
        """The step of the newest checkpoint that the metrics tell of."""
        self.position = Position()

    def run(self, position: Position) -> bool:
        """Train from a position; return False if a halt came before the end."""
        self.position = position
        self._table.begin(position.epoch)
        begun = f"continues from step {position.step}" if position.step else "training begins"
        self._saved_step = self._keeper.saved_step
        classes = self._evaluation.classes() if self._reports.metrics is not None else None
        self._note(EventKind.BEGIN, begun, {CLASSES: classes} if classes else None)
        self._times.begin()
        validated = self._names if self._parts.validation is not None else ()
        self._control.check([*self._names, *(f"validation_{name}" for name in validated)])
        self._control.leave_out(position, len(self._parts.train), self._tell)
        while position.epoch < self._settings.epochs and not self._drill.over(position.step):
            try:
                if not self._epoch():
                    return False
            except HaltedInValidation:
                return False
            if position.batch == 0 and self._control.reached_plateau(position):
                break
        self.share_buffers()
        self._keeper.save(self._trained, position, final=True)
        self._note_checkpoint()
        if self._drill.active:
            self._record({CHECKPOINT_S: self._keeper.cost_s}, force=True)
        return True

    def share_buffers(self) -> None:
        """Broadcast rank 0's buffers to all learners."""
        self._exchange.broadcast(self._parts.model.buffers())

    # One epoch ----------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        position, settings = self.position, self._settings
        samples = len(self._parts.train)
        left = places_left(samples, position.epoch, position.done)
        order = epoch_order(samples, settings.seed, position.epoch)[left]
        self._steps = batch_count(len(order), self._control.batch_size(position))
        self._share_before = 1 - len(order) / max(1, samples)
        started_at, trained_before = time.monotonic(), position.samples
        self._parts.model.train()
        first = position.batch
        halt = save_due = False
        with self._prefetched(self._parts.train, self._shares(order, first)) as batches:
            for share in self._shares(order, first):
                self._drill.disturb(position.step)
                after = self._step(share, batches)
                self._keeper.prepare(self._trained, position)
                halt = halt or after.halt
                save_due = save_due or after.save or self._keeper.due_after_step(position.step)
                if not self._optimizer.settled or position.batch == self._steps:
                    continue  # local SGD: weights differ between learners until they are averaged
                if halt:
                    return False
                if self._settings.steps is not None and position.step >= self._settings.steps:
                    break
                resized = False
                if after.newest_order > position.orders:
                    save, resized = self._control.obey(
                        after.newest_order, self._trained, position, self._tell
                    )
                    save_due = save_due or save
                if save_due:  # if postponed, it becomes overdue as soon as the writer is free
                    self._keeper.save(self._trained, position)
                    save_due = False
                if resized or self._drill.over(position.step):
                    return True  # the rest of the epoch has other batches, or is left out
        elapsed_s = time.monotonic() - started_at
        done = position.samples - trained_before
        self._optimizer.settle()
        self._times.add(0, steps=0, exchange_s=self._optimizer.read_exchange_s())
        if halt:
            return False
        self._end_epoch(done / elapsed_s if elapsed_s > 0 else 0.0, save_due)
        return True

    def _shares(self, order: NDArray[np.int64], first: int) -> Iterator[Share]:
        """Yield this learner's share of each batch, beginning with batch `first`."""
        rank, learners = self._exchange.rank, self._exchange.size
        size = self._control.batch_size(self.position)
        for batch in range(first, self._steps):
            yield share_of_batch(order, batch, size, rank, learners)

    def _prefetched(self, dataset: Any, shares: Iterable[Share]) -> Prefetcher:
        """Return the batches of the shares that are not empty, in order."""
        indices = (share.indices for share in shares if len(share.indices) > 0)
        return Prefetcher(dataset, indices, mode=self._settings.prefetch)

    def _end_epoch(self, samples_per_s: float, save_due: bool) -> None:
        position, times = self.position, self._times.read()  # before validation, which is no step
        # Empty after an epoch on a parameter server to which learner 0 did not contribute.
        values = {name: total / position.samples for name, total in position.sums.items()}
        if self._validation_due():
            values.update(self._validate())
        values["learning_rate"] = self._learning_rate()
        values[SAMPLES_PER_S] = samples_per_s
        if cost_s := self._keeper.cost_s:
            values[CHECKPOINT_S] = cost_s
        loss = values.get("validation_loss", values.get("loss", math.nan))
        self._trained.schedule.after_epoch(loss)
        position.epoch += 1
        position.batch, position.samples, position.sums = 0, 0, {}
        over = position.epoch * len(self._parts.train)
        position.done = [(start, stop) for start, stop in position.done if stop > over]
        position.history.append({"epoch": position.epoch, **values})
        self._record({**times, **values}, force=True)
        for line in self._table.lines(position.epoch, position.history):
            self._reports.say(line)
        self._times.begin()  # the time of a checkpoint from here on counts for the next steps
        if save_due or self._keeper.due_after_epoch(position.epoch):
            self._keeper.save(self._trained, position)

    def _validation_due(self) -> bool:
        epoch = self.position.epoch + 1
        every = max(1, self._settings.validate_every_epochs)
        last = epoch == self._settings.epochs
        return self._parts.validation is not None and (last or epoch % every == 0)

    # One step -----------------------------------------------------------------------------------

    def _step(self, share: Share, batches: Prefetcher) -> _After:
        """Take one optimizer step; return what is due after it."""
        self._optimizer.zero_grad()
        sums = self._backward(share, batches)
        self._optimizer.finish()
        flags = [float(self._halt.is_set), float(self._keeper.overdue())]
        rows = self._exchange.gather([*sums, *flags, float(self._control.newest(self.position))])
        totals = sum_in_order(rows[:, : len(sums)])
        halts, overdue, newest = rows[:, -3], rows[0, -2], rows[0, -1]
        loss = totals[0] / share.batch_samples
        self._control.heed_loss(loss, self.position.step + 1, self._keeper.finish)
        self._update()
        self._times.add(
            share.batch_samples,
            exchange_s=self._optimizer.read_exchange_s(),
            data_wait_s=batches.read_wait_s(),
            checkpoint_stall_s=self._keeper.stall_s,
        )
        self._count(totals, share.batch_samples)
        return _After(bool(halts.any()), bool(overdue), int(newest))

    def _backward(self, share: Share, batches: Prefetcher) -> list[float]:
        """Compute the gradient of the share; return its sums of loss and metrics."""
        if len(share.indices) == 0:
            return [0.0] * len(self._names)
        outputs, targets = self._evaluation.forward(next(batches))
        loss = self._evaluation.loss(outputs, targets)
        # In local SGD a step uses the gradient of the learner's own samples, unweighted.
        weight = share.weight if self._optimizer.average_every == 1 else 1.0
        (loss * weight).backward()  # type: ignore[no-untyped-call]
        return self._evaluation.sums(loss, outputs, targets, len(share.indices))

    def _update(self) -> None:
        limit = self._control.clip_gradient_norm(self.position)
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(self._parts.model.parameters(), limit)
        self._trained.schedule.before_step(self.position.step)
        self._optimizer.step()

    def _count(self, totals: list[float], samples: int) -> None:
        position = self.position
        position.step += 1
        position.batch += 1
        position.samples += samples
        for name, total in zip(self._names, totals, strict=True):
            position.sums[name] = position.sums.get(name, 0.0) + total
        values = {n: t / samples for n, t in zip(self._names, totals, strict=True)}
        self._watch.look(values["loss"], position.step)
        log_due = position.step % max(1, self._settings.log_every_steps) == 0
        if log_due and position.batch < self._steps:  # the end of the epoch writes its own line
            rates = {"learning_rate": self._learning_rate(), **self._times.read()}
            if cost_s := self._keeper.cost_s:
                rates[CHECKPOINT_S] = cost_s
            self._record({**values, **rates})
        else:
            self._reports.progress.update(
                position.step, position.epoch + 1, values, warning=self._watch.warning,
                done=self._share_done(),
            )  # fmt: skip

    # Validation ---------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        """Return loss and metrics of the validation data."""
        began = time.monotonic()
        self.share_buffers()
        size = self._control.batch_size(self.position)
        values = self._evaluation.validate(size, self._exchange, self._halted)
        self._note(EventKind.VALIDATION, "validated", {SECONDS: time.monotonic() - began})
        return values

    def _halted(self) -> bool:
        """Return whether a halt has come; called at each batch, which is progress."""
        self._reports.progress.touch()
        return self._halt.is_set

    # Reports ------------------------------------------------------------------------------------

    def _record(self, values: dict[str, float], *, force: bool = False) -> None:
        position = self.position
        epoch = position.epoch + (position.batch > 0)  # counted from 1
        self._reports.progress.update(
            position.step, epoch, values, warning=self._watch.warning, done=self._share_done(),
            force=force,
        )  # fmt: skip
        if self._reports.metrics is not None:
            self._reports.metrics.append(position.step, epoch, values)
        self._note_checkpoint()

    def _tell(self, event: str) -> None:
        self._reports.say(f"step {self.position.step}: {event}")
        self._note(EventKind.ORDER, event)

    def _note(
        self, kind: EventKind, event: str, values: dict[str, float] | None = None, step: int = -1
    ) -> None:
        """Note an event in the metrics, of this step by default."""
        position = self.position
        if self._reports.metrics is not None:
            at = position.step if step < 0 else step
            epoch = min(position.epoch + 1, self._settings.epochs)
            self._reports.metrics.tell(at, epoch, event, kind, values)

    def _note_checkpoint(self) -> None:
        """Note the newest checkpoint once it is safe on the disk."""
        step = self._keeper.saved_step
        if step is None or step == self._saved_step:
            return
        self._saved_step = step
        cost = {SECONDS: self._keeper.cost_s}
        self._note(EventKind.CHECKPOINT, f"checkpoint of step {step}", cost, step)

    def _tell_now(self, event: str) -> None:
        """Tell an event, and the supervisor the step."""
        self._record(self._times.read(), force=True)
        self._tell(event)

    def _share_done(self) -> float:
        share = self.position.batch / max(1, self._steps) if self.position.batch else 0.0
        before = self._share_before if self.position.samples else 0.0
        epochs = self.position.epoch + before + (1 - before) * share
        return epochs / self._settings.epochs

    def _learning_rate(self) -> float:
        return float(self._parts.optimizer.param_groups[0]["lr"])
