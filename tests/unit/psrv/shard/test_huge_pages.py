"""Mappings of files in shared memory: their addresses and lifetimes."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from psrv.shard import huge_pages
from psrv.shard.huge_pages import flat_zeros, map_file, use_huge_pages

MIB = 2**20


@pytest.fixture
def descriptor() -> Iterator[int]:
    descriptor, name = tempfile.mkstemp(prefix="dlctl-test-", dir="/dev/shm")
    Path(name).unlink()
    os.posix_fallocate(descriptor, 0, 5 * MIB)
    os.pwrite(descriptor, b"first", 0)
    os.pwrite(descriptor, b"last", 5 * MIB - 4)
    yield descriptor
    os.close(descriptor)


def place(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


def of_the_mapping(address: int) -> str:
    """Return what the kernel says about the mapping at an address."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begun = [number for number, line in enumerate(lines) if line.split()[0][-1] != ":"]
    for first, end in zip(begun, [*begun[1:], len(lines)], strict=True):
        start, stop = (int(part, 16) for part in lines[first].split()[0].split("-"))
        if start <= address < stop:
            return "\n".join(lines[first:end])
    raise LookupError(f"no mapping has {address:x}")


def test_huge_pages_keep_the_content(descriptor: int) -> None:
    memory = map_file(descriptor, 5 * MIB)
    assert place(memory) % (2 * MIB) == 0
    used = use_huge_pages(memory, 5 * MIB)  # if the kernel supports it
    assert used == ("ShmemPmdMapped:        0 kB" not in of_the_mapping(place(memory)))
    assert not use_huge_pages(memory, MIB)
    assert (bytes(memory[:5]), bytes(memory[-4:])) == (b"first", b"last")
    memory[5] = 7
    assert os.pread(descriptor, 1, 5) == b"\x07"
    assert os.fstat(descriptor).st_blocks * 512 <= 6 * MIB


def test_a_mapping_lives_as_long_as_its_last_view(descriptor: int) -> None:
    memory = map_file(descriptor, 5 * MIB)
    first = f"{place(memory):x}-"
    tensor = torch.frombuffer(memory, dtype=torch.uint8)[3:5]
    words = memory[:64].cast("q")
    del memory
    for held in (tensor, words):
        gc.collect()
        assert first in Path("/proc/self/maps").read_text()
        del held
    assert bytes(tensor.tolist()) == b"st"
    del tensor, words
    gc.collect()
    assert first not in Path("/proc/self/maps").read_text()


def test_without_the_c_functions_pages_are_small(
    descriptor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huge_pages, "_library", lambda: None)
    memory = map_file(descriptor, 5 * MIB)
    assert not use_huge_pages(memory, 5 * MIB)
    assert bytes(memory[:5]) == b"first"


def test_flat_zeros_ask_for_huge_pages() -> None:
    zeros = flat_zeros(MIB, torch.float64)
    assert (zeros.shape, zeros.dtype, zeros.count_nonzero()) == ((MIB,), torch.float64, 0)
    assert " hg" in of_the_mapping(zeros.data_ptr()).split("VmFlags:")[1]
    assert flat_zeros(3, torch.bfloat16).tolist() == [0, 0, 0]
    view = zeros[5:7].fill_(2)
    del zeros
    gc.collect()
    assert view.tolist() == [2, 2]
