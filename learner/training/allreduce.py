"""One learner of a synchronous training: join the other learners, train with them, leave."""

from __future__ import annotations

import os

import torch

from dlctl import contract
from learner.checkpoint.rng import seed_all
from learner.checkpoint.writer_process import WriterProcess
from learner.data_parallel.consistency import check_same
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.errors import UserFault
from learner.exchange import Exchange, join
from learner.model.device import prepare
from learner.model.user_model import Parts
from learner.system.memory import keep_freed_memory
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Trained
from learner.training.loop import Trainer
from learner.training.optimizer_state import OptimizerState
from learner.training.setup import TrainingJob
from learner.training.steering import steering


def train_together(job: TrainingJob, halt: HaltFlag, joined: list[Exchange]) -> bool:
    """Train synchronously with the other learners; return whether the training finished.

    Args:
        joined: receives the exchange that connects the learners, once it exists.
    """
    writer = WriterProcess()  # before MPI, torch's threads and CUDA: later no process may start
    resources = job.plan.resources
    keep_freed_memory()
    gpu = resources.gpus_per_learner > 0 and torch.cuda.is_available()
    exchange = join(resources.learners, job.plan.training.exchange, gpu=gpu)
    joined.append(exchange)
    if exchange.rank != job.rank:
        raise UserFault(
            f"the launcher set RANK={job.rank}, but MPI reports rank {exchange.rank}",
            hint="launcher and MPI library don't match: check the site's launcher",
        )
    finished = _train(job, exchange, halt, writer)
    exchange.close()
    return finished


def _train(job: TrainingJob, exchange: Exchange, halt: HaltFlag, writer: WriterProcess) -> bool:
    """Train to the end (True) or to a halt (False)."""
    settings = job.plan.training
    device = prepare(job.plan.resources, int(os.environ.get("LOCAL_RANK", "0")), job.warn)
    parts = job.build(device)
    check_same(parts, exchange)
    exchange.broadcast([*parts.model.parameters(), *parts.model.buffers()])
    seed_all(settings.seed, job.rank)
    optimizer = _distribute(parts, settings, exchange)
    trained = Trained(parts, job.schedule(parts), device, OptimizerState(optimizer))
    keeper = job.keeper(parts, exchange, writer)
    keeper.check(trained)
    position = job.start(keeper, trained)
    steered = steering(job.directory, job.attempt, job.rank, job.plan.stop)
    reports = job.reports()
    trainer = Trainer(
        settings, trained, optimizer, exchange, keeper, reports, halt, steered, job.plan.rehearsal
    )
    finished = trainer.run(position)
    if not finished:
        job.say_halted(position, saved=keeper.save(trained, position, final=True))
    keeper.close()
    if finished:
        job.export(parts, position)
    return finished


def _distribute(
    parts: Parts, settings: contract.Training, exchange: Exchange
) -> DistributedOptimizer:
    """Wrap the user's optimizer; the loop weights gradients by samples, so they are summed."""
    return DistributedOptimizer(
        parts.optimizer,
        exchange,
        parameters=parts.model.parameters(),
        names={id(p): name for name, p in parts.model.named_parameters()},
        average=False,
        at_end=False,
        average_every=settings.average_every_steps,
    )
