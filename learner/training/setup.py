"""The job of a built-in loop: how both loops use the plan and the user's file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dlctl import contract
from dlctl.contract.ground.amounts import counted
from learner.checkpoint.writer_process import WriterProcess
from learner.data.sampling import batch_count
from learner.errors import UserFault, place
from learner.exchange import Exchange
from learner.export import export_metrics, export_model
from learner.frameworks import loop_module
from learner.job.context import LearnerContext, read_plan
from learner.job.metrics import MetricsFile, Progress, finished_file, tell
from learner.model.lr_schedule import ManifestSchedule, Schedule, factor, user_schedule
from learner.model.trainable import check_trainable
from learner.model.user_model import Parts
from learner.model.user_program import run_build
from learner.model.weights import find_weights, load_weights, start_from, state_of
from learner.training import torch_compiler
from learner.training.checkpoints import CheckpointKeeper, Position, Trained
from learner.training.loop import Reports

_PROGRESS_VARIABLE = "DLCTL_PROGRESS_FILE"
_NAMED = 5
"""How many tensors that do not fit are named; a model may have hundreds."""


@dataclass(frozen=True)
class TrainingJob(LearnerContext):
    """A context in a training with the built-in loop."""

    @property
    def code_dir(self) -> Path:
        """Return the folder with the user's files."""
        return self.directory / contract.CODE

    def _hook(self, name: str) -> Callable[..., Any] | None:
        """Return a function of the framework's module, if there are both."""
        return getattr(loop_module(self.plan, self.code_dir), name, None)

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.rank == 0:
            tell(text)

    def warn(self, text: str) -> None:
        """Print a warning on any rank."""
        tell(f"{place(self.rank)} WARNING: {text}", sys.stderr)

    def build(self, device: torch.device) -> Parts:
        """Run the user's file in its code directory, with the same random seed on all ranks."""
        torch_compiler.import_late()
        parts = run_build(self.plan, self.code_dir)
        check_trainable(parts, self.plan.resources.learners)
        parts.model.to(device)
        if isinstance(parts.loss, torch.nn.Module):
            parts.loss.to(device)
        return parts

    def schedule(self, parts: Parts) -> Schedule:
        """Return the user's schedule, or else the manifest's."""
        settings = self.plan.training
        steps = batch_count(len(parts.train), settings.batch_size)
        if parts.schedule is not None:
            return user_schedule(parts.schedule, parts.pace, settings.epochs, steps, self.say)
        chosen = settings.learning_rate_schedule
        factor(replace(chosen, warmup_steps=0), 0, steps, steps)  # refuses an unknown name now
        return ManifestSchedule(parts.optimizer, chosen, steps, settings.epochs)

    def keeper(
        self, parts: Parts, exchange: Exchange, writer: WriterProcess | None
    ) -> CheckpointKeeper:
        """Return the keeper of this training's checkpoints."""
        settings = {
            "learners": self.plan.resources.learners,
            "seed": self.plan.training.seed,
            "batch_size": self.plan.training.batch_size,
            "samples": len(parts.train),
        }
        root = self.directory / contract.CHECKPOINTS
        return CheckpointKeeper(root, self.plan.checkpoint, settings, exchange, self.say, writer)

    def start(self, keeper: CheckpointKeeper, trained: Trained) -> Position:
        """Restore the newest checkpoint, or load the given weights, or start from scratch."""
        groups: list[dict[str, Any]] = trained.parts.optimizer.param_groups
        own = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        position = keeper.load(trained)
        if position is not None:
            if self.plan.training.settings_of_build:
                _put_settings(trained, own)
            self.say(
                f"continuing from the checkpoint at step {position.step}, "
                f"epoch {position.epoch + 1}"
            )
            return position
        self.take_weights(trained.parts.model)
        model, samples = trained.parts.model, len(trained.parts.train)
        count = sum(parameter.numel() for parameter in model.parameters())
        settings = self.plan.training
        learners = self.plan.resources.learners
        self.say(f"training {type(model).__name__} ({count:,} parameters) on {samples:,} samples:")
        self.say(
            f"  {settings.epochs} epochs, batches of {settings.batch_size} over "
            f"{counted(learners, 'learner')}, on {trained.device}"
        )
        return Position()

    def take_weights(self, model: torch.nn.Module) -> None:
        """Load `framework.arguments.weights`, if set.

        Raises:
            UserFault: the weights are missing, or do not fit.
        """
        arguments = self.plan.framework.arguments
        weights = arguments.get("weights")
        if weights is None:
            return
        path, how_many = find_weights(str(weights), self.code_dir), ""
        if take := self._hook("take_weights"):
            for text in take(model, path):
                self.say(f"not loaded from {path.name}: {text}")
        else:
            strict = arguments.get("weights_strict", True) is not False
            loaded, skipped = start_from(model, load_weights(path), strict=strict)
            named = skipped[:_NAMED]
            if more := len(skipped) - len(named):
                named.append(counted(more, "more tensor"))
            for text in named:
                self.say(f"WARNING: not loaded from {path.name}: {text}")
            how_many = f": {loaded} of the model's {len(state_of(model))} tensors"
        self.say(f"starting from the weights in {path}{how_many}")

    def reports(self) -> Reports:
        """Return where the loop reports what it does."""
        progress = os.environ.get(_PROGRESS_VARIABLE)
        metrics = self.directory / contract.metrics_file(self.attempt, self.rank)
        return Reports(
            self.say,
            Progress(Path(progress) if progress else None),
            MetricsFile(metrics) if self.rank == 0 else None,
        )

    def say_halted(self, position: Position, *, saved: bool) -> None:
        """Print that a halt has ended the training.

        Raises:
            UserFault: the checkpoint could not be written.
        """
        if not saved:
            raise UserFault(
                f"halted at step {position.step}, but the checkpoint could not be written",
                hint=f"free space in {self.directory / contract.CHECKPOINTS}; "
                "a resume continues from the previous checkpoint, if there is one",
            )
        self.say(f"halted at step {position.step} with a checkpoint")

    def export(self, parts: Parts, position: Position) -> None:
        """Write the results, on rank 0.

        Raises:
            UserFault: the results can't be written.
        """
        if self.rank != 0:
            return
        results = self.directory / contract.results_dir(self.attempt)
        learners = self.plan.resources.learners
        try:
            results.mkdir(exist_ok=True)
            path = export_model(parts.model, results)
            if export := self._hook("export"):
                path = export(self.plan, self.code_dir, parts.model, position.step, results)
            export_metrics(
                position.history, results, epochs=position.epoch, steps=position.step,
                learners=learners,
            )  # fmt: skip
        except OSError as error:
            raise UserFault(
                f"the trained model can't be written to {results}: {error.strerror or error}",
                hint="free space there, then resume from the newest checkpoint: "
                f"dlctl resume {self.plan.training_id}",
            ) from error
        fetch = f"dlctl fetch results {self.plan.training_id}"
        self.say(f"the trained model is in {contract.RESULTS}/{path.name} at the site: {fetch}")


def open_job(directory: Path, attempt: int, rank: int) -> TrainingJob:
    """Return the job of a process of the built-in loop.

    Raises:
        UserFault: the plan can't be read, or is for a program of the user.
    """
    directory, plan = directory.resolve(), read_plan(directory, attempt)
    if not plan.framework.has_loop:
        raise UserFault("the plan names no framework.job for the built-in loop")
    job = TrainingJob(directory, attempt, plan, rank)
    planned = job._hook("planned")
    return replace(job, plan=planned(plan, job.code_dir)) if planned else job


def say_finished() -> None:
    """Mark the training as finished; without the mark, exit code 0 counts as a failure."""
    if progress := os.environ.get(_PROGRESS_VARIABLE):
        finished_file(Path(progress)).touch()


def _put_settings(trained: Trained, settings: list[dict[str, Any]]) -> None:
    """Give an optimizer that was restored its settings: those of each group."""
    groups: list[dict[str, Any]] = trained.parts.optimizer.param_groups
    for group, own in zip(groups, settings, strict=True):
        group.update(own)
    trained.schedule.set_rate(float(settings[0]["lr"]))
