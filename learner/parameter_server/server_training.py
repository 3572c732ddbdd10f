"""What a learner's loop on a parameter server and learner 0's coordinator share."""

from __future__ import annotations

from dataclasses import dataclass

from dlctl.contract import Training
from learner.model.lr_schedule import UsedRate
from learner.parameter_server.checkpoint_state import SavedServer
from learner.parameter_server.model import ModelOnServers
from learner.system.signals import HaltFlag
from learner.training.checkpoints import Trained
from learner.training.loop import Reports


@dataclass(frozen=True)
class ServerTraining:
    """One learner's training on a parameter server."""

    settings: Training
    """The manifest's."""
    trained: Trained
    """The model and what belongs to it."""
    server_model: ModelOnServers
    """The model's parameters, which the server holds."""
    saved: SavedServer
    """What a checkpoint keeps of the server."""
    rate: UsedRate
    """The learning rate of pushes."""
    reports: Reports
    """Where this learner reports its progress."""
    halt: HaltFlag
    """Ends the training after the current chunk, and a validation at once."""
