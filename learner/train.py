"""The built-in loop as a program: `python -m learner.train <job dir> <attempt>`.

Started once for each learner, in the runtime directory. Ends with 0, with EXIT_HALTED after a
halt, or with another code and the reason on standard error; one learner's failure ends them all.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import torch

from dlctl import contract
from learner.checkpoint.keeper import CheckpointKeeper, Position, Trained
from learner.checkpoint.process import WriterProcess
from learner.checkpoint.random_states import seed_all
from learner.data import batch_count
from learner.device import prepare
from learner.distributed_optimizer import DistributedOptimizer
from learner.exchange import Exchange, join
from learner.export import export_metrics, export_model
from learner.faults import UserFault, explain, place
from learner.heap import keep_freed_memory
from learner.loop import Reports, Trainer
from learner.metrics import MetricsFile, Progress, finished_file, tell
from learner.model_file import Parts
from learner.optimizer_state import OptimizerState
from learner.same_model import check_same
from learner.schedule import ManifestSchedule, Schedule, UserSchedule, factor
from learner.signals import EXIT_HALTED, HaltFlag
from learner.user_program import run_build
from learner.weights import find_weights, load_weights, start_from

EXIT_USAGE = 2
PROGRESS_VARIABLE = "DLCTL_PROGRESS_FILE"


@dataclass(frozen=True)
class Job:
    """What this process was started for."""

    directory: Path
    attempt: int
    plan: contract.Plan
    rank: int

    @property
    def code_dir(self) -> Path:
        """Return the user's files."""
        return self.directory / contract.CODE

    def say(self, text: str) -> None:
        """Print a line on rank 0."""
        if self.rank == 0:
            tell(text)

    def warn(self, text: str) -> None:
        """Print a warning on any rank."""
        tell(f"{place(self.rank)} WARNING: {text}", sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run one learner; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 2 or not arguments[1].isdigit():
        print("usage: python -m learner.train <job dir> <attempt>", file=sys.stderr)
        return EXIT_USAGE
    rank = int(os.environ.get("RANK", "0"))
    joined: list[Exchange] = []
    try:
        halt = HaltFlag().install()
        job = _open_job(Path(arguments[0]), int(arguments[1]), rank)
        writer = WriterProcess()  # before MPI, torch's threads and CUDA: no process starts later
        resources, training = job.plan.resources, job.plan.training
        keep_freed_memory()
        gpu = resources.gpus_per_learner > 0 and torch.cuda.is_available()
        exchange = join(resources.learners, training.exchange, gpu=gpu)
        joined.append(exchange)
        _check_rank(exchange, rank)
        finished = _train(job, exchange, halt, writer)
        exchange.close()
        if finished:
            _say_finished()
        return 0 if finished else EXIT_HALTED
    except BaseException as error:  # whatever it is, the other learners must not wait for this one
        code = explain(error, rank)
        for exchange in joined:
            exchange.abort(code)
        return code


def _say_finished() -> None:
    """Leave the mark without which exit code 0 is not believed."""
    if progress := os.environ.get(PROGRESS_VARIABLE):
        finished_file(Path(progress)).touch()


def leave(code: int) -> NoReturn:
    """End this process, whatever threads and processes the user's program has left running.

    Python's own end would wait for them, for ever if they never end.
    """
    # Those that multiprocessing would wait for; the watchdog ends all others.
    for child in multiprocessing.active_children():
        child.kill()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _open_job(directory: Path, attempt: int, rank: int) -> Job:
    name = contract.plan_file(attempt)
    try:
        plan = contract.read_record(contract.Plan, directory / name)
    except contract.ContractError as error:
        raise UserFault(f"{directory / name} can't be understood: {error}") from error
    if plan is None:
        raise UserFault(f"there is no {name} in {directory}")
    if plan.framework.job is None:
        raise UserFault("the plan names no framework.job for the built-in loop")
    return Job(directory.resolve(), attempt, plan, rank)


def _check_rank(exchange: Exchange, rank: int) -> None:
    if exchange.rank != rank:
        raise UserFault(
            f"the launcher says RANK={rank}, but MPI says {exchange.rank}",
            hint="the launcher and the MPI library do not fit: see the site's launcher",
        )


def _train(job: Job, exchange: Exchange, halt: HaltFlag, writer: WriterProcess) -> bool:
    """Train to the end (True) or to a halt (False)."""
    plan, settings = job.plan, job.plan.training
    device = prepare(plan.resources, int(os.environ.get("LOCAL_RANK", "0")), job.warn)
    parts = _build(job, device)
    check_same(parts, exchange)
    exchange.broadcast([*parts.model.parameters(), *parts.model.buffers()])
    seed_all(settings.seed, job.rank)
    optimizer = _distribute(parts, settings, exchange)
    schedule = _schedule(parts, settings)
    trained = Trained(parts, schedule, device, OptimizerState(optimizer))
    keeper = _keeper(job, parts, exchange, writer)
    keeper.check(trained)
    position = _start(job, keeper, trained)
    metrics = contract.metrics_file(job.attempt, job.rank)
    progress = os.environ.get(PROGRESS_VARIABLE)
    reports = Reports(
        job.say,
        Progress(Path(progress) if progress else None),
        MetricsFile(job.directory / metrics) if job.rank == 0 else None,
    )
    trainer = Trainer(settings, trained, optimizer, exchange, keeper, reports, halt)
    finished = trainer.run(position)
    if not finished:
        _save_and_halt(job, keeper, trained, position)
    keeper.close()
    if finished:
        _export(job, parts, position)
    return finished


def _build(job: Job, device: torch.device) -> Parts:
    """Run the user's file, in the code directory, with the same random numbers on every rank."""
    parts = run_build(job.plan, job.code_dir)
    parts.model.to(device)
    if isinstance(parts.loss, torch.nn.Module):
        parts.loss.to(device)
    return parts


def _distribute(
    parts: Parts, settings: contract.Training, exchange: Exchange
) -> DistributedOptimizer:
    """Wrap the user's optimizer; the loop weights gradients by samples, and their sum is meant."""
    return DistributedOptimizer(
        parts.optimizer,
        exchange,
        parameters=parts.model.parameters(),
        names={id(p): name for name, p in parts.model.named_parameters()},
        average=False,
        at_end=False,
        average_every=settings.average_every_steps,
    )


def _schedule(parts: Parts, settings: contract.Training) -> Schedule:
    if parts.schedule is not None:
        return UserSchedule(parts.schedule)
    chosen = settings.learning_rate_schedule
    steps = batch_count(len(parts.train), settings.batch_size)
    factor(replace(chosen, warmup_steps=0), 0, steps, steps)  # an unknown name ends it here
    return ManifestSchedule(parts.optimizer, chosen, steps, settings.epochs)


def _keeper(job: Job, parts: Parts, exchange: Exchange, writer: WriterProcess) -> CheckpointKeeper:
    settings = {
        "learners": exchange.size,
        "seed": job.plan.training.seed,
        "batch_size": job.plan.training.batch_size,
        "samples": len(parts.train),
    }
    root = job.directory / contract.CHECKPOINTS
    return CheckpointKeeper(root, job.plan.checkpoint, settings, exchange, job.say, writer)


def _start(job: Job, keeper: CheckpointKeeper, trained: Trained) -> Position:
    """Go back to the newest checkpoint, or else to the given weights, or begin anew."""
    position = keeper.load(trained)
    settings, parts = job.plan.training, trained.parts
    if position is not None:
        job.say(f"going on from the checkpoint at step {position.step}, epoch {position.epoch + 1}")
        return position
    weights = job.plan.framework.arguments.get("weights")
    if weights is not None:
        path = find_weights(str(weights), job.code_dir)
        strict = job.plan.framework.arguments.get("weights_strict", True) is not False
        for text in start_from(parts.model, load_weights(path), strict=strict):
            job.say(f"WARNING: not loaded from {path.name}: {text}")
        job.say(f"starting from the weights in {path}")
    count = sum(parameter.numel() for parameter in parts.model.parameters())
    job.say(
        f"training {type(parts.model).__name__} ({count:,} parameters) on {len(parts.train):,} "
        f"samples: {settings.epochs} epochs, batches of {settings.batch_size} over "
        f"{job.plan.resources.learners} learners, on {trained.device}"
    )
    return Position()


def _save_and_halt(
    job: Job, keeper: CheckpointKeeper, trained: Trained, position: Position
) -> None:
    if not keeper.save(trained, position, final=True):
        raise UserFault(
            f"halted at step {position.step}, but the checkpoint could not be written",
            hint=f"make room in {job.directory / contract.CHECKPOINTS}; "
            "resume goes on from the checkpoint before, if there is one",
        )
    job.say(f"halted at step {position.step} with a checkpoint")


def _export(job: Job, parts: Parts, position: Position) -> None:
    if job.rank != 0:
        return
    results = job.directory / contract.RESULTS
    path = export_model(parts.model, results)
    learners = job.plan.resources.learners
    export_metrics(
        position.history, results, epochs=position.epoch, steps=position.step, learners=learners
    )
    job.say(f"the trained model is in {contract.RESULTS}/{path.name}")


if __name__ == "__main__":
    leave(main())
