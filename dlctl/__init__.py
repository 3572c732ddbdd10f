"""dlctl: deep learning as a service on any Slurm cluster, driven from a laptop.

This file travels to the nodes with `dlctl.contract`: it imports nothing. On a laptop the functions
of `dlctl.api` stand here, too: `dlctl.submit("manifest.yml")`.
"""

__version__ = "0.1.0"
_API = (
    "Search", "StoredModel", "Training", "model", "search_of", "start_search", "stored_models",
    "submit", "training", "trainings",
)  # fmt: skip
TYPE_CHECKING = False  # what `typing` has: a checker reads the types, nothing is imported
if TYPE_CHECKING:
    from dlctl.api import (
        Search as Search,
    )
    from dlctl.api import (
        StoredModel as StoredModel,
    )
    from dlctl.api import (
        Training as Training,
    )
    from dlctl.api import (
        model as model,
    )
    from dlctl.api import (
        search_of as search_of,
    )
    from dlctl.api import (
        start_search as start_search,
    )
    from dlctl.api import (
        stored_models as stored_models,
    )
    from dlctl.api import (
        submit as submit,
    )
    from dlctl.api import (
        training as training,
    )
    from dlctl.api import (
        trainings as trainings,
    )


def __getattr__(name: str) -> object:
    if name in _API:
        import importlib

        return getattr(importlib.import_module("dlctl.api"), name)
    raise AttributeError(f"module 'dlctl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_API])
