"""Pushes in one pass: with the bits of torch's, undone like them, and by torch where it must be."""

from __future__ import annotations

import os
import shutil
import signal
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
from psrv import fused, solvers
from psrv.client import join
from psrv.home import merge
from psrv.placing import layout_of
from psrv.rules import Downpour, DownpourAdagrad, ElasticAveraging, Solver
from psrv.shard import Shard, ThreadedShard
from psrv.shard_file import (
    BLOCKS_AT,
    HOME,
    KEPT,
    LINE,
    SEQUENCE,
    WRITER,
    ShardLayout,
    create_shard,
)

MKDIR = shutil.which("mkdir")
COUNT = 150_000
LAYOUT = ShardLayout(COUNT, (torch.float32, torch.float32), "model")
MOMENTUM = Downpour(0.9, scale=0.5)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> fused.Library:
    folder = tmp_path_factory.mktemp("fused")
    assert fused.build(folder, Downpour()) == "pushes are compiled by cc"
    assert sorted(folder.iterdir()) == [folder / fused.LIBRARY]
    found = fused.load(folder / fused.LIBRARY)
    assert found is not None
    return found


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


def compiler(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder where programs are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


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
        """Compare what both leave in all arrays, and how much was copied for undoing."""
        kept = torch.zeros(1, dtype=torch.int64)
        found, expected = ([row.clone() for row in self.rows] for _ in range(2))
        ours(*[row.data_ptr() for row in found], kept.data_ptr(), len(found[0]))
        assert kept.item() == torchs(*expected)
        for row, same in zip(found, expected, strict=True):
            assert row.numpy().tobytes() == same.numpy().tobytes()


@settings(max_examples=60, deadline=None)
@given(case=Case.any())
def test_a_step_has_the_bits_of_torch(library: fused.Library, case: Case) -> None:
    momentum, answers = case.momentum, case.flag

    def ours(w: int, v: int, g: int, into: int, a: int, b: int, kept: int, count: int) -> None:
        v, into = v if momentum else 0, into if answers else 0
        past = case.past_caches
        library.downpour(w, v, g, into, a, b, kept, count, case.rate, momentum, past)

    def torchs(*rows: torch.Tensor) -> int:
        w, v, g, into, aside, velocity_aside = rows
        aside.copy_(w)
        if momentum:
            velocity_aside.copy_(v)
            solvers.momentum(w, v, g, lr=case.rate, momentum=momentum)
        else:
            solvers.sgd(w, g, lr=case.rate)
        if answers:
            into.copy_(w)
        return len(w)

    case.check(ours, torchs)


@settings(max_examples=60, deadline=None)
@given(case=Case.any(), empty=st.booleans())
def test_a_sum_has_the_bits_of_torch(library: fused.Library, case: Case, empty: bool) -> None:
    def ours(t: int, w: int, g: int, into: int, aside: int, _: int, kept: int, count: int) -> None:
        into = into if case.flag else 0
        library.gather(t, w, g, into, aside, kept, count, empty, case.past_caches)

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
def test_elastic_averaging_has_the_bits_of_torch(
    library: fused.Library, case: Case, empty: bool
) -> None:
    relays, alpha = case.flag, case.rate / 2

    def ours(c: int, t: int, m: int, _: int, a: int, b: int, kept: int, count: int) -> None:
        library.elastic(c, t if relays else 0, m, a, b, kept, count, alpha, empty)

    def torchs(*rows: torch.Tensor) -> int:
        center, total, mine, _, aside, total_aside = rows
        aside.copy_(center)
        if relays and not empty:
            total_aside.copy_(total)
        elif relays:
            total.zero_()
        solver, scratch = ElasticAveraging(alpha), torch.empty_like(mine)
        if relays:
            solver.gather(center, total, mine, scratch, 0.0)
        else:
            solver.push([center], mine, scratch, 0.0)
        return len(center)

    case.check(ours, torchs)


def filled(path: Path, fill: float = 1.0) -> None:
    create_shard(path, LAYOUT, 1, fill=lambda rows: [row.fill_(fill) for row in rows])


def test_what_it_had_not_finished_is_undone_as_far_as_it_had_come(path: Path) -> None:
    """As who is killed leaves it: there is a copy of 100 elements, of which 80 have changed."""
    filled(path)
    killed, at = Shard(path, LAYOUT, 1), BLOCKS_AT + LINE
    for row, aside in zip(killed.rows, killed.asides, strict=True):
        aside[:100] = 1
        aside[100:] = 9  # of another block, before
        row[LAYOUT.block_count :][:80] = 5
    words = killed._words
    killed.update_block(0, lambda parts, block: None)  # says which rows
    words[at + WRITER], words[at + KEPT], words[at + SEQUENCE] = killed.slot, 100, 1
    other = Shard(path, LAYOUT, 1)
    assert all(row.eq(1).all() for row in other.rows)
    assert words[at + SEQUENCE] == 0
    for shard in (killed, other):
        shard.close()


def pushed(path: Path, solver: Solver, times: int = 3) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Push and pull as a learner; return the rows and what it has."""
    parameters = Parameters(COUNT, "float32", 2, "model")
    path.unlink(missing_ok=True)
    layout = layout_of(parameters, 1, 0, solver, HOME)
    create_shard(path, layout, 1, fill=lambda rows: [row.fill_(0.5) for row in rows])
    client = join(path.parent, parameters, 1, solver, 1, 10)
    weights, gradient = torch.zeros(COUNT), torch.linspace(-1, 1, COUNT)
    for _ in range(times):
        client.push_pull(gradient, weights, 0.1).wait()
    client.push(gradient, 0.1).wait()
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
    push = fused.FusedDownpour.push

    def counting(self: fused.FusedDownpour, block: int, *rest: object, **named: object) -> None:
        found.append(block)
        push(self, block, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(fused.FusedDownpour, "push", counting)
    yield found
    fused.load.cache_clear()


def test_learners_push_so_if_it_is_there_with_the_same_result(path: Path, calls: list[int]) -> None:
    by_torch, weights = pushed(path, MOMENTUM)
    assert not calls
    fused.load.cache_clear()
    fused.build(path.parent, MOMENTUM)
    rows, same = pushed(path, MOMENTUM)
    assert sorted(calls) == sorted(4 * [0, 1, 2])
    assert all(torch.equal(*pair) for pair in zip(rows, by_torch, strict=True))
    assert torch.equal(same, weights)


def test_a_home_takes_totals_so(path: Path, calls: list[int]) -> None:
    fused.build(path.parent, MOMENTUM)
    found = []
    for name in (False, True):
        filled(path)
        shard = ThreadedShard(path, LAYOUT, 1)
        pass_ = fused.fused_for(shard, MOMENTUM) if name else None
        into = [torch.zeros(LAYOUT.block_count) for _ in range(2)]
        totals = [torch.full((LAYOUT.block_count,), 2.0) for _ in range(2)]
        for number in (5, 5, 6):  # the second one is known
            had = merge(
                shard, range(2), MOMENTUM, totals, 3, 0.1, number, into,
                lambda _, last, number=number: last != number, pass_,
            )  # fmt: skip
        found.append([*[row.clone() for row in shard.rows], *into])
        assert had == 6 and shard.progress(2) == (0, 0)
        assert torch.equal(torch.cat(into), shard.rows[0][: 2 * LAYOUT.block_count])
        shard.close()
        path.unlink()
    assert calls == [0, 1, 0, 1]
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


class Mine(Downpour):
    """A user's own, which may do anything."""


@pytest.mark.parametrize("solver", [Mine(), DownpourAdagrad()])
def test_other_solvers_are_torchs(path: Path, calls: list[int], solver: Solver) -> None:
    assert fused.build(path.parent, solver) is None and not list(path.parent.iterdir())
    fused.build(path.parent, Downpour())
    filled(path)
    shard = Shard(path, LAYOUT, 1)
    assert fused.fused_for(shard, Downpour()) is not None
    assert fused.fused_for(shard, solver) is None
    shard.close()


def test_rows_and_tensors_of_other_kinds_are_torchs(path: Path, calls: list[int]) -> None:
    fused.build(path.parent, Downpour())
    layout = ShardLayout(COUNT, (torch.float64,), "model")
    create_shard(path, layout, 1)
    shard = Shard(path, layout, 1)
    assert fused.fused_for(shard, Downpour()) is None
    shard.close()
    path.unlink()
    filled(path)
    shard = Shard(path, LAYOUT, 1)
    whole = fused.fused_for(shard, Downpour())
    assert whole is not None
    plain, other = torch.zeros(COUNT), torch.zeros(COUNT, dtype=torch.float64)
    apart = torch.zeros(2 * COUNT)[::2]
    assert whole.pushing(plain, None, 0.1) is not None
    for tensors in ((other, None), (plain, other), (apart, None), (plain, apart)):
        assert whole.pushing(*tensors, 0.1) is None
    shard.close()


def test_without_a_compiler_torch_does_it_and_that_is_said(
    path: Path, bin_folder: Path, calls: list[int]
) -> None:
    line = fused.build(path.parent, Downpour())
    assert line == "pushes are not compiled, and take longer: there is none of cc, gcc, clang"
    compiler(bin_folder, "gcc", "echo fused.c: fatal error: no such thing >&2; exit 1")
    line = fused.build(path.parent, Downpour())
    assert line is not None and line.endswith("longer: gcc: fused.c: fatal error: no such thing")
    pushed(path, Downpour())
    assert not calls and list(path.parent.iterdir()) == [path]


INTO = 'while [ "$1" != -o ]; do shift; done; into=$2'


@pytest.mark.parametrize(
    "script",
    [
        "exit 0",
        f"{INTO}; : > $into",
        f"{INTO}; echo no library > $into",
        f"{INTO}; exec {MKDIR} $into",
        f"{INTO}; {MKDIR} $into; exit 1",
        f"echo of its own > $TMPDIR/cc1234.o; {INTO}; exit 1",
    ],
)
def test_what_a_compiler_has_not_made_is_not_taken_for_a_library(
    path: Path, bin_folder: Path, script: str
) -> None:
    compiler(bin_folder, "gcc", script)
    line = fused.build(path.parent, Downpour())
    assert line is not None and line.startswith("pushes are not compiled, and take longer: gcc: ")
    assert not list(path.parent.iterdir())
    compiler(bin_folder, "clang", f'PATH={os.defpath} exec cc "$@"')
    assert fused.build(path.parent, Downpour()) == "pushes are compiled by clang"
    assert list(path.parent.iterdir()) == [path.with_name(fused.LIBRARY)]


def test_where_nothing_can_be_written_torch_does_it(path: Path) -> None:
    line = fused.build(path.parent / "gone", Downpour())
    assert line is not None and "not compiled" in line and "No such file" in line


def test_clang_which_has_another_macro_for_a_multiple_rounded_once_will_do(
    path: Path, bin_folder: Path
) -> None:
    compiler(bin_folder, "clang", f'PATH={os.defpath} exec gcc -U__FP_FAST_FMAF "$@"')
    assert fused.build(path.parent, Downpour()) == "pushes are compiled by clang"


def test_learners_wait_for_the_shards_while_a_compiler_is_at_work(
    path: Path, bin_folder: Path
) -> None:
    """Longer than their time limit, as while a large shard is being made."""
    compiler(bin_folder, "cc", f"{os.path.realpath('/bin/sleep')} 1; exit 1")
    parameters, solver = Parameters(COUNT, "float32", 1, "model"), Downpour()

    def serve() -> None:
        fused.build(path.parent, solver)
        create_shard(path, layout_of(parameters, 1, 0, solver, HOME), 1)

    server, said = threading.Thread(target=serve), list[str]()
    server.start()
    try:
        client = join(path.parent, parameters, 1, solver, 1, 0.3, warn=said.append)
        client.leave()
    finally:
        server.join()
    assert "is making" in said[0]


def test_a_compiler_that_hangs_is_waited_for_so_long(
    path: Path, bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(bin_folder, "cc", f"exec {os.path.realpath('/bin/sleep')} 60")
    monkeypatch.setattr(fused, "_COMPILER_TIMEOUT_S", 0.2)
    line = fused.build(path.parent, Downpour())
    assert line is not None and "timed out after 0.2 seconds" in line
    assert not list(path.parent.iterdir())


def test_a_compiler_that_hangs_ends_with_all_it_has_started_and_no_other_is_tried(
    path: Path, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners wait for the shards meanwhile."""
    late, other = tmp_path / "late", tmp_path / "other"
    sleep = os.path.realpath("/bin/sleep")
    compiler(bin_folder, "cc", f"({sleep} 0.6; echo > {late}) & wait")
    compiler(bin_folder, "gcc", f"echo > {other}; exit 1")
    monkeypatch.setattr(fused, "_COMPILER_TIMEOUT_S", 0.2)
    line = fused.build(path.parent, Downpour())
    assert line == "pushes are not compiled, and take longer: cc timed out after 0.2 seconds"
    time.sleep(0.8)
    assert not late.exists() and not other.exists()


def test_what_a_compiler_leaves_running_is_not_waited_for(
    path: Path, bin_folder: Path, tmp_path: Path
) -> None:
    """As a wrapper does that starts a server of its own, which has its standard error."""
    sleep, its_pid = os.path.realpath("/bin/sleep"), tmp_path / "pid"
    compiler(
        bin_folder, "cc", f'{sleep} 100 & echo $! > {its_pid}; PATH={os.defpath} exec gcc "$@"'
    )
    assert fused.build(path.parent, Downpour()) == "pushes are compiled by cc"
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
        ("void dlctl_downpour", "void another"),
    ],
)
def test_what_is_not_torchs_is_not_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    source = fused.SOURCE.read_text()
    assert right in source
    (tmp_path / "wrong.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(fused, "SOURCE", tmp_path / "wrong.c")
    line = fused.build(path.parent, Downpour())
    assert line is not None and "what it has made does not do what torch does" in line
    assert not list(path.parent.iterdir())


def test_a_broken_library_is_not_used(path: Path) -> None:
    path.with_name(fused.LIBRARY).write_bytes(b"\x7fELF and no more")
    assert fused.load(path.with_name(fused.LIBRARY)) is None


def test_nothing_is_loaded_that_another_user_may_have_put_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user may make a folder in shared memory, of any name."""
    fused.build(path.parent, Downpour())
    library = path.with_name(fused.LIBRARY)
    path.parent.chmod(0o770)
    assert fused.load.__wrapped__(library) is None
    path.parent.chmod(0o700)
    assert fused.load.__wrapped__(library) is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert fused.load.__wrapped__(library) is None
