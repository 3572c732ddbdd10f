"""The solver of a job, and which solvers of a user are refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from dlctl.contract import ParameterServer
from learner.errors import UserFault
from learner.parameter_server.solver import check_solver, describe_solver, find_solver
from psrv.solvers.solver import Downpour, ElasticAveraging, RoundSolver, Solver


class Signs(Solver):
    """A user's own solver with steps of one size (signSGD)."""

    def push(self, server, mine, scratch, rate):
        server[0].add_(torch.sign(mine, out=scratch), alpha=-rate)


@dataclass(frozen=True, slots=True)
class Slotted:
    """A solver without a `__dict__`."""

    power: int
    rows: int = 0
    sends_weights: bool = False

    def step(self, server, total, count, rate):
        server[0].sub_(total, alpha=rate / count**self.power)


class Weights(Signs):
    """A solver whose learners push weights."""

    sends_weights = True


class Rounds:
    """A user's own solver that waits for all learners."""

    rows = 0
    sends_weights = False

    def step(self, server, total, count, rate):
        server[0].add_(total, alpha=-rate / count)


def own(solver):
    return find_solver(ParameterServer("own", [0]), 2, solver)


def test_a_solver_of_dlctls_and_the_users_own():
    assert find_solver(ParameterServer("elastic_averaging", [0]), 3) == ElasticAveraging(0.3)
    assert find_solver(ParameterServer("downpour_sgd", [0]), 3, Signs()) == Downpour()
    assert isinstance(own(Signs()), Signs) and isinstance(own(Rounds()), RoundSolver)


def test_a_user_s_solver_of_another_form_is_refused():
    class Forgets(Solver):
        pass

    class Rows(Signs):
        rows = -1

    for solver, words in (
        (None, "build returned no solver"),
        (Signs, "returned the class Signs"),
        (torch.optim.SGD([torch.ones(1)], lr=1), "an object of the type SGD as 'solver'"),
        (Forgets(), "an object of the type Forgets as 'solver'"),
        (Rows(), "Rows has rows = -1"),
    ):
        with pytest.raises(UserFault, match=words):
            own(solver)


@pytest.mark.parametrize(
    ("solver", "learners", "settings", "words"),
    [
        (Rounds(), 2, {"staleness": 3}, "staleness is 3, and the solver Rounds waits for all"),
        (Rounds(), 63, {}, "waits for all 63 learners, and at most 62 can"),
        (Weights(), 2, {"pull_every": 4}, "pull_every is 4, and the solver Weights gives"),
    ],
)
def test_settings_that_a_user_s_solver_ignores_are_refused(solver, learners, settings, words):
    find_solver(ParameterServer("own", [0], push_every=2), 62, solver)
    with pytest.raises(UserFault, match=words):
        find_solver(ParameterServer("own", [0], **settings), learners, solver)


def test_a_solver_that_would_add_up_weights_is_refused_on_several_nodes():
    """The primary would take the sum of several learners' weights for the weights of one."""

    class Gathers(Weights):
        def gather(self, replica, total, mine, scratch, rate):
            total.add_(mine).sub_(replica)

    settings = ParameterServer("own", [0, 1])
    for solver in (Signs(), Gathers(), Rounds()):
        assert find_solver(settings, 4, solver, nodes=2) is solver
    assert isinstance(find_solver(settings, 4, Weights(), nodes=1), Weights)
    with pytest.raises(UserFault, match="Weights takes weights, and gather of it adds them up"):
        find_solver(settings, 4, Weights(), nodes=2)


def test_an_error_in_a_user_s_solver_is_raised_before_training():
    class Fails(Signs):
        def push(self, *_):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        check_solver(Fails())


def test_a_solver_that_does_nothing_in_place_is_refused():
    """It would train to the end without learning anything."""

    class Returns(Signs):
        def push(self, server, mine, scratch, rate):
            return server[0] - rate * mine

    class Steps(Rounds):
        def step(self, server, total, count, rate):
            return server[0] - rate * total

    class Replaces(Signs):
        def push(self, server, mine, scratch, rate):
            server[0] = server[0] - rate * mine

    for solver in (Returns(), Steps()):
        with pytest.raises(UserFault, match="returned a Tensor and changed nothing in place"):
            check_solver(solver)
    with pytest.raises(TypeError):  # now, not at the first push
        check_solver(Replaces())


def test_solvers_with_different_settings_have_different_descriptions():
    settings = ParameterServer("downpour_sgd", [0])
    lines = {describe_solver(settings, solver) for solver in (Downpour(), Downpour(0.5), Signs())}
    assert len(lines) == 3
    assert describe_solver(settings, Downpour(0.5)) == describe_solver(settings, Downpour(0.5))
    assert "'power': 3" in describe_solver(settings, Slotted(3))
    assert describe_solver(settings, Slotted(3)) != describe_solver(settings, Slotted(4))
