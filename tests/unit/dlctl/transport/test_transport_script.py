"""A script over streams that are played."""

from __future__ import annotations

import queue
import threading

import pytest

from dlctl.errors import TransportTimeout
from dlctl.transport.script import ScriptProcess, ScriptTransport

MARKER = b"marker"


class Played:
    """A login shell's output, sent when the test says; keeps who was killed."""

    def __init__(self) -> None:
        self.output: queue.Queue[bytes] = queue.Queue()
        self.killed: list[int | None] = []

    def read(self, timeout_s: float) -> bytes:
        try:
            return self.output.get(timeout=0 if self.killed else timeout_s)
        except queue.Empty:
            if self.killed:
                return b""
            raise TransportTimeout("no progress") from None

    def read_error(self, timeout_s: float) -> bytes:
        return b""

    def write(self, data: bytes | memoryview, timeout_s: float) -> None:
        pass

    def close_stdin(self) -> None:
        pass

    def exit_code(self, timeout_s: float) -> int:
        return 143

    def kill(self, pid: int | None) -> None:
        self.killed.append(pid)
        self.output.put(b"")

    def release(self) -> None:
        pass


class PlayedTransport(ScriptTransport):
    name = "played"

    def __init__(self, streams: Played) -> None:
        self._streams = streams

    def _open(self, command: str) -> Played:
        return self._streams

    def close(self) -> None:
        pass


def late(streams: Played, text: bytes) -> None:
    threading.Timer(0.2, streams.output.put, [text]).start()


def test_a_script_that_has_not_begun_yet_is_ended_with_its_process_group():
    streams = Played()
    process = ScriptProcess(streams, "played", MARKER, 10)
    late(streams, MARKER + b"77\n")
    process.kill()
    assert streams.killed == [77]


def test_so_is_one_whose_input_breaks_at_once(monkeypatch):
    streams = Played()
    monkeypatch.setattr("dlctl.transport.script._framed", lambda script: (b"", MARKER))
    late(streams, b"Welcome\n" + MARKER + b"78\n")

    def broken():
        yield b"x"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        PlayedTransport(streams).run("cat", stdin=broken())
    assert streams.killed[0] == 78


def test_a_shell_that_says_nothing_is_not_waited_for_long(monkeypatch):
    streams = Played()
    monkeypatch.setattr("dlctl.transport.script._BEGIN_GRACE_S", 0.1)
    ScriptProcess(streams, "played", MARKER, 10).kill()
    assert streams.killed == [None]
