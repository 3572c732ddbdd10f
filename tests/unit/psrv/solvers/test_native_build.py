"""The functions of native.c: compiled if a compiler exists, used if they match torch."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlctl.contract import Parameters
from psrv.client import join
from psrv.push.waiting import WaitPolicy
from psrv.shard.format import PRIMARY, create_shard
from psrv.solvers import native_build
from psrv.solvers.partition import ShardSet, layout_of
from psrv.solvers.solver import Downpour

MKDIR = shutil.which("mkdir")
COUNT = 150_000


@pytest.fixture
def path(shm_folder: Path) -> Path:
    return shm_folder / "shard-0"


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


def test_without_a_compiler_torch_does_the_work_and_the_log_says_so(
    path: Path, bin_folder: Path
) -> None:
    line = native_build.build(path.parent)
    assert line == "pushes are not compiled, and take longer: there is none of cc, gcc, clang"
    compiler(bin_folder, "gcc", "echo native.c: fatal error: no such thing >&2; exit 1")
    line = native_build.build(path.parent)
    assert line is not None and line.endswith("longer: gcc: native.c: fatal error: no such thing")
    assert native_build.load.__wrapped__(path.with_name(native_build.LIBRARY)) is None
    assert not list(path.parent.iterdir())


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
def test_a_compiler_without_output_is_an_error(path: Path, bin_folder: Path, script: str) -> None:
    compiler(bin_folder, "gcc", script)
    line = native_build.build(path.parent)
    assert line is not None and line.startswith("pushes are not compiled, and take longer: gcc: ")
    assert not list(path.parent.iterdir())
    compiler(bin_folder, "clang", f'PATH={os.defpath} exec cc "$@"')
    assert native_build.build(path.parent) == "pushes are compiled by clang"
    assert list(path.parent.iterdir()) == [path.with_name(native_build.LIBRARY)]


def test_in_a_read_only_folder_torch_does_the_work(path: Path) -> None:
    line = native_build.build(path.parent / "gone")
    assert line is not None and "not compiled" in line and "No such file" in line


def test_clang_s_macro_for_fma_is_recognised(path: Path, bin_folder: Path) -> None:
    compiler(bin_folder, "clang", f'PATH={os.defpath} exec gcc -U__FP_FAST_FMAF "$@"')
    assert native_build.build(path.parent) == "pushes are compiled by clang"


def test_learners_wait_while_the_server_compiles(path: Path, bin_folder: Path) -> None:
    """They wait beyond their time limit, as while a large shard is being made."""
    compiler(bin_folder, "cc", f"{os.path.realpath('/bin/sleep')} 1; exit 1")
    parameters, solver = Parameters(COUNT, "float32", 1, "model"), Downpour()

    def serve() -> None:
        native_build.build(path.parent)
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
    path: Path, bin_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learners wait for the shards meanwhile."""
    nap, other = f"600.{secrets.randbelow(10**9):09}", tmp_path / "other"
    compiler(bin_folder, "cc", f"{os.path.realpath('/bin/sleep')} {nap} & wait")
    compiler(bin_folder, "gcc", f"echo > {other}; exit 1")
    monkeypatch.setattr(native_build, "_COMPILER_TIMEOUT_S", 0.2)
    line = native_build.build(path.parent)
    assert line == "pushes are not compiled, and take longer: cc timed out after 0.2 seconds"
    deadline = time.monotonic() + 60
    while any(nap in line for line in command_lines()):
        assert time.monotonic() < deadline, "the compiler's child is left"
    assert not other.exists() and not list(path.parent.iterdir())


def command_lines() -> Iterator[str]:
    """Yield those of all processes."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            yield path.read_text(errors="replace")


def test_a_compiler_s_leftover_processes_are_not_waited_for(
    path: Path, bin_folder: Path, tmp_path: Path
) -> None:
    """A compiler wrapper may start a server that inherits its standard error."""
    sleep, its_pid = os.path.realpath("/bin/sleep"), tmp_path / "pid"
    compiler(
        bin_folder, "cc", f'{sleep} 100 & echo $! > {its_pid}; PATH={os.defpath} exec gcc "$@"'
    )
    assert native_build.build(path.parent) == "pushes are compiled by cc"
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
        ("void dlctl_downpour", "void another"),
    ],
)
def test_functions_that_differ_from_torch_are_not_used(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: str, wrong: str
) -> None:
    source = native_build.SOURCE.read_text()
    assert right in source
    (tmp_path / "wrong.c").write_text(source.replace(right, wrong))
    monkeypatch.setattr(native_build, "SOURCE", tmp_path / "wrong.c")
    line = native_build.build(path.parent)
    assert line is not None and "its functions do not match torch" in line
    assert not list(path.parent.iterdir())


def test_a_broken_library_is_not_used(path: Path) -> None:
    path.with_name(native_build.LIBRARY).write_bytes(b"\x7fELF and no more")
    assert native_build.load(path.with_name(native_build.LIBRARY)) is None


def test_a_library_in_a_folder_that_others_can_write_to_is_not_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user may make a folder of any name in shared memory."""
    native_build.build(path.parent)
    library = path.with_name(native_build.LIBRARY)
    path.parent.chmod(0o770)
    assert native_build.load.__wrapped__(library) is None
    path.parent.chmod(0o700)
    assert native_build.load.__wrapped__(library) is not None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert native_build.load.__wrapped__(library) is None
