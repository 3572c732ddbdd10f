"""The end of a training: index its results, and copy them to its data stores.

Training may have taken weeks, so what fails here never makes a later attempt train again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plan, State, VerdictKind, to_json
from learner import storage
from learner.errors import SiteFault, UserFault
from learner.job.directives import is_superseded
from learner.job.outcome import Outcome, fault_outcome, verdict_of
from learner.lifecycle.history import trained
from learner.storage.index import tell_index, write_index
from learner.supervisor.control import Control
from learner.supervisor.finish import say

_FOR_THE_VERDICT_S = 15.0
"""How long before the end of its time a job stops copying what did not complete."""


def trained_before(plan: Plan, job_dir: Path, attempt: int) -> Outcome | None:
    """Return the outcome of an earlier attempt that has trained this code but not stored all."""
    found = trained(job_dir, plan, attempt)
    if found is None:
        return None
    earlier, done = found
    say(f"Attempt {earlier} has trained already: its results are stored now.")
    return Outcome(done.state, VerdictKind(done.kind), done.reason, done.hint)


@dataclass(frozen=True)
class Storing:
    """The storing of one attempt's results."""

    plan: Plan
    job_dir: Path
    attempt: int
    control: Control
    beat: Callable[[], None]
    show: Callable[[storage.Moving], None] = lambda _: None

    def store(self, outcome: Outcome) -> Outcome:
        """Index the results; if the training completed, copy them to its stores."""
        if self.control.cancelled() and outcome.state is not State.COMPLETED:
            outcome = Outcome(State.CANCELLED, VerdictKind.CANCELLED, "Cancelled on request.")
        folder = self.job_dir / contract.attempt_dir(self.attempt)
        try:
            if outcome.state is State.COMPLETED:
                done = verdict_of(self.job_dir, self.attempt, outcome)
                contract.write_whole(
                    self.job_dir / contract.trained_file(self.attempt), to_json(done)
                )
            index = write_index(folder, self.beat)
            for line in tell_index(index):
                say(f"  {line}")
            if outcome.state is State.COMPLETED:
                publication = storage.Publication(self.attempt, self._tick, self._check)
                results = folder / contract.RESULTS
                for line in storage.save(self.plan, results, index, publication):
                    say(f"  {line}")
                self._save_all(outcome, publication)
            else:
                self._save_all_if_time(outcome)
        except storage.Interrupted:
            return self._interrupted()
        except (UserFault, OSError) as error:
            return self._not_stored(outcome, error)
        return outcome

    def _save_all(self, outcome: Outcome, publication: storage.Publication) -> None:
        state = outcome.state.value
        done = storage.save_all(self.plan, self.job_dir, state, publication, self.show)
        for line in done:
            say(f"  {line}")
        for store in storage.takes_all(self.plan):
            if store.via != "node":
                say(f"  {store.id}: store them with `dlctl stores save {self.plan.training_id}`")

    def _save_all_if_time(self, outcome: Outcome) -> None:
        """Store what a training has made that did not complete; its verdict comes first."""
        request = self.control.request()
        is_ending = request is not None and (request.terminated or request.action == "stop")
        if is_ending or not storage.takes_all(self.plan):
            return
        left_s = self.control.left_s()
        until = math.inf if left_s is None else time.monotonic() + left_s - _FOR_THE_VERDICT_S

        def tick() -> None:
            self._tick()
            request = self.control.request()
            if time.monotonic() > until or (request is not None and request.terminated):
                raise storage.Interrupted

        try:
            self._save_all(outcome, storage.Publication(self.attempt, tick, self._check))
        except storage.Interrupted:
            say("Warning: there was no time to copy everything to the data stores.")

    def _tick(self) -> None:
        """Beat, and raise Interrupted on a cancel; a halt has nothing left to save."""
        self.beat()
        request = self.control.request()
        if request is not None and request.action == "stop":
            raise storage.Interrupted

    def _check(self) -> None:
        if is_superseded(self.job_dir, self.attempt):
            raise storage.Interrupted
        self._tick()

    def _interrupted(self) -> Outcome:
        request = self.control.request()
        if request is not None and request.kind is VerdictKind.SUPERSEDED:
            reason = f"Ended while the results were being copied to a data store: {request.reason}."
            return Outcome(State.CANCELLED, VerdictKind.SUPERSEDED, reason)
        reason = "Cancelled on request, while the results were being copied to a data store."
        hint = (
            "The job directory still has all of them: dlctl fetch results " + self.plan.training_id
        )
        return Outcome(State.CANCELLED, VerdictKind.CANCELLED, reason, hint)

    def _not_stored(self, outcome: Outcome, error: Exception) -> Outcome:
        say(f"Warning: {error}")
        if outcome.state is not State.COMPLETED:
            return outcome
        fault = error if isinstance(error, UserFault) else SiteFault(
            f"Training ended well, but its results can't be indexed: {error}.",
            hint=f"Free space on the site's file system, then run: "
            f"dlctl resume {self.plan.training_id} (it does not train again)",
        )  # fmt: skip
        return fault_outcome(fault)
