"""Pushes in one pass: bit-equal to torch, undone alike, and by torch where necessary."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dlctl.contract import Parameters
from dlctl.contract.ground.processes import look
from psrv.client import join
from psrv.push.push import AtOnce, InRounds
from psrv.push.waiting import WaitPolicy
from psrv.server.primary import Primary
from psrv.server.queues import Queues
from psrv.shard.format import (
    BLOCKS_AT,
    COPIED,
    LINE,
    PRIMARY,
    REPLICA,
    SEQUENCE,
    WRITER,
    ShardLayout,
    create_shard,
)
from psrv.shard.shard import Shard, ThreadedShard
from psrv.solvers import native
from psrv.solvers.partition import ShardSet, layout_of
from psrv.solvers.solver import (
    DiLoCo,
    Downpour,
    DownpourAdagrad,
    ElasticAveraging,
    ModelAveraging,
    ParallelSGD,
    Solver,
)
from psrv.transport.base import Frame, Kind

COUNT = 150_000
LAYOUT = ShardLayout(COUNT, (torch.float32, torch.float32), "model")
MOMENTUM = Downpour(0.9, scale=0.5)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fused")
    assert native.build(folder, Downpour()) == "pushes are compiled by cc"
    assert sorted(folder.iterdir()) == [folder / native.LIBRARY]
    return folder / native.LIBRARY


@pytest.fixture(scope="session")
def library(made: Path) -> ctypes.CDLL:
    found = native.load(made)
    assert found is not None
    return found


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


class Case(NamedTuple):
    """Arrays anywhere in memory, of any length."""

    rows: list[torch.Tensor]
    rate: float
    momentum: float
    flag: bool
    past_caches: bool

    @staticmethod
    @st.composite
    def any(draw: st.DrawFn) -> Case:
        count, begin = draw(st.integers(1, 300)), draw(st.integers(0, 20))
        generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
        rows = [torch.randn(begin + count, generator=generator)[begin:] for _ in range(6)]
        momentum = st.one_of(st.just(0.0), st.floats(0.01, 0.99))
        rate = st.floats(1e-6, 2.0)
        return Case(rows, draw(rate), draw(momentum), draw(st.booleans()), draw(st.booleans()))

    def check(self, ours: Callable[..., None], torchs: Callable[..., int]) -> None:
        """Compare the resulting arrays, and the number of elements copied for undoing."""
        kept = torch.zeros(1, dtype=torch.int64)
        found, expected = ([row.clone() for row in self.rows] for _ in range(2))
        ours(*[row.data_ptr() for row in found], kept.data_ptr(), len(found[0]))
        assert kept.item() == torchs(*expected)
        for row, same in zip(found, expected, strict=True):
            assert row.numpy().tobytes() == same.numpy().tobytes()


@settings(max_examples=100, deadline=None)
@given(case=Case.any(), answers=st.booleans(), learners=st.integers(1, 62))
def test_a_step_has_the_bits_of_torch(library, case, answers, learners):
    """Of one push, or of a round, with or without a sum of the others."""
    momentum, summed, past = case.momentum, case.flag, case.past_caches
    into = torch.zeros(len(case.rows[0]))

    def ours(w: int, v: int, t: int, m: int, a: int, b: int, kept: int, count: int) -> None:
        v, t, answer = v if momentum else 0, t if summed else 0, into.data_ptr() if answers else 0
        factors = learners, case.rate, momentum
        library.dlctl_step(w, v, t, m, answer, a, b, kept, count, *factors, past)

    def torchs(*rows: torch.Tensor) -> int:
        w, v, total, mine, aside, velocity_aside = rows
        aside.copy_(w)
        if momentum:
            velocity_aside.copy_(v)
        whole = total + mine if summed else mine.clone()
        ParallelSGD(momentum).step([w, v], whole, learners, case.rate)
        assert torch.equal(into, w if answers else torch.zeros_like(w))
        return len(w)

    case.check(ours, torchs)


@settings(max_examples=60, deadline=None)
@given(case=Case.any(), empty=st.booleans())
def test_a_sum_has_the_bits_of_torch(library, case, empty):
    def ours(t: int, w: int, g: int, into: int, aside: int, _: int, kept: int, count: int) -> None:
        into = into if case.flag else 0
        library.dlctl_gather(t, w, g, into, aside, kept, count, empty, case.past_caches)

    def torchs(*rows: torch.Tensor) -> int:
        total, replica, g, into, aside, _ = rows
        if empty:
            total.copy_(g)
        else:
            aside.copy_(total)
            total.add_(g)
        if case.flag:
            into.copy_(replica)
        return 0 if empty else len(total)

    case.check(ours, torchs)


@settings(max_examples=60, deadline=None)
@given(case=Case.any(), empty=st.booleans())
def test_elastic_averaging_has_the_bits_of_torch(library, case, empty):
    replicas, alpha = case.flag, case.rate / 2

    def ours(c: int, t: int, m: int, _: int, a: int, b: int, kept: int, count: int) -> None:
        library.dlctl_elastic(c, t if replicas else 0, m, a, b, kept, count, alpha, empty)

    def torchs(*rows: torch.Tensor) -> int:
        center, total, mine, _, aside, total_aside = rows
        aside.copy_(center)
        if replicas and not empty:
            total_aside.copy_(total)
        elif replicas:
            total.zero_()
        solver, scratch = ElasticAveraging(alpha), torch.empty_like(mine)
        if replicas:
            solver.gather(center, total, mine, scratch, 0.0)
        else:
            solver.push([center], mine, scratch, 0.0)
        return len(center)

    case.check(ours, torchs)


def filled(path: Path, fill: float = 1.0) -> None:
    create_shard(path, LAYOUT, 1, fill=lambda rows: [row.fill_(fill) for row in rows])


def test_an_unfinished_native_push_is_undone_as_far_as_it_was_copied(path):
    """A killed learner leaves a copy of 100 elements, of which 80 have changed."""
    filled(path)
    killed, at = Shard(path, LAYOUT, 1), BLOCKS_AT + LINE
    for row, aside in zip(killed.rows, killed.undo_copies, strict=True):
        aside[:100] = 1
        aside[100:] = 9  # left from another block
        row[LAYOUT.block_count :][:80] = 5
    words = killed._words
    killed.update_block(0, lambda parts, block: None)  # notes the rows
    words[at + WRITER], words[at + COPIED], words[at + SEQUENCE] = killed.slot, 100, 1
    other = Shard(path, LAYOUT, 1)
    assert all(row.eq(1).all() for row in other.rows)
    assert words[at + SEQUENCE] == 0
    for shard in (killed, other):
        shard.close()


PAGE = mmap.PAGESIZE // 4
"""Elements of a page."""
DIES = """
import ctypes, mmap, sys

name, protected = sys.argv[3], int(sys.argv[4])
with open(sys.argv[2], "r+b") as file:
    memory = mmap.mmap(file.fileno(), 0)
begin, size = ctypes.addressof(ctypes.c_char.from_buffer(memory)), 2 * mmap.PAGESIZE
a, b, c, d, e, f, kept = (ctypes.c_void_p(begin + n * size) for n in range(7))
second = ctypes.c_void_p(begin + protected * size + mmap.PAGESIZE)
assert ctypes.CDLL(None).mprotect(second, ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ) == 0
library, real = ctypes.CDLL(sys.argv[1]), ctypes.c_float
count = ctypes.c_size_t(size // 4)
if name in ("push", "round"):
    total, into, learners = (None, d, 1) if name == "push" else (d, None, 2)
    factors = real(learners), real(0.5), real(0.9)
    library.dlctl_step(a, b, total, c, into, e, f, kept, count, *factors, 0)
elif name == "elastic":
    library.dlctl_elastic(a, b, c, e, f, kept, count, real(0.5), 0)
else:
    library.dlctl_gather(a, b, c, d, e, kept, count, 0, 0)
"""
"""Crashes at the first store to the second page of one of six arrays in a file."""


@pytest.mark.parametrize(
    ("name", "rows", "protected"),
    [
        *(("push", 2, array) for array in (0, 1, 4, 5)),
        *(("elastic", 2, array) for array in (0, 1, 4, 5)),
        *(("round", 2, array) for array in (0, 1, 4, 5)),
        *(("gather", 1, array) for array in (0, 4)),
    ],
)
def test_every_change_is_copied_and_noted_before(made, tmp_path, name, rows, protected):
    """The copies of the first `rows` arrays go to the fifth and the sixth."""
    file = tmp_path / "arrays"
    arrays = torch.arange(7.0 * 2 * PAGE).view(7, 2 * PAGE)
    arrays[6] = 0
    file.write_bytes(arrays.numpy().tobytes())
    command = [sys.executable, "-c", DIES, str(made), str(file), name, str(protected)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGSEGV
    found = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.float32).view(7, 2 * PAGE)
    kept = int(found[6].view(torch.int64)[0])
    assert kept in (PAGE, PAGE + 64)
    for row in range(rows):
        assert found[row, :PAGE].ne(arrays[row, :PAGE]).any()
        assert torch.equal(found[4 + row, :kept], arrays[row, :kept])
        assert torch.equal(found[row, kept:], arrays[row, kept:])


def pushed(path: Path, solver: Solver, times: int = 3) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Push and pull as a learner; return the rows and the learner's weights."""
    parameters = Parameters(COUNT, "float32", 2, "model")
    path.unlink(missing_ok=True)
    layout = layout_of(parameters, 1, 0, solver, PRIMARY)
    create_shard(path, layout, 1, fill=lambda rows: [row.fill_(0.5) for row in rows])
    client = join(ShardSet(path.parent, parameters, 1, 1), solver, WaitPolicy(10))
    weights, gradient = torch.zeros(COUNT), torch.linspace(-1, 1, COUNT)
    for _ in range(times):
        client.push_pull(gradient, weights, 0.1)
    client.push(gradient, 0.1)
    shard = Shard(path, layout, 1)
    rows = [row.clone() for row in shard.rows]
    assert shard.progress(2) == (times + 1, 0)
    shard.close()
    client.leave()
    return rows, weights


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The blocks that were worked on in one pass."""
    found: list[int] = []
    push = native.Native.push

    def counting(self: native.Native, block: int, *rest: object, **named: object) -> None:
        found.append(block)
        push(self, block, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(native.Native, "push", counting)
    yield found
    native.load.cache_clear()


def test_native_pushes_have_the_same_result(path, calls):
    by_torch, weights = pushed(path, MOMENTUM)
    assert not calls
    native.load.cache_clear()
    native.build(path.parent, MOMENTUM)
    rows, same = pushed(path, MOMENTUM)
    assert sorted(calls) == sorted(4 * [0, 1, 2])
    assert all(torch.equal(*pair) for pair in zip(rows, by_torch, strict=True))
    assert torch.equal(same, weights)


def test_native_merges_have_the_same_result(path, calls):
    found = []
    for compiles in (False, True):
        native.load.cache_clear()
        if compiles:
            native.build(path.parent, MOMENTUM)
        filled(path)
        shard = ThreadedShard(path, LAYOUT, 1)
        primary = Primary(0, shard, MOMENTUM, 2, Queues(MOMENTUM, []))
        into = [torch.zeros(LAYOUT.block_count) for _ in range(2)]
        totals = [torch.full((LAYOUT.block_count,), 2.0) for _ in range(2)]
        for number in (5, 5, 6):  # the second 5 is a repetition
            frame = Frame(Kind.TOTAL, number=number, pushes=3, rate=0.1)
            had = primary.merge(1, frame, range(2), totals, into)
        found.append([*[row.clone() for row in shard.rows], *into])
        assert had == 6 and shard.progress(2) == (0, 0)
        assert torch.equal(torch.cat(into), shard.rows[0][: 2 * LAYOUT.block_count])
        shard.close()
        for file in path.parent.glob("shard-0*"):
            file.unlink()
    assert calls == [0, 1, 0, 1]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [PRIMARY, REPLICA])
@pytest.mark.parametrize("solver", [Downpour(), ElasticAveraging(0.2)])
def test_native_pushes_have_the_same_result_wherever_the_primary_is(path, solver, kind):
    layout, found = layout_of(Parameters(COUNT, "float32", 2, "model"), 1, 0, solver, kind), []
    for compiles in (False, True):
        native.load.cache_clear()
        if compiles:
            assert native.build(path.parent, solver) == "pushes are compiled by cc"
        create_shard(path, layout, 1, fill=lambda rows: [row.fill_(0.5) for row in rows])
        shard = Shard(path, layout, 1)
        assert (native.native_for(shard, solver) is not None) == compiles
        pushes, mine, weights = AtOnce([shard], solver, 0), torch.linspace(-1, 1, COUNT), None
        for _ in range(3):
            weights = mine if solver.sends_weights else torch.zeros(COUNT)
            pushes.push(mine, weights, 0.1)
        assert weights is not None
        found.append([*[row.clone() for row in shard.rows], weights])
        shard.close()
        path.unlink()
    native.load.cache_clear()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class Mine(Downpour):
    """A user's own solver, which may do anything."""


class MyRounds(ParallelSGD):
    """A user's own solver in rounds."""


@pytest.mark.parametrize(
    "solver", [Mine(), DownpourAdagrad(), MyRounds(), ModelAveraging(), DiLoCo()]
)
def test_other_solvers_use_torch(path, solver):
    assert native.build(path.parent, solver) is None and not list(path.parent.iterdir())
    native.build(path.parent, Downpour())
    filled(path)
    shard = Shard(path, LAYOUT, 1)
    assert native.native_for(shard, Downpour()) is not None
    assert native.native_for(shard, solver) is None
    shard.close()


def test_other_dtypes_and_layouts_use_torch(path, calls):
    native.build(path.parent, Downpour())
    layout = ShardLayout(COUNT, (torch.float64,), "model")
    create_shard(path, layout, 1)
    shard = Shard(path, layout, 1)
    assert native.native_for(shard, Downpour()) is None
    shard.close()
    path.unlink()
    filled(path)
    shard = Shard(path, LAYOUT, 1)
    pushes = AtOnce([shard], Downpour(), 0)
    plain, other = torch.zeros(COUNT), torch.zeros(COUNT, dtype=torch.float64)
    apart = torch.zeros(2 * COUNT)[::2]
    for tensors in ((other, None), (plain, other), (apart, None), (plain, apart)):
        pushes.push(*tensors, 0.1)
        assert not calls and all(into is None or into.eq(1).all() for into in tensors[1:])
    pushes.push(plain, None, 0.1)
    assert calls
    shard.close()


@pytest.mark.parametrize("kind", [PRIMARY, REPLICA])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_native_rounds_have_the_same_result(path, kind, momentum):
    """Two learners in turn. On a replica no learner takes the step."""
    solver, found = ParallelSGD(momentum), []
    layout = layout_of(Parameters(COUNT, "float32", 2, "model"), 1, 0, solver, kind)
    for compiles in (False, True):
        native.load.cache_clear()
        if compiles:
            assert native.build(path.parent, solver) == "pushes are compiled by cc"
        create_shard(path, layout, 1, fill=lambda rows: [row.fill_(0.5) for row in rows])
        shards = [Shard(path, layout, 1) for _ in range(2)]
        assert (native.native_for(shards[0], solver) is not None) == compiles
        turns = [
            InRounds([shard], solver, rank, 1, WaitPolicy(1)) for rank, shard in enumerate(shards)
        ]
        for number in range(3):
            for rank, turn in enumerate(turns):
                turn.push(torch.linspace(-1, 1 + rank + number, COUNT), None, 0.1 + rank)
            if kind == REPLICA:
                break
            assert shards[0].all_progress() == [(number + 1, 0)] * layout.blocks
            for turn in turns:
                turn.pull(torch.empty(COUNT))
        rows = shards[0].rows if kind == REPLICA else shards[0].rows[:-1]
        found.append([row.clone() for row in rows])
        for shard in shards:
            shard.close()
        path.unlink()
    native.load.cache_clear()
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


MKDIR, SLEEP = shutil.which("mkdir"), os.path.realpath("/bin/sleep")
INTO = 'while [ "$1" != -o ]; do shift; done; into=$2'
NOT_COMPILED = "pushes are not compiled, and take longer: "


def compiler(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def built(folder: Path) -> str:
    line = native.build(folder, Downpour())
    assert line is not None
    return line


def test_without_a_compiler_torch_does_the_work_and_the_log_says_so(path, bin_folder):
    assert built(path.parent) == NOT_COMPILED + "there is none of cc, gcc, clang"
    assert "No such file" in built(path.parent / "gone")
    pushed(path, MOMENTUM)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 0", ""),
        ("echo native.c: fatal error: no such thing >&2; exit 1", "native.c: fatal error: no such"),
        (f"{INTO}; echo no library > $into", "its functions do not match torch"),
        (f"{INTO}; {MKDIR} $into; exit 1", "exit code 1"),
        (f"echo of its own > $TMPDIR/cc1234.o; {INTO}; exit 1", "exit code 1"),
    ],
)
def test_a_compiler_without_output_is_an_error(path, bin_folder, script, why):
    compiler(bin_folder, "gcc", script)
    assert built(path.parent).startswith(f"{NOT_COMPILED}gcc: {why}")
    assert not list(path.parent.iterdir())
    # clang has other macros for FMA
    compiler(bin_folder, "clang", f'PATH={os.defpath} exec gcc -U__FP_FAST_FMAF "$@"')
    assert built(path.parent) == "pushes are compiled by clang"
    assert list(path.parent.iterdir()) == [path.with_name(native.LIBRARY)]


def test_learners_wait_while_the_server_compiles(path, bin_folder):
    """They wait beyond their time limit, as while a large shard is being made."""
    compiler(bin_folder, "cc", f"{SLEEP} 1; exit 1")
    parameters, solver = Parameters(COUNT, "float32", 1, "model"), Downpour()

    def serve() -> None:
        native.build(path.parent, solver)
        create_shard(path, layout_of(parameters, 1, 0, solver, PRIMARY), 1)

    server, said = threading.Thread(target=serve), list[str]()
    server.start()
    try:
        client = join(
            ShardSet(path.parent, parameters, 1, 1), solver, WaitPolicy(0.3, warn=said.append)
        )
        client.leave()
    finally:
        server.join()
    assert "has been making" in said[0]


def test_a_hanging_compiler_and_its_children_are_killed_and_no_other_is_tried(
    path, bin_folder, tmp_path, monkeypatch
):
    """Learners wait for the shards meanwhile."""
    its_pid, other = tmp_path / "pid", tmp_path / "other"
    compiler(bin_folder, "cc", f"{SLEEP} 600 & echo $! > {its_pid}; wait")
    compiler(bin_folder, "gcc", f"echo > {other}; exit 1")
    monkeypatch.setattr(native, "_COMPILER_TIMEOUT_S", 2)
    assert built(path.parent) == NOT_COMPILED + "cc timed out after 2 seconds"
    deadline = time.monotonic() + 60
    while (found := look(int(its_pid.read_text()))) is not None and not found.has_ended:
        assert time.monotonic() < deadline, "the compiler's child is left"
    assert not other.exists() and not list(path.parent.iterdir())


def test_a_compiler_s_leftover_processes_are_not_waited_for(path, bin_folder, tmp_path):
    """A compiler wrapper may start a server that inherits its standard error."""
    its_pid = tmp_path / "pid"
    compiler(
        bin_folder, "cc", f'{SLEEP} 100 & echo $! > {its_pid}; PATH={os.defpath} exec gcc "$@"'
    )
    assert built(path.parent) == "pushes are compiled by cc"
    os.kill(int(its_pid.read_text()), signal.SIGKILL)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("w[i] = ADD_MULTIPLE(w[i], -rate", "w[i] = ADD_MULTIPLE(w[i], -2 * rate"),
        ("momentum * v[i] + direction[i]", "momentum * (v[i] + direction[i])"),
        ("stream(into + at, w)", "stream(into + at, w + 1)"),
        ("t[i] = t[i] + mine[at + i]", "t[i] = t[i]"),
        ("c[i] = ADD_MULTIPLE(c[i], alpha", "c[i] = ADD_MULTIPLE(c[i], -alpha"),
        ("set_kept(kept, at + length)", "set_kept(kept, at)"),
        ("mine[at + i]) / learners", "mine[at + i]) / 2"),
        ("void dlctl_step", "void another"),
    ],
)
def test_functions_that_differ_from_torch_are_not_used(path, tmp_path, monkeypatch, right, wrong):
    source = native.SOURCE.read_text()
    assert right in source
    (tmp_path / "wrong.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(native, "SOURCE", tmp_path / "wrong.c")
    assert "its functions do not match torch" in built(path.parent)
    assert not list(path.parent.iterdir())


def test_a_library_in_a_folder_that_others_can_write_to_is_not_loaded(path, made, monkeypatch):
    """Any user may make a folder of any name in shared memory."""
    library = path.with_name(native.LIBRARY)
    shutil.copy(made, library)
    path.parent.chmod(0o770)
    assert native.load.__wrapped__(library) is None
    path.parent.chmod(0o700)
    assert native.load.__wrapped__(library) is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert native.load.__wrapped__(library) is None
