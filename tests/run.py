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
from importlib import metadata
from pathlib import Path
from typing import IO

from pytest import ExitCode

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/support"))

import near  # noqa: E402
import tiers  # noqa: E402

BUILD = REPOSITORY / "build"
MARKS = {
    "first": tiers.FIRST,
    "all": "not long and not frameworks",
    "near": tiers.FIRST,
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
    parser = argparse.ArgumentParser(
        prog=".ci/test", description=__doc__.splitlines()[0], allow_abbrev=False
    )
    parser.add_argument("tier", choices=MARKS)
    parser.add_argument("--shard", metavar="K/N", help="run the K-th of N parts", default="1/1")
    parser.add_argument("--coverage", action="store_true", help="measure it: build/coverage")
    given, words = parser.parse_known_args()
    part = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", given.shard)
    if not part or int(part[1]) > int(part[2]):
        parser.error(f"--shard {given.shard}: write K/N, such as 2/4")
    os.chdir(REPOSITORY)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compile once, not in each of many processes
    BUILD.mkdir(exist_ok=True)
    own = ["dlctl", "learner", "psrv", "search"]
    subprocess.run([sys.executable, "-m", "compileall", "-q", *own], check=True)
    places: list[str] = []
    if given.tier == "near":
        places = near.tests(REPOSITORY)
        print("Tests near to what changed since main:", *places or ["none"], sep="\n  ", flush=True)
        if not places:
            return
    if given.coverage:
        shutil.rmtree(BUILD / "coverage", ignore_errors=True)
        PYTEST[1:1] = ["-m", "coverage", "run"]
    code = Run(given.tier, given.shard, measured=given.coverage).go(places, words)
    if given.coverage:
        for word in ("combine", "report"):
            subprocess.run([sys.executable, "-m", "coverage", word, *SHORT[word]], check=True)
    tell_what_is_missing()
    sys.exit(code)


class Run:
    """One run of a tier, and its second try."""

    def __init__(self, tier: str, shard: str, *, measured: bool) -> None:
        self._tier, self._before = tier, ""
        self._failed = BUILD / f"failed-{tier}-{shard.replace('/', '-of-')}.txt"
        self._failed.write_text("")
        self._tree = tree()
        self._passed = BUILD / f"passed-{self._tree}.txt"
        for old in sorted(BUILD.glob("passed-*.txt"), key=lambda file: file.stat().st_mtime)[:-5]:
            old.unlink(missing_ok=True)
        if not self._tree:
            self._passed.unlink(missing_ok=True)
        os.environ |= {
            tiers.TIER_VARIABLE: tier,
            tiers.FAILED_VARIABLE: str(self._failed),
            tiers.PASSED_VARIABLE: str(self._passed),
            tiers.SHARD_VARIABLE: shard,
        }
        if tier == "all" and not measured:
            self._before = self._passed.read_text() if self._passed.exists() else ""
            before = self._failed.with_suffix(".before")
            before.write_text(self._before)
            os.environ[tiers.SKIP_VARIABLE] = str(before)

    def go(self, places: list[str], words: list[str]) -> int:
        """Run the tests, and those that failed once more; return the exit code."""
        began = time.monotonic()
        # All temporary files of the run; a short path, because sockets lie in it.
        folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="dlt-")
        Path(folder).chmod(0o755)  # some tests are another user for a moment
        try:
            return self._go(places, words, began)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _go(self, places: list[str], words: list[str], began: float) -> int:
        workers = WORKERS.get(self._tier, 3)
        spread = ["-n", str(workers), "--dist", "loadgroup", "--no-loadscope-reorder"]
        spread.append("--max-worker-restart=0")  # with others in its place a run may never end
        argv = [*PYTEST, *spread, "-m", MARKS[self._tier], *places, *words]
        code = self._into_a_file(argv) if self._tier == "all" else run(argv)
        failed = self._failed.read_text().splitlines()
        if tiers.FAULT in failed or tree() != self._tree:  # nobody can tell what has passed
            self._passed.unlink(missing_ok=True)
        if code == ExitCode.TESTS_FAILED and tiers.FAULT not in failed:
            if 0 < len(failed) <= AGAIN_AT_MOST:
                code = self._again(failed)
        elif code == ExitCode.NO_TESTS_COLLECTED and not words and (places or self._before):
            passed_before = "Every test of this part has passed on this tree before: nothing to do."
            print("Only other tiers have tests near to this." if places else passed_before)
            code = ExitCode.OK
        took_s = time.monotonic() - began
        print(f"tier {self._tier}: {took_s / 60:.1f} minutes, {'passed' if not code else 'FAILED'}")
        return code

    def _into_a_file(self, argv: list[str]) -> int:
        """Run a command whose output goes to a file; tell now and then how far it is, and its end.

        What is told fits one screen.
        """
        log, began, told_at = self._failed.with_suffix(".log"), time.monotonic(), 0.0
        print(f"The output goes to {os.path.relpath(log)}.", flush=True)

        def tell() -> None:
            nonlocal told_at
            if time.monotonic() - told_at > TOLD_EVERY_S:
                told_at = time.monotonic()
                found = re.findall(r"\[ *(\d+)%\]", log.read_text(errors="replace")) or ["0"]
                failed = len(self._failed.read_text().splitlines())
                minutes = (told_at - began) / 60
                print(f"  {minutes:4.0f} min: {found[-1]} %, {failed} failed", flush=True)

        with log.open("w") as output:
            code = run(argv, output, tell)
        _, cost, end = log.read_text(errors="replace").partition("= cost =")
        print(cost + end or log.read_text(errors="replace")[-3000:])
        return code

    def _again(self, failed: list[str]) -> int:
        print(f"{len(failed)} failed; once more, alone:", flush=True)
        self._failed.write_text("")
        passed = self._failed.with_suffix(".again")
        passed.write_text("")
        os.environ[tiers.PASSED_VARIABLE] = str(passed)
        os.environ.pop(tiers.SKIP_VARIABLE, None)
        os.environ.pop(tiers.SHARD_VARIABLE, None)
        os.environ.pop(tiers.TIER_VARIABLE)
        code = run([*PYTEST, "-p", "no:xdist", *failed])
        unsteady = [name for name in failed if name in passed.read_text().splitlines()]
        if unsteady:
            print("unsteady (failed beside others, passed alone; find the cause):")
            for name in unsteady:
                print(f"  {name}")
        if len(unsteady) > UNSTEADY_AT_MOST:
            print(f"more than {UNSTEADY_AT_MOST} unsteady tests: the run has failed")
            return ExitCode.TESTS_FAILED
        return code if len(unsteady) == len(failed) else code or ExitCode.TESTS_FAILED


def tell_what_is_missing() -> None:
    """Say which tests were skipped because the machine lacks programs, and how to get them."""
    for group, tests in (("cluster", "the cluster tests"), ("web", "the tests of the pages")):
        asked = [".ci/system-packages", "--missing", group]
        lacking = subprocess.run(asked, stdout=subprocess.PIPE, text=True).stdout.split()
        if lacking:
            print(f"Without {', '.join(lacking)} {tests} were skipped: `make {group}-deps`")


def run(
    argv: list[str], output: IO[str] | None = None, meanwhile: Callable[[], None] = lambda: None
) -> int:
    """Run a command to its end; at Ctrl-C it ends in its own way, and this program after it."""
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output and subprocess.STDOUT
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal has told the command, too
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: process.send_signal(number))
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(1)
            meanwhile()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)


def tree() -> str:
    """Return a name for the files as they are now, changed and new ones too, and for the packages.

    Outside git, such as in an unpacked archive, there is none: "".
    """

    def git(*words: str, **more: str) -> str:
        done = subprocess.run(
            ["git", *words], capture_output=True, text=True, env=os.environ | more
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    if not (top := git("rev-parse", "--show-toplevel")) or not REPOSITORY.samefile(top):
        return ""
    with tempfile.TemporaryDirectory() as folder:  # with what is staged left alone
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        git("read-tree", "HEAD", **index)
        git("add", "--all", **index)
        files = git("write-tree", **index)
    packages = sorted(f"{each.name} {each.version}" for each in metadata.distributions())
    text = "\n".join([files, sys.version, *packages])
    return hashlib.sha256(text.encode()).hexdigest()[:16] if files else ""


if __name__ == "__main__":
    main()
