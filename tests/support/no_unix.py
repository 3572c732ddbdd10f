"""A plugin for pytest: dlctl's modules find no Unix, as on Windows.

The modules that only Unix has can't be imported, and the calls that only Unix has are gone from
what dlctl's own modules see as `os`, `signal` and `socket`; pytest itself needs some of them.
`python -m pytest -p no_unix tests/unit/dlctl/manifest` runs tests that way.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CALLS = {
    "os": (
        "fork forkpty getuid geteuid getgid killpg setsid getpgid mkfifo pidfd_open "
        "sched_getaffinity sysconf statvfs O_DIRECTORY O_NOFOLLOW O_CLOEXEC O_NONBLOCK fchmod "
        "fchown chown wait4 pread posix_fadvise posix_fallocate getloadavg nice"
    ),
    "signal": (
        "SIGKILL SIGHUP SIGUSR1 SIGUSR2 SIGPIPE SIGWINCH SIGTSTP SIGCONT SIGQUIT pause "
        "sigtimedwait pthread_sigmask"
    ),
    "socket": "AF_UNIX socketpair",
}


class _Without(types.ModuleType):
    """A module without some of its names."""

    def __init__(self, module: types.ModuleType, names: set[str]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_module"], self.__dict__["_names"] = module, names

    def __getattr__(self, name: str) -> object:
        if name in self.__dict__["_names"]:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} (no_unix)")
        return getattr(self.__dict__["_module"], name)

    def __setattr__(self, name: str, value: object) -> None:  # a test's monkeypatch
        setattr(self.__dict__["_module"], name, value)


def masked_import(original):  # type: ignore[no-untyped-def]
    """Return an import function that gives dlctl's modules less than there is."""

    def imported(name, globals=None, locals=None, fromlist=(), level=0):  # type: ignore[no-untyped-def]
        asks = str((globals or {}).get("__name__", ""))
        if asks == "dlctl" or asks.startswith("dlctl."):
            if name in MODULES:
                raise ModuleNotFoundError(f"No module named {name!r} (no_unix)", name=name)
            if name in CALLS:
                found = _Without(
                    original(name, globals, locals, (), level), set(CALLS[name].split())
                )
                for each in fromlist or ():
                    getattr(found, each)
                return found
        return original(name, globals, locals, fromlist, level)

    return imported


def pytest_configure() -> None:
    """Begin; dlctl must not be loaded yet."""
    import builtins

    here = str(Path(__file__).parent)
    for name, module in list(sys.modules.items()):
        # The tests' own modules hold classes of dlctl's that would be others than those of now.
        ours = str(getattr(module, "__file__", "")).startswith(here) and name != __name__
        if not (ours or name == "dlctl" or name.startswith("dlctl.")):
            continue
        del sys.modules[name]
    builtins.__import__ = masked_import(builtins.__import__)
