"""The service from Python: trainings, searches and stored models, as the commands know them.

Each function does what the command of its name does, by the same use case in `dlctl.service`, and
raises that command's error. Threads may share all of it.
"""

from dlctl.api.functions import (
    search_of,
    searches,
    start_search,
    submit,
    training,
    trainings,
)
from dlctl.api.jobs import Training
from dlctl.api.models import StoredModel, model, store_model, stored_models
from dlctl.api.searches import Search

__all__ = [
    "Search", "StoredModel", "Training", "model", "search_of", "searches", "start_search",
    "store_model", "stored_models", "submit", "training", "trainings",
]  # fmt: skip
