"""Run a coroutine in a test: the browser of other tests may have an event loop in this thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(body: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, which runs in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, body).result()
