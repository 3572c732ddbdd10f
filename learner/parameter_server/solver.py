"""The solver of a job's parameter server: one of dlctl's, or the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dlctl.contract import ParameterServer, Plan
from learner.errors import UserFault
from psrv.shard.membership import RANKS
from psrv.solvers import solver as rules
from psrv.solvers.solver import RoundSolver, Solver

OWN = "own"
AnySolver = Solver | RoundSolver


def find_solver(
    settings: ParameterServer, learners: int, own: Any = None, *, nodes: int = 1
) -> AnySolver:
    """Return the solver that a plan names.

    Args:
        own: What `build` returned as `solver`, if anything.

    Raises:
        UserFault: The plan wants the user's own, and there is none, or it is not usable.
    """
    if settings.solver != OWN:
        return rules.solver_of(settings, learners)
    if own is None:
        raise UserFault(
            "parameter_server.solver is own, but build returned no solver",
            hint="return {…, 'solver': an object of a class derived from psrv.rules.Solver}",
        )
    return _fitting(settings, learners, nodes, check_solver(own))


def _fitting(settings: ParameterServer, learners: int, nodes: int, solver: AnySolver) -> AnySolver:
    """Check a user's own solver against the manifest, which could not know its class.

    Raises:
        UserFault: It does not fit the settings, or can't serve this many learners or nodes.
    """
    kind, key = type(solver).__name__, "parameter_server"
    if isinstance(solver, RoundSolver):
        if settings.staleness:
            raise UserFault(
                f"{key}.staleness is {settings.staleness}, and the solver {kind} waits for all at "
                "every push",
                hint="leave the key out, or define push instead of step",
            )
        if learners > RANKS:
            raise UserFault(
                f"the solver {kind} waits for all {learners} learners, and at most {RANKS} can",
                hint="ask for fewer, or define push instead of step",
            )
    elif nodes > 1 and solver.sends_weights and type(solver).gather is Solver.gather:
        raise UserFault(
            f"the solver {kind} takes weights, and gather of it adds them up, so that of several "
            "learners of a node another one gets their sum",
            hint="define gather and merge, as psrv.rules.ElasticAveraging does; or step instead of "
            "push; or ask for learners that fit one node",
        )
    if solver.sends_weights and settings.pull_every > settings.push_every:
        raise UserFault(
            f"{key}.pull_every is {settings.pull_every}, and the solver {kind} gives weights back "
            f"at each push, every {settings.push_every}",
            hint="leave pull_every out",
        )
    return solver


def check_solver(solver: Any) -> AnySolver:
    """Check a user's own solver on a block of eight elements.

    Raises:
        UserFault: It has neither form of a solver; its own errors are raised unchanged.
    """
    if isinstance(solver, type):
        raise UserFault(
            f"build returned the class {solver.__name__} as 'solver'",
            hint=f"return an object of it: {solver.__name__}()",
        )
    kind = type(solver).__name__
    derived = Solver in type(solver).__mro__ and type(solver).push is not Solver.push
    if not derived and not isinstance(solver, RoundSolver):
        raise UserFault(
            f"build returned an object of the type {kind} as 'solver'",
            hint="derive its class from psrv.rules.Solver and define push(server, mine, scratch, "
            "rate); or give it rows, sends_weights and step(server, total, count, rate)",
        )
    if type(solver.rows) is not int or solver.rows < 0:
        raise UserFault(f"the solver {kind} has rows = {solver.rows!r}; it must be 0 or more")
    checked: AnySolver = solver
    _try(checked)
    return checked


def _try(solver: AnySolver) -> None:
    block = tuple(torch.ones(8) for _ in range(1 + solver.rows))  # the types that shards use
    mine = torch.ones(8)
    if isinstance(solver, RoundSolver):
        _check_in_place(solver, solver.step(block, mine, 2, 0.1), (*block, mine))  # type: ignore[func-returns-value]
        return
    returned = solver.push(block, mine, torch.ones(8), 0.1)  # type: ignore[func-returns-value]
    _check_in_place(solver, returned, (*block, mine))
    solver.push_pull(block, mine, mine, torch.ones(8), 0.1)
    total = torch.zeros(8)
    solver.gather(block[0], total, mine, torch.ones(8), 0.1)
    solver.merge(block, total, 1, 0.1)


def _check_in_place(solver: AnySolver, returned: Any, given: Sequence[torch.Tensor]) -> None:
    if isinstance(returned, torch.Tensor) and all(bool((each == 1).all()) for each in given):
        method = "step" if isinstance(solver, RoundSolver) else "push"
        raise UserFault(
            f"{method} of the solver {type(solver).__name__} returned a Tensor and changed nothing "
            "in place",
            hint="change server[0] itself: server[0].sub_(…), or server[0].copy_(…)",
        )


def describe_solver(settings: ParameterServer, solver: AnySolver) -> str:
    """Return the line that must be the same on all learners and servers."""
    return f"solver {settings.solver} with {solver.rows} rows, {_settings(solver)}"


def _settings(solver: AnySolver) -> str:
    slots = [slot for kind in type(solver).__mro__ for slot in getattr(kind, "__slots__", ())]
    every = {name: getattr(solver, name, None) for name in slots} | getattr(solver, "__dict__", {})
    values = {name: value for name, value in every.items() if _is_plain(value)}
    return f"{type(solver).__name__} {values}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def solver_of_job(plan: Plan, job_dir: Path) -> AnySolver:
    """Return the solver on a server, which does not train; a user's own comes from their `build`.

    Raises:
        UserFault: See `find_solver`.
    """
    settings = plan.parameter_server
    assert settings is not None
    own = None
    if settings.solver == OWN:
        from learner.model.user_program import build_alone

        own = build_alone(plan, job_dir).solver
    resources = plan.resources
    return find_solver(settings, resources.learners, own, nodes=resources.nodes)
