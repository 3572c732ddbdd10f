"""The settings of a node's server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psrv.solvers.solver import RoundSolver, Solver


@dataclass(frozen=True)
class Settings:
    """What a node's server is started with.

    dlctl.contract.ParameterServer describes the fields that have no description here.
    """

    attempt: int
    node: int
    learners_per_node: list[int]
    solver: Solver | RoundSolver
    host: str
    """This node's address on the job's network."""
    timeout_s: float = 120.0
    snapshot_every_s: float = 60.0
    bounded: bool = False
    """Whether staleness is bounded: learners then wait for one another's clocks."""
    solver_line: str = ""
    """Describes the solver; all servers must have the same line."""
    cpus: int = 1
    """CPUs of the job on this node; the same each time its server is started."""
    takes_over: bool = False
    """Whether learners of this node still work in files that an earlier server of it made."""
    memory_left: Callable[[], int | None] = lambda: None
    """Return how many bytes this process may still allocate; None: there is no limit."""
