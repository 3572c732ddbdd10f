"""Coroutines in tests: the browser of other tests may have an event loop in this thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def run_loop(body: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, which runs in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, body).result()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make an asynchronous test one that pytest can call."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        run_loop(test(*arguments, **named))

    return run
