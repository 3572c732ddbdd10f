"""Run a tier of the tests: .ci/test first|all|near|long|frameworks [--shard K/N] [pytest's words …]

first        all that a cheap test can see
all          the first tier and all the rest; what passed on this very tree does not run again
near         of the first tier, the tests of the rooms that import what changed since main
long         proofs that are repeated too often for a day's work
frameworks   real frameworks of others, in environments of their own

A test that fails runs once more, alone. If it then passes it is *unsteady*: the run lists it, and
fails if there are more than two. docs/testing.md says more.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/support"))

import near  # noqa: E402
import tiers  # noqa: E402

BUILD = REPOSITORY / "build"
MARKS = {
    "first": "not slow and not long and not frameworks",
    "all": "not long and not frameworks",
    "near": "not slow and not long and not frameworks",
    "long": "long and not frameworks",
    "frameworks": "frameworks",
}
WORKERS = {"frameworks": 1}
"""Processes that run tests at the same time: more than cores, because tests mostly wait."""
UNSTEADY_AT_MOST = 2
SHORT = {"combine": ["-q"], "report": ["--format=total", "--precision=2"]}
TOLD_EVERY_S = 60
AGAIN_AT_MOST = 12
"""Failed tests that run once more; if more fail, the change is at fault and not its neighbours."""
PYTEST = [sys.executable, "-m", "pytest", "--tb=short", "-q"]


def main() -> None:
    """Run the tier, tell how it went; exit 0 if all passed, and at most two at a second try."""
    parser = argparse.ArgumentParser(prog=".ci/test", description=__doc__.splitlines()[0])
    parser.add_argument("tier", choices=MARKS)
    parser.add_argument("--shard", metavar="K/N", help="run the K-th of N parts", default="1/1")
    parser.add_argument("--coverage", action="store_true", help="measure it: build/coverage")
    given, words = parser.parse_known_args()
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", given.shard):
        parser.error(f"--shard {given.shard}: write K/N, such as 2/4")
    os.chdir(REPOSITORY)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compile once, not in each of many processes
    BUILD.mkdir(exist_ok=True)
    own = ["dlctl", "learner", "psrv", "search"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *own], check=True)
    if given.tier == "near":
        words = [*near.tests(REPOSITORY), *words]
        if not words:
            print("No test is near to what changed.")
            return
    if given.coverage:
        shutil.rmtree(BUILD / "coverage", ignore_errors=True)
        PYTEST[1:1] = ["-m", "coverage", "run"]
    code = Run(given.tier, given.shard).go(words)
    if given.coverage:
        for word in ("combine", "report"):
            subprocess.run([sys.executable, "-m", "coverage", word, *SHORT[word]], check=True)
    sys.exit(code)


class Run:
    """One run of a tier, and its second try."""

    def __init__(self, tier: str, shard: str) -> None:
        self._tier = tier
        self._failed = BUILD / f"failed-{tier}-{shard.replace('/', '-of-')}.txt"
        self._failed.write_text("")
        now = tree()
        passed = BUILD / f"passed-{now}.txt"
        if not now:
            passed.unlink(missing_ok=True)
        os.environ |= {
            tiers.TIER_VARIABLE: tier,
            tiers.FAILED_VARIABLE: str(self._failed),
            tiers.PASSED_VARIABLE: str(passed),
        }
        if tier == "all":
            os.environ[tiers.SHARD_VARIABLE] = shard
            before = self._failed.with_suffix(".before")
            before.write_text(passed.read_text() if passed.exists() else "")
            os.environ[tiers.SKIP_VARIABLE] = str(before)

    def go(self, words: list[str]) -> int:
        """Run the tests, and those that failed once more; return the exit code."""
        began = time.monotonic()
        # All temporary files of the run; a short path, because sockets lie in it.
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="dlt-")
        Path(folder).chmod(0o755)  # some tests are another user for a moment
        try:
            return self._go(words, began)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _go(self, words: list[str], began: float) -> int:
        workers = WORKERS.get(self._tier, 3)
        spread = ["-n", str(workers), "--dist", "loadgroup", "--no-loadscope-reorder"]
        argv = [*PYTEST, *spread, "-m", MARKS[self._tier], *words]
        code = self._in_the_background(argv) if self._tier == "all" else run(argv)
        failed = self._failed.read_text().splitlines()
        if tiers.FAULT not in failed and 0 < len(failed) <= AGAIN_AT_MOST:
            code = self._again(failed)
        elif code == pytest_code("NO_TESTS_COLLECTED") and self._tier == "all":
            print("Every test of this part has passed on this tree before: nothing to do.")
            code = 0
        took_s = time.monotonic() - began
        print(f"tier {self._tier}: {took_s / 60:.1f} minutes, {'passed' if not code else 'FAILED'}")
        return code

    def _in_the_background(self, argv: list[str]) -> int:
        """Run a command whose output goes to a file; tell now and then how far it is, and its end.

        What is told fits one screen.
        """
        log, began, told_at = self._failed.with_suffix(".log"), time.monotonic(), 0.0
        print(f"The output goes to {log.relative_to(REPOSITORY)}.", flush=True)

        def tell() -> None:
            nonlocal told_at
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                found = re.findall(r"\[ *(\d+)%\]", log.read_text()) or ["0"]
                failed = len(self._failed.read_text().splitlines())
                minutes = (told_at - began) / 60
                print(f"  {minutes:4.0f} min: {found[-1]} %, {failed} failed", flush=True)

        with log.open("w") as output:
            code = run(argv, output, tell)
        _, cost, end = log.read_text().partition("= cost =")
        print(cost + end or log.read_text()[-3000:])
        return code

    def _again(self, failed: list[str]) -> int:
        print(f"{len(failed)} failed; once more, alone:", flush=True)
        self._failed.write_text("")
        os.environ.pop(tiers.SKIP_VARIABLE, None)
        os.environ.pop(tiers.SHARD_VARIABLE, None)
        os.environ.pop(tiers.TIER_VARIABLE)
        code = run([*PYTEST, "-p", "no:xdist", *failed])
        still = set(self._failed.read_text().splitlines())
        unsteady = [name for name in failed if name not in still]
        if unsteady:
            print("unsteady (failed beside others, passed alone; find the cause):")
            for name in unsteady:
                print(f"  {name}")
        if len(unsteady) > UNSTEADY_AT_MOST:
            print(f"more than {UNSTEADY_AT_MOST} unsteady tests: the run has failed")
            return pytest_code("TESTS_FAILED")
        return code


def run(
    argv: list[str], output: IO[str] | None = None, meanwhile: Callable[[], None] = lambda: None
) -> int:
    """Run a command to its end; at Ctrl-C it ends in its own way, and this program after it."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal has told the command, too
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGINT))
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
            meanwhile()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_code(name: str) -> int:
    """Return one of pytest's exit codes."""
    import pytest

    return int(pytest.ExitCode[name])


def tree() -> str:
    """Return a name for the files as they are now: tracked ones, changes, and new ones.

    Outside git, such as in an unpacked archive, there is none: "".
    """
    if subprocess.run(
        ["git", "rev-parse", "--verify", "-q", "HEAD"], capture_output=True
    ).returncode:
        return ""
    digest = hashlib.sha256()
    for words in (["rev-parse", "HEAD^{tree}"], ["diff", "--binary", "HEAD"]):
        digest.update(subprocess.run(["git", *words], capture_output=True, check=True).stdout)
    new = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"], capture_output=True, check=True
    ).stdout
    for name in filter(None, new.decode().split("\0")):
        digest.update(name.encode() + Path(name).read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    main()
