"""The coordinator: learner 0's duties beside its own chunks, at ends of epochs and for checkpoints.

An epoch is over when all chunks of its pass are done. Learner 0 checks for that between its own
chunks, and validates the server's weights with its own buffers while the others continue; if
several epochs are over, it validates once. The training loss covers its own samples since the last
epoch. A checkpoint that is due is saved before the validation, which may run out of memory; an
attempt that continues from that checkpoint validates first, before any chunk.

A checkpoint holds the cursor's state, and the server's weights just after it. Pushes that came in
between belong to chunks that are trained again after `resume`; pushes of other nodes that are still
on their way are lost. Once all learners have left, as before the last checkpoint, it is exact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dlctl.contract.metrics import CLASSES, SECONDS, EventKind
from learner.data.sampling import batch_count
from learner.exchange.single import SingleExchange
from learner.job.context import RESTARTS_VARIABLE
from learner.job.metrics import StepTimes
from learner.parameter_server.checkpoint_state import ServerTraining, done_since, passes_done
from learner.parameter_server.rendezvous import wait_until_alone
from learner.training.checkpoints import CheckpointKeeper, Position
from learner.training.epoch_table import EpochTable
from learner.training.evaluation import Evaluation, HaltedInValidation
from psrv.cursor.base import CursorState, read_state
from psrv.cursor.file import FileCursor
from psrv.errors import LateError
from psrv.push.waiting import Wait, WaitPolicy

_RATES = ("learning_rate", "samples_per_s")
"""Reported last."""


class Coordinator:
    """The duties that learner 0 has beside its own chunks.

    Args:
        cursor: Of the training samples, with a pass for each epoch.
        timeout_s: How long to wait at the end for the other learners to leave; and how long an
            epoch's end may be held up before a warning.
        name_stragglers: Returns in words which other learners hold samples before a position.
    """

    def __init__(
        self,
        training: ServerTraining,
        cursor: FileCursor,
        keeper: CheckpointKeeper,
        note: Callable[[Position], None],
        timeout_s: float,
        name_stragglers: Callable[[int], str] = lambda _: "other learners",
    ) -> None:
        trained, settings = training.trained, training.settings
        self._training, self._cursor, self._keeper = training, cursor, keeper
        self._settings, self._trained, self._reports = settings, trained, training.reports
        self._server_model = training.server_model
        self._note, self._timeout_s, self._name_stragglers = note, timeout_s, name_stragglers
        self._held_up: Wait | None = None
        """Set while this learner is beyond the end of an epoch that is not over."""
        self._evaluation = Evaluation(trained.parts, trained.device)
        self._table = EpochTable(
            settings.epochs, self._evaluation.names, validated=trained.parts.validation is not None
        )
        self._steps = batch_count(len(trained.parts.train), settings.batch_size)
        self._times = StepTimes()
        self._last_step = 0
        self._rate_since = (0, time.monotonic())
        """Samples that were done, and when, at the end of the last epoch or the beginning."""
        self._reported_step = 0
        self._newest: dict[str, float] = {}
        self._saved_step: int | None = None
        """The step of the newest checkpoint that the metrics tell of."""
        self.position = Position()

    def begin(self, position: Position) -> None:
        """Continue from a position."""
        self.position = position
        self._last_step = position.step
        self._rate_since = (self._state().done_samples, time.monotonic())
        self._table.begin(position.epoch)
        self._times.begin()
        self._saved_step = self._keeper.saved_step
        if not int(os.environ.get(RESTARTS_VARIABLE) or 0):  # otherwise the others went on
            begun = f"continues from step {position.step}" if position.step else "training begins"
            classes = self._evaluation.classes()
            self._tell(EventKind.BEGIN, begun, {CLASSES: classes} if classes else {}, position.step)

    # After a chunk ------------------------------------------------------------------------------

    def after_chunk(
        self,
        pass_number: int,
        step: int,
        totals: list[float],
        samples: int,
        batches: int,
        times: dict[str, float],
        values: dict[str, float],
    ) -> None:
        """Report a chunk, end epochs and save checkpoints, as far as they are due.

        Args:
            step: The training's, at the chunk's end.
            totals: Sums over its samples, in the order of the evaluation's names.
            times: The time these took, in seconds, by name.
        """
        position, self._newest = self.position, values
        for name, total in zip(self._evaluation.names, totals, strict=True):
            position.sums[name] = position.sums.get(name, 0.0) + total
        position.samples += samples
        self._keeper.prepare(self._trained, position)
        times = {**times, "checkpoint_stall_s": self._keeper.stall_s}
        self._times.add(samples, batches, **times)
        save_due = self._keeper.overdue()
        for passed in range(self._last_step + 1, step + 1):
            save_due = self._keeper.due_after_step(passed) or save_due
        every = max(1, self._settings.log_every_steps)
        if step // every > self._last_step // every:
            self._record(step, {**values, **self._read_times()})
        self._last_step = max(self._last_step, step)
        ended = pass_number > position.epoch and self.end_epochs_or_warn(save_due=save_due)
        if save_due and not ended:
            self.save()

    # Epochs -------------------------------------------------------------------------------------

    def finish_validation(self) -> None:
        """Repeat a validation that a death or a halt has cut short; before the first chunk.

        Raises:
            HaltedInValidation: Halted again; the validation is repeated after `resume`.
        """
        newest = self.position.history[-1:]
        if (
            newest
            and self._validation_due(int(newest[0]["epoch"]))
            and not any(name.startswith("validation_") for name in newest[0])
        ):
            self._report_epoch({}, validate=True)
        self.end_epochs(final=True)

    def end_epochs_or_warn(self, *, save_due: bool = False) -> bool:
        """End epochs that are over; warn if other learners hold up the next one for long.

        Until then nothing is validated, and no checkpoint is saved for the end of an epoch.
        """
        if self.end_epochs(save_due=save_due):
            self._held_up = None
            return True
        epoch = self.position.epoch + 1
        stop = epoch * self._cursor.samples
        if self._held_up is None:
            self._held_up = WaitPolicy(self._timeout_s, self._warn_held_up).begin()
        whom = f"{{}}, which is at samples of epoch {epoch},"
        self._held_up.look(lambda: whom.format(self._name_stragglers(stop)), may_be_gone=False)
        return False

    def _warn_held_up(self, line: str) -> None:
        self._reports.say(f"WARNING: learner 0 {line}")

    def end_epochs(self, *, save_due: bool = False, final: bool = False) -> bool:
        """Report the epochs that are over since the last call; return whether there are any.

        Args:
            save_due: Save the state at their end, even if they don't ask for a checkpoint.
            final: Save it, and wait until it is written: the writer would die with this learner.

        Raises:
            HaltedInValidation: The validation is repeated after `resume`.
        """
        position, state = self.position, self._state()
        last = min(passes_done(state), self._settings.epochs)
        over = range(position.epoch + 1, last + 1)
        if not over:
            return False
        if last == self._settings.epochs:
            halted = WaitPolicy(self._timeout_s, late=lambda _: self._training.halt.is_set)
            self._wait_until_alone(halted)
        self._set_position(state)
        values = self._values_of(state)
        for epoch in over:
            position.history.append({"epoch": epoch, **values})
            if epoch < last:
                self._report_epoch({}, validate=False)
        position.epoch, position.samples, position.sums = last, 0, {}
        # An attempt without a server, which may continue from here, steps the schedule only at
        # this point.
        self._training.saved.step_schedule(self._trained.schedule, last)
        final = final or last == self._settings.epochs
        if save_due or final or any(map(self._keeper.due_after_epoch, over)):
            self.save(final=final)  # before the validation
            self._times.add(0, steps=0, checkpoint_stall_s=self._keeper.stall_s)
        validate = any(map(self._validation_due, over))
        self._report_epoch(self._read_times(), validate=validate)  # validation is not a step
        self._times.begin()
        return True

    def _values_of(self, state: CursorState) -> dict[str, float]:
        """Return the values of the epochs that are over since the last call."""
        position = self.position
        values = {name: total / position.samples for name, total in position.sums.items()}
        values["learning_rate"] = self._training.rate.now()
        (done, began), now = self._rate_since, time.monotonic()
        self._rate_since = (state.done_samples, now)
        if state.done_samples > done:  # otherwise it was over before this learner began
            values["samples_per_s"] = (state.done_samples - done) / max(now - began, 1e-9)
        return values

    def _read_times(self) -> dict[str, float]:
        """Return where this learner's time went, without the sample rate, which is its own only."""
        times = self._times.read()
        times.pop("samples_per_s", None)
        return times

    def _report_epoch(self, times: dict[str, float], *, validate: bool) -> None:
        """Report the newest epoch of the history."""
        position, values = self.position, self.position.history[-1]
        if validate:
            rates = {name: values.pop(name) for name in _RATES if name in values}
            values.update({**self._validate(), **rates})
        epoch = int(values["epoch"])
        numbers = {name: value for name, value in values.items() if name != "epoch"}
        self._record(position.step, {**times, **numbers}, epoch=epoch)
        for line in self._table.lines(epoch, position.history):
            self._reports.say(line)
        self._note(position)

    def _validation_due(self, epoch: int) -> bool:
        """Return whether to validate the weights after this epoch, counted from 1."""
        every = max(1, self._settings.validate_every_epochs)
        last = epoch == self._settings.epochs
        return self._trained.parts.validation is not None and (last or epoch % every == 0)

    def _validate(self) -> dict[str, float]:
        self._server_model.join()
        began = time.perf_counter()
        try:
            with self._server_model.as_on_server():
                size = self._settings.batch_size
                values = self._evaluation.validate(size, SingleExchange(), self._halted)
        finally:
            self._trained.parts.model.train()
        took = {SECONDS: time.perf_counter() - began}
        self._tell(EventKind.VALIDATION, "validated", took, self.position.step)
        return values

    def _halted(self) -> bool:
        """Return whether a halt has come; called at each batch, which is progress."""
        self._reports.progress.touch()
        return self._training.halt.is_set

    def _record(self, step: int, values: dict[str, float], *, epoch: int | None = None) -> None:
        epoch = self.position.epoch + 1 if epoch is None else epoch
        # This learner's chunk may be ahead of what all learners have done.
        step = self._reported_step = max(step, self._reported_step)
        self._reports.progress.update(step, epoch, {**self._newest, **values}, force=True)
        if self._reports.metrics is not None:
            self._reports.metrics.append(step, epoch, values)
        saved = self._keeper.saved_step
        if saved is not None and saved != self._saved_step:
            self._saved_step = saved
            cost = {SECONDS: self._keeper.cost_s}
            self._tell(EventKind.CHECKPOINT, f"checkpoint of step {saved}", cost, saved)

    def _tell(self, kind: EventKind, event: str, values: dict[str, float], step: int) -> None:
        """Note an event in the metrics."""
        if self._reports.metrics is not None:
            epoch = min(self.position.epoch + 1, self._settings.epochs)
            self._reports.metrics.tell(step, epoch, event, kind, values)

    # Checkpoints --------------------------------------------------------------------------------

    def save(self, *, final: bool = False) -> bool:
        """Save the server's weights and the cursor's state; see CheckpointKeeper.save."""
        state = self._state()  # before the weights, which then include what is done: see the module
        self._set_position(state)
        if not final and not self._keeper.ready(self.position.step):
            return False
        self._server_model.join()
        with self._server_model.as_on_server(), self._training.saved.saving(state):
            return self._keeper.save(self._trained, self.position, final=final)

    def save_last(self, wait_policy: WaitPolicy) -> bool:
        """Save once the others have left after a halt, or the wait has timed out."""
        self._wait_until_alone(wait_policy)
        return self.save(final=True)

    def _wait_until_alone(self, wait_policy: WaitPolicy) -> None:
        """Wait until the others have left; their last round ends without this learner."""
        if self._server_model.others_wait:  # also in a round that began before the halt
            self._server_model.leave()
        wait_until_alone(self._cursor, wait_policy)

    def finish(self) -> bool:
        """End the training; the model then has the server's weights.

        Returns:
            False if a halt has ended the last validation.
        """
        self._server_model.join()
        try:
            self.end_epochs()
        except (HaltedInValidation, LateError):
            return False
        if self._keeper.saved_step != self.position.step:
            self.save(final=True)
        self._server_model.join()
        self._server_model.pull(fresh=True)
        return True

    def _state(self) -> CursorState:
        return read_state(self._cursor.state(), self._cursor.samples, self._cursor.passes)

    def _set_position(self, state: CursorState) -> None:
        """Set the position to what all learners have done."""
        epochs, done = divmod(state.done_samples, state.samples)
        self.position.step = epochs * self._steps + done // self._settings.batch_size
        # for an allreduce that continues from here
        self.position.batch = 0
        self.position.done = done_since(state, self.position.epoch)
