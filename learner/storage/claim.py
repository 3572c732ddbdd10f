"""One fetcher at a time, on any shared file system: a folder is the claim, a file in it the pulse.

Locks succeed for everybody on some cluster file systems, so none is used. Two renames decide
instead: `mkdir` for a claim, and the rename of the owner's file for a takeover. Only one process
can win either. Clocks are not compared: a claim has lapsed once its file did not change for a
while by the clock of the process that waits.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from dlctl.contract.ground.processes import look, pid_space

BEAT_S = 2.0
LAPSE_S = 30.0
LAPSE_VARIABLE = "DLCTL_STORE_LAPSE_S"
_WAIT_S = 0.2


class Claim:
    """The right to fetch into a folder; it ends with the process, or when it is not renewed."""

    def __init__(self, folder: Path, token: str) -> None:
        self.token = token
        """Names this claim's private files."""
        self._file = folder / token
        self._stop = threading.Event()
        self._pulse = threading.Thread(target=self._beat, daemon=True)
        self.lost = False
        """Whether another process has taken over."""
        self._pulse.start()

    def still_owned(self) -> bool:
        """Return whether nobody has taken over."""
        self.lost = self.lost or not os.path.exists(self._file)  # noqa: PTH110 - never raises
        return not self.lost

    def release(self) -> None:
        """Give the claim up."""
        self._stop.set()
        self._pulse.join()
        with contextlib.suppress(OSError):
            self._file.unlink()
            self._file.parent.rmdir()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_S):
            try:
                with self._file.open("r+") as file:  # does not bring back what a successor renamed
                    file.write(str(time.time()))
            except FileNotFoundError:
                self.lost = True
                return
            except OSError:
                continue


@contextlib.contextmanager
def claimed(folder: Path, waiting: Callable[[str], None]) -> Iterator[Claim]:
    """Claim a folder that need not exist, and release it at the end.

    Args:
        waiting: Called while another process has the claim, with its host.
    """
    lapse_s = float(os.environ.get(LAPSE_VARIABLE) or LAPSE_S)
    token = _token()
    watch = _ClaimWatch(lapse_s)
    while not _taken(folder, token, watch, waiting):
        time.sleep(_WAIT_S)
    with _held(folder, token) as claim:
        yield claim


@contextlib.contextmanager
def claim_if_free(folder: Path) -> Iterator[Claim | None]:
    """Claim a folder for the block, unless another process has it: then yield None."""
    token = _token()
    if not _taken(folder, token, _ClaimWatch(math.inf), lambda _: None):
        yield None
        return
    with _held(folder, token) as claim:
        yield claim


@contextlib.contextmanager
def _held(folder: Path, token: str) -> Iterator[Claim]:
    """Keep a claim alive for the block, and release it at the end."""
    claim = Claim(folder, token)
    try:
        yield claim
    finally:
        claim.release()


def _token() -> str:
    machine = pid_space() or "unknown"
    return f"{secrets.token_hex(6)}.{machine}.{os.getpid()}.{socket.gethostname()[:40]}"


def _taken(folder: Path, token: str, watch: _ClaimWatch, waiting: Callable[[str], None]) -> bool:
    """Try once to get the claim, free or lapsed; return whether that worked."""
    try:
        folder.mkdir()
    except FileExistsError:
        names = watch.owners(folder)
        if not watch.lapsed(folder, names):
            waiting(names[0].split(".", 3)[-1] if names else "another node")
            return False
        if names:
            with contextlib.suppress(OSError):
                (folder / names[0]).rename(folder / token)
                return True
        else:  # its owner was killed before it wrote its name
            with contextlib.suppress(OSError):
                folder.rmdir()
        return False
    with contextlib.suppress(FileNotFoundError):  # gone: it was empty, and taken for lapsed
        (folder / token).open("x").close()
        return True
    return False


class _ClaimWatch:
    """Times for how long a claim has not changed, by this process's own clock."""

    def __init__(self, lapse_s: float) -> None:
        self._lapse_s = lapse_s
        self._state: object = None
        self._since = time.monotonic()

    def owners(self, folder: Path) -> list[str]:
        with contextlib.suppress(OSError):
            return sorted(os.listdir(folder))  # noqa: PTH208
        return []

    def lapsed(self, folder: Path, names: list[str]) -> bool:
        """Return whether the owner is dead: certainly, or as far as its silence tells."""
        state: object = names
        if names:
            if _is_dead(names[0]):
                return True
            with contextlib.suppress(OSError):
                status = (folder / names[0]).stat()
                state = (names, status.st_mtime_ns, status.st_size)
        now = time.monotonic()
        if state != self._state:
            self._state, self._since = state, now
        return now - self._since > self._lapse_s


def _is_dead(token: str) -> bool:
    """Return whether the process of a claim is known to be gone: only one of this machine is."""
    words = token.split(".")
    if len(words) < 3 or not words[2].isdecimal() or words[1] != (pid_space() or None):
        return False
    try:
        process = look(int(words[2]))
    except PermissionError:
        return False
    return process is None or process.has_ended
