"""Parameters in an actor of Ray.

`ray` has them as a NumPy array, a step is `weights -= LR * gradient`, as one writes it. In
`ray_in_place` the step is one pass of torch without memory between: the fastest that we found.
Ray's documentation (Parameter Server) has a module and an optimizer of torch there, whose weights
Ray pickles: a third of `ray`'s updates.
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
    """Return whether Python's `ray` is there."""
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
    """Ray: a method of the actor, the gradient as argument and the weights as result."""

    actor = Server

    def join(self) -> None:
        """Start Ray, or join it: the first process tells the others its address in a file."""
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
        """Read what the actor has."""
        self.weights = torch.from_numpy(self._ray.get(self._server.read.remote()))

    def leave(self) -> None:
        """End; Ray's own processes go with the first one's."""
        self._ray.shutdown()


class RayInPlace(Ray):
    """The same with the faster actor."""

    actor = InPlaceServer
