"""The broker beside a worker: it is started again when it dies, and ends once the worker has."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from search.protocol.children import Child

_LOOK_S = 0.1
_PATIENCE_S = 60.0


@contextlib.contextmanager
def broker_beside(job_dir: Path, name: str | None) -> Iterator[None]:
    """Keep a broker running. It ends in order after the body, or at once if this process dies."""
    if name is None:
        yield
        return
    arguments = ["search.broker", str(job_dir), "--name", name, "--until-eof"]
    broker, ending = Child(f"broker {name}", arguments, until_eof=True), threading.Event()

    def keep() -> None:
        while not ending.is_set():
            broker.look()
            ending.wait(_LOOK_S)

    keeper = threading.Thread(target=keep, name="broker", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        ending.set()
        keeper.join()
        broker.end(_PATIENCE_S)
