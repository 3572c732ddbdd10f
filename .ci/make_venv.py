"""Make the environment FOLDER, or add to it: make_venv.py FOLDER STAGE.

demo   what `make demo` needs: dlctl with torch for CPUs, and an MPI
test   what `make test` needs on top
all    what `make test-all` needs on top: Keystone, XGBoost, MLflow, packages of Node.js

uv installs, with pip's own settings, and pip does where no uv can be had; constraints.txt pins for
both. TORCH_SOURCE says where torch comes from (see README.md). Standard library only: this is what
a fresh machine runs first.
"""

from __future__ import annotations

import ast
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

SETTINGS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
}
"""Settings that uv does not read, and its options for them; each value is a list of words."""
PINNED = ("-c", "constraints.txt")
LOADED_WITHOUT_TORCH = ("dlctl.cli.main", "h5py", "learner.agent.watchdog", "learner.supervisor")
SILENCE_S = 1.9
STAGES = ("demo", "test", "all")


def say(text: str) -> None:
    """Print a line of dlctl's own, at once."""
    print(f"dlctl: {text}", flush=True)


class Step:
    """`with Step("Installing torch"):` says so, and every two seconds that it goes on.

    With `draws` the step itself shows on a terminal how far it is.
    """

    def __init__(self, what: str, *, draws: bool = False) -> None:
        self._what = what
        self._is_quiet = draws and sys.stderr.isatty()
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._tell)

    def _tell(self) -> None:
        while not (self._is_quiet or self._ended.wait(SILENCE_S)):
            print(f"  {time.monotonic() - self._began:3.0f} s", flush=True)

    def __enter__(self) -> None:
        say(self._what)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def size_mb(folder: Path) -> int:
    """Return what the environment takes; files that come and go meanwhile don't matter."""
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):
                total += Path(place, file).lstat().st_size
    return total // 1_000_000


def run(argv: Sequence[str | Path]) -> None:
    """Run a command to its end; what it prints is seen."""
    done = subprocess.run([str(word) for word in argv], stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"dlctl: this command failed ({done.returncode}): {shlex.join(map(str, argv))}")


def pip_for(python: Path) -> list[str]:
    """Return the words that install into `python`'s environment with a pip, of whoever has one."""
    if (python.parent / "pip").exists():
        return [str(python), "-m", "pip"]
    knows_python = "import pip, sys; sys.exit(int(pip.__version__.partition('.')[0]) < 23)"
    for base in (sys.executable, "python3"):
        if succeeds([base, "-c", knows_python]):
            return [base, "-m", "pip", "--python", str(python)]
    if not succeeds([str(python), "-m", "ensurepip"]):  # Debian keeps it in a package of its own
        run([".ci/system-packages", "--if-harmless", "python"])
        run([python, "-m", "ensurepip"])
    return [str(python), "-m", "pip"]


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Return whether a command exists and exits with 0; what it prints is not seen."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def pip_settings(pip: Sequence[str]) -> list[str]:
    """Return pip's settings (its files, then its variables) as options of uv."""
    done = subprocess.run([*pip, "config", "list"], capture_output=True, text=True)
    found: dict[str, str] = {}
    order = ("global", "install", ":env:")  # a later one counts
    lines = [line.partition(".") for line in done.stdout.splitlines()]
    for _, _, line in sorted(
        (each for each in lines if each[0] in order), key=lambda each: order.index(each[0])
    ):
        name, _, value = line.partition("=")
        found[name] = str(ast.literal_eval(value))
    if "cert" in found:
        os.environ.setdefault("SSL_CERT_FILE", found["cert"])
    options = [
        word
        for name, option in SETTINGS.items()
        for value in found.get(name, "").split()
        for word in (option, value)
    ]
    return [*options, *(["--no-index"] if found.get("no-index") in ("1", "true", "yes") else [])]


def installer(python: Path) -> Callable[..., list[str]]:
    """Return what makes the command that installs packages: uv's, or pip's where there is no uv."""
    pip = pip_for(python)
    with ThreadPoolExecutor(1) as meanwhile:
        found = meanwhile.submit(pip_settings, pip)
        uv = shutil.which("uv") or shutil.which("uv", path=str(python.parent))
        if uv is not None and not succeeds([uv, "pip", "install", "--group", "x", "--help"]):
            uv = None  # older than groups
        if uv is None:
            with Step("Installing uv, 18 MB, which installs the rest"):
                if succeeds([*pip, "install", "-q", "--only-binary", ":all:", *PINNED, "uv"]):
                    uv = str(python.with_name("uv"))
    if uv is None:
        say("There is no uv to be had: pip installs, which takes a few minutes")
        run([*pip, "install", "-q", *PINNED, "pip>=25.1"])  # the first one that knows groups
        own_pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
        own_pip += [] if sys.stderr.isatty() else ["-q"]
        return lambda *own, into=python: [
            *(*own_pip, "--python", str(into), "install", *PINNED, *own)
        ]
    best = ("--index-strategy", "unsafe-best-match")  # of all indexes, as pip does
    return lambda *own, into=python: [
        *(uv, "pip", "install", "--python", str(into), *PINNED, *best, *own),
        # An index that the user names for one package is in place of pip's own.
        *([] if "--index-url" in own else found.result()),
    ]


def torch_source() -> list[str]:
    """Return the options for where torch comes from."""
    asked = [".ci/torch-source", sys.executable]
    return shlex.split(subprocess.run(asked, capture_output=True, text=True).stdout)


def make_demo(folder: Path) -> None:
    """Make the environment anew."""
    began = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    say(f"Making {folder} with Python {sys.version.split()[0]} ({sys.executable})")
    run([sys.executable, "-m", "venv", "--without-pip", folder])
    python = folder.absolute() / "bin/python"
    install = installer(python)
    with Step("Installing torch for CPUs, 190 MB to download, 700 MB installed", draws=True):
        # A CPU build (2.13.0+cpu) counts as newer than 2.13.0, so it wins wherever one is offered.
        run([*install(*torch_source()), "torch"])
    # Learners that compile what they import would all do so at the same time, and in silence.
    without_numpy = "import sys; sys.modules['numpy'] = None; import torch"  # half of it is there
    compiling = subprocess.Popen([python, "-c", without_numpy], stderr=subprocess.DEVNULL)
    with Step("Installing dlctl and what its nodes need, about 70 MB", draws=True):
        run([*install(), "-e", ".[node]", "--group", "demo"])
    with Step("Compiling the modules that a training loads"):
        run([python, "-c", f"import {', '.join(LOADED_WITHOUT_TORCH)}"])
        compiling.wait()
    say(f"{folder} is ready: {size_mb(folder)} MB in {time.monotonic() - began:.0f} s")


def make_test(folder: Path) -> None:
    """Add what `make test` and `make check` need; the jobs of the cluster can't write bytecode."""
    python = folder.absolute() / "bin/python"
    install = installer(python)
    with Step("Installing what tests, checks and docs need, about 500 MB", draws=True):
        # By its name: from its folder it would be installed anew, and jobs run from it meanwhile.
        run([*install(), "dlctl[export,gpu,node]", "--group", "test"])
    add_servers(folder, install, "servers")
    with Step("Compiling modules"):
        subprocess.run(
            [
                python,
                "-m",
                "compileall",
                "-qq",
                "-j0",
                *python.parents[1].glob("lib/*/site-packages"),
            ]
        )


def make_all(folder: Path) -> None:
    """Add what `make test-all` needs; without network access its tests can run in part."""
    add_servers(folder, installer(folder.absolute() / "bin/python"), "servers-all")
    frameworks = [".ci/make-frameworks", f"{folder}/frameworks", "xgb", "trackers", "site"]
    worker = [".ci/make-worker-node", f"{folder}/worker-node"]
    for command in (frameworks, worker):
        with Step(shlex.join(command)):
            if subprocess.run(command).returncode != 0:
                say("Its tests are skipped, or fail in CI; the next `make` tries again.")
                sys.exit()


def add_servers(folder: Path, install: Callable[..., list[str]], group: str) -> None:
    """Install servers that tests start, apart: theirs would slow down what developers import."""
    servers = folder.absolute() / "servers"
    if not servers.exists():
        run([sys.executable, "-m", "venv", "--without-pip", servers])
    with Step(f"Installing servers that tests start (the group {group}), about 100 MB", draws=True):
        run([*install(into=servers / "bin/python"), "--group", group])


def main() -> None:
    """Make one stage; a file named as the stage tells make that it is there."""
    if len(sys.argv) != 3 or sys.argv[2] not in STAGES:
        sys.exit(f"usage: .ci/make-venv FOLDER {'|'.join(STAGES)}")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    folder, stage = Path(sys.argv[1]), sys.argv[2]
    try:
        if stage != "demo" and not (folder / "bin/python").exists():
            make_demo(folder)
            (folder / ".demo").touch()  # else the next `make` begins anew
        {"demo": make_demo, "test": make_test, "all": make_all}[stage](folder)
    except KeyboardInterrupt:
        sys.exit("dlctl: interrupted; the next `make` begins this stage again")
    (folder / f".{stage}").touch()


if __name__ == "__main__":
    main()
