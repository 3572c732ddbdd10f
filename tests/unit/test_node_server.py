"""Servers of several nodes, with real processes: each scenario is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("node_server_program.py")
Play = Callable[[str], str]


@pytest.fixture
def play(shm_folder: Path) -> Play:
    """Runs a scenario of the program; returns what it says."""

    def run(scenario: str) -> str:
        own = shm_folder / scenario
        own.mkdir()
        done = subprocess.run(
            [sys.executable, str(PROGRAM), scenario, str(own)],
            capture_output=True, text=True, check=False, timeout=200,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    return run


def test_learners_of_two_nodes_reach_the_minimum_with_every_solver(play: Play) -> None:
    names = ("downpour", "momentum", "adagrad", "elastic", "parallel", "averaging", "diloco")
    both = "node 0 at 1: True\nnode 1 at 1: True\n"
    assert play("solvers") == "".join(f"{name}\n{both}" for name in names)


@pytest.mark.parametrize("fault", ["cut", "kill"])
def test_no_push_is_lost_or_counted_twice(play: Play, fault: str) -> None:
    faults = "faults while learners pushed: True\n"
    assert play(f"exact:{fault}") == f"{faults}node 0: 1.0\nnode 1: 1.0\n"


def test_rounds_have_the_same_bits_each_time_whatever_is_cut_or_killed(play: Play) -> None:
    said = [play(f"rounds:{fault}") for fault in ("", "cut", "kill")]
    faults, first, second = said[0].splitlines()
    assert faults == "faults while learners pushed: True"
    assert first.split()[2] == second.split()[2] and len(first.split()[2]) == 64
    assert said == [said[0]] * 3


@pytest.mark.parametrize("solver", ["downpour", "elastic", "parallel"])
def test_a_lost_node_s_shard_goes_on_at_another_one(play: Play, solver: str) -> None:
    assert play(f"lost:{solver}") == "node 0 at 1: True\nnode 2 at 1: True\n"


def test_nothing_comes_from_a_node_that_was_given_up(play: Play) -> None:
    assert play("fenced") == (
        "node 0: 15.0\nnode 1: 15.0\nnode 2: 15.0\n"
        "it says: this node was given up: its server ends\n"
        "node 0: 25.0\nnode 2: 25.0\n"
    )


def test_learners_wait_for_a_slow_one_on_another_node(play: Play) -> None:
    assert play("gate") == "ahead by 1 to 3: True\n"


def test_strangers_and_those_of_another_training_are_refused(play: Play) -> None:
    assert play("refused").splitlines() == [
        "let in",
        "it does not know the secret of this training's attempt "
        "(and says it is node 1 of attempt 1)",
        "it is of attempt 2, and this is attempt 1",
        "node 1 has another model, or another solver",
        "node 1 looks for node 1: this is another one",
        "node 9 looks for node 0: this is another one",
        "node 1 was given up",
        "logged: 6 False",
    ]
