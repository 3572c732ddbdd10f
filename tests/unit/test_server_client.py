"""Learners of one node with a parameter server: push, pull, join, leave, and a kill."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dlctl.contract import Parameters
from psrv.client import Client, join
from psrv.errors import ServerError
from psrv.placing import divide, layout_of
from psrv.rules import Downpour
from psrv.shard_file import HOME, create_shard

PROGRAM = Path(__file__).with_name("client_program.py")
PARAMETERS = Parameters(170_000, "float32", 1, "model")


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="dlctl-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def make(folder: Path) -> None:
    for shard in range(2):
        layout = layout_of(PARAMETERS, 2, shard, Slow(), HOME)
        create_shard(folder / f"shard-{shard}", layout, 1)


@pytest.fixture
def client(folder: Path) -> Iterator[Client]:
    make(folder)
    client = join(folder, PARAMETERS, 2, Slow(), 1, timeout_s=1)
    yield client
    client.leave()


class Slow(Downpour):
    """A solver that can be held up, and that can fail."""

    go = threading.Event()
    fail = False

    def push(
        self,
        server: Sequence[torch.Tensor],
        mine: torch.Tensor,
        scratch: torch.Tensor,
        rate: float,
    ) -> None:
        assert self.go.wait(30)
        if Slow.fail:
            raise ValueError("no push")
        super().push(server, mine, scratch, rate)


@pytest.fixture(autouse=True)
def _going() -> Iterator[None]:
    Slow.fail = False
    Slow.go.set()
    yield
    Slow.go.set()


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 500))
def test_shards_are_even_and_make_the_whole(count: int, shards: int, step: int) -> None:
    ranges = divide(count, shards, step)
    assert len(ranges) == shards and ranges[0][0] == 0 and ranges[-1][1] == count
    assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    blocks = [-(-(stop - start) // step) for start, stop in ranges]
    assert max(blocks) - min(blocks) <= 1


def test_push_and_pull(client: Client) -> None:
    gradient, weights = torch.arange(170_000.0), torch.empty(170_000, dtype=torch.float64)
    client.push(gradient, 1.0).wait()
    client.push_pull(gradient, weights, 1.0).wait()
    assert torch.equal(weights, -2.0 * torch.arange(170_000.0, dtype=torch.float64))
    again = torch.empty(170_000, dtype=torch.bfloat16)
    client.pull(again).wait()
    assert torch.equal(again, weights.to(torch.bfloat16))


def test_a_handle_tells_when_it_is_done_and_how_it_ended(client: Client) -> None:
    Slow.go.clear()
    handle = client.push(torch.ones(170_000), 1.0)
    assert not handle.done
    with pytest.raises(ServerError, match=r"has not answered for 0\.01 s"):
        handle.wait(0.01)
    with pytest.raises(ServerError):
        client.wait(0.01)
    Slow.go.set()
    client.wait()
    assert handle.done and handle.succeeded
    Slow.fail = True
    client.push(torch.ones(170_000), 1.0)
    weights = torch.empty(170_000)
    client.pull(weights).wait()
    with pytest.raises(ValueError, match="no push"):
        client.wait()  # an error is told, though something else was begun after it
    client.wait()
    assert weights.eq(-1).all()


def test_a_server_that_does_not_come_is_said(folder: Path) -> None:
    with pytest.raises(ServerError, match=r"no parameter server has made .*/shard-0 for 0\.1 s"):
        join(folder, PARAMETERS, 2, Downpour(), 1, timeout_s=0.1)


@pytest.mark.parametrize(
    "solver",
    ["downpour", "momentum", "adagrad", "elastic", "parallel", "averaging", "diloco"],
)
def test_learners_that_come_and_go_and_are_killed(folder: Path, solver: str) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), solver, str(folder)],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "at 1: True\npushes: True True\n"
