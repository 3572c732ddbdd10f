"""What learner 0 does beside its own chunks: the ends of epochs, and checkpoints.

An epoch is over when all chunks of its pass are done. Learner 0 looks for that between its own
chunks, and validates the server's weights with its own buffers, while the others go on: once,
where several epochs are over. The training loss is that of its own samples since the epoch before.
A checkpoint that is due is saved before the validation, which may need memory that is not there;
whoever goes on from it validates first, before any chunk.

A checkpoint holds the cursor's state, and the server's weights as they are just after it: of pushes
that came in between the chunks are done again after `resume`; of those of another node, which may
still be on their way, they are not. When all have left, as before that of the end, it is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from dlctl.contract import Training
from learner.data.sampling import batch_count
from learner.exchange.single import SingleExchange
from learner.job.metrics import StepTimes, readable
from learner.model.lr_schedule import UsedRate
from learner.parameter_server.checkpoint_state import SavedServer, done_since, passes_done
from learner.parameter_server.model import ServedModel
from learner.parameter_server.rendezvous import wait_until_alone
from learner.system.signals import HaltFlag
from learner.training.checkpoints import CheckpointKeeper, Position, Trained
from learner.training.evaluation import Evaluation, HaltedInValidation
from learner.training.loop import Reports
from psrv.cursor.base import CursorState, read_state
from psrv.cursor.file import FileCursor
from psrv.errors import LateError
from psrv.push.waiting import Patience, Wait

_RATES = ("learning_rate", "samples_per_s")
"""Told last."""


class FirstLearner:
    """Learner 0's duties.

    Args:
        settings: the manifest's.
        trained: the model and what belongs to it.
        served: its parameters.
        rate: the learning rate of pushes.
        saved: what a checkpoint keeps of the server.
        cursor: of the training samples, with a pass for each epoch.
        keeper: of the checkpoints.
        reports: where it says what it does.
        halt: ends a validation.
        note: gets the position after each epoch.
        timeout_s: how long the other learners' leaving is waited for at the end; and, without a
            word, the end of an epoch that others hold up.
        who_is_at: says which other learners hold samples before a place of all passes.
    """

    def __init__(
        self,
        settings: Training,
        trained: Trained,
        served: ServedModel,
        rate: UsedRate,
        saved: SavedServer,
        cursor: FileCursor,
        keeper: CheckpointKeeper,
        reports: Reports,
        halt: HaltFlag,
        note: Callable[[Position], None],
        timeout_s: float,
        who_is_at: Callable[[int], str] = lambda _: "other learners",
    ) -> None:
        self._settings = settings
        self._trained = trained
        self._served = served
        self._rate = rate
        self._saved = saved
        self._cursor = cursor
        self._keeper = keeper
        self._reports = reports
        self._halt = halt
        self._note = note
        self._timeout_s = timeout_s
        self._who_is_at = who_is_at
        self._held_up: Wait | None = None
        """Since this learner is beyond the end of an epoch that is not over."""
        self._evaluation = Evaluation(trained.parts, trained.device)
        self._steps = batch_count(len(trained.parts.train), settings.batch_size)
        self._times = StepTimes()
        self._seen_step = 0
        self._rate_since = (0, time.monotonic())
        """Samples that were done, and when, at the last epoch's end or the begin."""
        self._told_step = 0
        self._newest: dict[str, float] = {}
        self.position = Position()

    def begin(self, position: Position) -> None:
        """Go on from a position."""
        self.position = position
        self._seen_step = position.step
        self._rate_since = (self._state().done_samples, time.monotonic())
        self._times.begin()

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
        """Do what is due.

        Args:
            pass_number: The chunk's.
            step: Of the training, at the chunk's end.
            totals: Sums over its samples, of the evaluation's names.
            samples: How many they are.
            batches: And how many batches.
            times: What these took in all, in seconds, by name.
            values: What else is to be told of it.
        """
        position, self._newest = self.position, values
        for name, total in zip(self._evaluation.names, totals, strict=True):
            position.sums[name] = position.sums.get(name, 0.0) + total
        position.samples += samples
        self._keeper.prepare(self._trained, position)
        times = {**times, "checkpoint_stall_s": self._keeper.stall_s}
        self._times.add(samples, batches, **times)
        save_due = self._keeper.overdue()
        for passed in range(self._seen_step + 1, step + 1):
            save_due = self._keeper.due_after_step(passed) or save_due
        every = max(1, self._settings.log_every_steps)
        if step // every > self._seen_step // every:
            self._record(step, {**values, **self._read_times()})
        self._seen_step = max(self._seen_step, step)
        ended = pass_number > position.epoch and self.end_epochs_or_say(save_due=save_due)
        if save_due and not ended:
            self.save()

    # Epochs -------------------------------------------------------------------------------------

    def end_what_was_broken_off(self) -> None:
        """Validate where a death or a halt has kept this from being done; before the first chunk.

        Raises:
            HaltedInValidation: the validation is done again after `resume`.
        """
        newest = self.position.history[-1:]
        if (
            newest
            and self._validation_due(int(newest[0]["epoch"]))
            and not any(name.startswith("validation_") for name in newest[0])
        ):
            self._tell_epoch({}, validate=True)
        self.end_epochs(final=True)

    def end_epochs_or_say(self, *, save_due: bool = False) -> bool:
        """End epochs that are over; say who is at the next one, if others hold it up for long.

        Until then nothing is validated, and no checkpoint of an epoch's end is taken.
        """
        if self.end_epochs(save_due=save_due):
            self._held_up = None
            return True
        epoch = self.position.epoch + 1
        stop = epoch * self._cursor.samples
        if self._held_up is None:
            self._held_up = Patience(self._timeout_s, self._say_held_up).begin()
        whom = f"{{}}, which is at samples of epoch {epoch},"
        self._held_up.look(lambda: whom.format(self._who_is_at(stop)), may_be_gone=False)
        return False

    def _say_held_up(self, line: str) -> None:
        self._reports.say(f"WARNING: learner 0 {line}")

    def end_epochs(self, *, save_due: bool = False, final: bool = False) -> bool:
        """Tell the epochs that are over since this was last called; return whether there are any.

        Args:
            save_due: Save the state at their end, even if they ask for no checkpoint.
            final: Do so, and wait until it is written: the writer would die with this learner.

        Raises:
            HaltedInValidation: the validation is done again after `resume`.
        """
        position, state = self.position, self._state()
        last = min(passes_done(state), self._settings.epochs)
        over = range(position.epoch + 1, last + 1)
        if not over:
            return False
        if last == self._settings.epochs:
            halted = Patience(self._timeout_s, late=lambda _: self._halt.is_set)
            self._wait_until_alone(halted)
        self._go_to(state)
        values = self._values_of(state)
        for epoch in over:
            position.history.append({"epoch": epoch, **values})
            if epoch < last:
                self._tell_epoch({}, validate=False)
        position.epoch, position.samples, position.sums = last, 0, {}
        # An attempt without a server, which may go on from here, knows no other place than that.
        self._saved.step_schedule(self._trained.schedule, last)
        final = final or last == self._settings.epochs
        if save_due or final or any(map(self._keeper.due_after_epoch, over)):
            self.save(final=final)  # before the validation
            self._times.add(0, steps=0, checkpoint_stall_s=self._keeper.stall_s)
        validate = any(map(self._validation_due, over))
        self._tell_epoch(self._read_times(), validate=validate)  # validation is no step
        self._times.begin()
        return True

    def _values_of(self, state: CursorState) -> dict[str, float]:
        """Return what is told of each of the epochs that are over since this was last called."""
        position = self.position
        values = {name: total / position.samples for name, total in position.sums.items()}
        values["learning_rate"] = self._rate.now()
        (done, began), now = self._rate_since, time.monotonic()
        self._rate_since = (state.done_samples, now)
        if state.done_samples > done:  # or else it was over before this learner began
            values["samples_per_s"] = (state.done_samples - done) / max(now - began, 1e-9)
        return values

    def _read_times(self) -> dict[str, float]:
        """Return where this learner's time went; its samples alone are no rate of the training."""
        times = self._times.read()
        times.pop("samples_per_s", None)
        return times

    def _tell_epoch(self, times: dict[str, float], *, validate: bool) -> None:
        """Tell the newest epoch of the history."""
        position, values = self.position, self.position.history[-1]
        if validate:
            rates = {name: values.pop(name) for name in _RATES if name in values}
            values.update({**self._validate(), **rates})
        epoch = int(values["epoch"])
        told = {name: value for name, value in values.items() if name != "epoch"}
        self._record(position.step, {**times, **told}, epoch=epoch)
        self._reports.say(
            f"epoch {epoch}/{self._settings.epochs}  step {position.step}  {readable(told)}"
        )
        self._note(position)

    def _validation_due(self, epoch: int) -> bool:
        """Return whether the weights are to be validated after this epoch, counted from 1."""
        every = max(1, self._settings.validate_every_epochs)
        last = epoch == self._settings.epochs
        return self._trained.parts.validation is not None and (last or epoch % every == 0)

    def _validate(self) -> dict[str, float]:
        self._served.join()
        try:
            with self._served.as_on_server():
                return self._evaluation.validate(
                    self._settings.batch_size, SingleExchange(), lambda: self._halt.is_set
                )
        finally:
            self._trained.parts.model.train()

    def _record(self, step: int, values: dict[str, float], *, epoch: int | None = None) -> None:
        epoch = self.position.epoch + 1 if epoch is None else epoch
        # A chunk of this learner may be further than what all learners have done.
        step = self._told_step = max(step, self._told_step)
        self._reports.progress.update(step, epoch, {**self._newest, **values}, force=True)
        if self._reports.metrics is not None:
            self._reports.metrics.append(step, epoch, values)

    # Checkpoints --------------------------------------------------------------------------------

    def save(self, *, final: bool = False) -> bool:
        """Save the server's weights and the cursor's state; see CheckpointKeeper.save."""
        state = self._state()  # before the weights: what is done is in them, see above
        self._go_to(state)
        if not final and not self._keeper.ready(self.position.step):
            return False
        self._served.join()
        with self._served.as_on_server(), self._saved.saving(state):
            return self._keeper.save(self._trained, self.position, final=final)

    def save_last(self, patience: Patience) -> bool:
        """Save once the others have left after a halt, or the patience is over."""
        self._wait_until_alone(patience)
        return self.save(final=True)

    def _wait_until_alone(self, patience: Patience) -> None:
        """Wait for the others, who leave once their last round has ended: without this learner."""
        if self._served.others_wait:  # also in a round that some had begun before they were halted
            self._served.leave()
        wait_until_alone(self._cursor, patience)

    def finish(self) -> bool:
        """End the training: the model has the server's weights from here on.

        Returns:
            False if a halt has ended the last validation.
        """
        self._served.join()
        try:
            self.end_epochs()
        except (HaltedInValidation, LateError):
            return False
        if self._keeper.saved_step != self.position.step:
            self.save(final=True)
        self._served.join()
        self._served.pull(fresh=True)
        return True

    def _state(self) -> CursorState:
        return read_state(self._cursor.state(), self._cursor.samples, self._cursor.passes)

    def _go_to(self, state: CursorState) -> None:
        """Note how far all learners are."""
        epochs, done = divmod(state.done_samples, state.samples)
        self.position.step = epochs * self._steps + done // self._settings.batch_size
        # For an allreduce that goes on from here.
        self.position.batch = 0
        self.position.done = done_since(state, self.position.epoch)
