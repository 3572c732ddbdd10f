"""Parameters in a Ray actor.

`ray` keeps them as a NumPy array and steps in the obvious way: `weights -= LR * gradient`. In
`ray_in_place` the step is one pass of torch without temporaries, the fastest that we found.
The actor in Ray's documentation (Parameter Server) has a torch module and optimizer. Ray pickles
their weights, so it makes a third of `ray`'s updates.
"""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from typing import Any

import numpy as np
import torch

from benchmarks.psrv_learner import ELEMENTS, LR, Served

_NAMESPACE = "benchmark"
_STORE_BYTES = 2 * 2**30
_LOOK_EVERY_S = 0.1


def is_installed() -> bool:
    """Return whether Python's `ray` is installed."""
    return importlib.util.find_spec("ray") is not None


class Server:
    """The actor."""

    def __init__(self) -> None:
        self._weights = np.zeros(ELEMENTS, np.float32)

    def update(self, gradient: Any) -> Any:
        """Take a step; return the weights."""
        self._weights -= LR * gradient
        return self._weights

    def read(self) -> Any:
        """Return the weights."""
        return self._weights


class InPlaceServer(Server):
    """The actor with torch's arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")

    def update(self, gradient: Any) -> Any:
        """Take a step; return the weights."""
        torch.from_numpy(self._weights).add_(torch.from_numpy(gradient), alpha=-LR)
        return self._weights


class Ray(Served):
    """Ray: a method of the actor takes the gradient and returns the weights."""

    actor = Server

    def join(self) -> None:
        """Start Ray, or join it: the first process writes its address to a file."""
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")  # on 127.0.0.1
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        import ray  # type: ignore[import-not-found,unused-ignore]

        self._ray, place = ray, self.place.folder / "ray"
        if self.serves:
            context = ray.init(
                num_cpus=self.place.size, object_store_memory=_STORE_BYTES, namespace=_NAMESPACE,
                include_dashboard=False, _temp_dir=str(self.place.folder), log_to_driver=False,
                _node_ip_address="127.0.0.1",
            )  # fmt: skip
            self._server = ray.remote(self.actor).options(name="server", num_cpus=1).remote()
            ray.get(self._server.read.remote())
            place.with_suffix(".new").write_text(context.address_info["gcs_address"])
            place.with_suffix(".new").rename(place)
            return
        while not place.exists():
            time.sleep(_LOOK_EVERY_S)
        ray.init(place.read_text(), namespace=_NAMESPACE, log_to_driver=False)
        self._server = ray.get_actor("server")
        self._sent = self.gradient.numpy()

    def run(self, updates: int) -> None:
        """Update; the actor serves by itself."""
        if self.serves:
            self.updates += updates
        else:
            super().run(updates)

    def update(self) -> None:
        """Call the actor."""
        answer = self._ray.get(self._server.update.remote(self._sent))
        self.weights.copy_(torch.from_numpy(answer))

    def pull(self) -> None:
        """Read the actor's weights."""
        self.weights = torch.from_numpy(self._ray.get(self._server.read.remote()))

    def leave(self) -> None:
        """End; Ray's own processes end with the first process."""
        self._ray.shutdown()


class RayInPlace(Ray):
    """The same with the faster actor."""

    actor = InPlaceServer
