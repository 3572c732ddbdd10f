"""Keep torch's compiler out of programs that compile nothing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


def import_late() -> None:
    """Import torch's compiler only when something uses more of it than an optimizer does.

    The first optimizer of a process imports `torch._dynamo`, 800 modules, to hear that nothing is
    being compiled: that takes as long as all of torch, and longer from a shared file system. Until
    then a stand-in answers optimizers; it makes way for the compiler at any other question.
    """
    if _NAME not in sys.modules:
        stand_in = _StandIn(_NAME, "Stands in for the compiler until something compiles.")
        sys.modules[_NAME] = stand_in
        torch._dynamo = stand_in


class _StandIn(ModuleType):
    @staticmethod
    def graph_break(*_: object) -> None:
        """Do nothing: where nothing is compiled there is no graph."""

    @staticmethod
    def disable(function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        """Return the function, kept out of the compiler's way as soon as that is there."""
        kept: list[Callable[..., Any]] = []

        def call(*given: Any, **given_named: Any) -> Any:
            if isinstance(sys.modules.get(_NAME), _StandIn):
                return function(*given, **given_named)
            if not kept:
                kept.append(_compiler().disable(function, *arguments, **named))
            return kept[0](*given, **given_named)

        return call

    def __getattr__(self, name: str) -> Any:
        # Who lists all modules asks each for such names, and compiles nothing.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(f"module {_NAME!r} has no attribute {name!r}")
        return getattr(_compiler(), name)


def _compiler() -> ModuleType:
    if isinstance(sys.modules.get(_NAME), _StandIn):
        del sys.modules[_NAME]
    return importlib.import_module(_NAME)
