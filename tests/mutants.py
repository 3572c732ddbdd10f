"""Plant faults in the product, one at a time, and see whether a test fails: by hand only.

    .venv/bin/python tests/mutants.py                # lists the fifty faults, and what is known
    .venv/bin/python tests/mutants.py 3 17 --near    # two of them, by the tests near to them alone
    .venv/bin/python tests/mutants.py --all          # all fifty, by all tests of the first tier

The faults are in tests/support/mutant_table.py. Each is planted in a copy of this tree; the nearest
tests run first, those on the cluster last. The first test that fails ends it, if it fails once more
and passes without the fault. What came out is kept in build/mutants.jsonl: a fault that was tried
on this very tree is not tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grimp
from pytest import ExitCode

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/support"))

import near  # noqa: E402
import tiers  # noqa: E402
from mutant_table import AREAS, MUTANTS, Mutant  # noqa: E402

ROWS = REPOSITORY / "build/mutants.jsonl"
TEST_LIMIT_S = 150
"""A fault may make a test wait for ever: that counts as failed."""


def main() -> None:
    """Try the faults that were asked for, and print what came out."""
    parser = argparse.ArgumentParser(prog="tests/mutants.py", description=__doc__.splitlines()[0])
    parser.add_argument("number", nargs="*", type=int, metavar="NUMBER", help="of the list")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--near", action="store_true", help="by the nearest tests alone")
    given = parser.parse_args()
    every = range(1, len(MUTANTS) + 1)
    numbers = every if given.all else given.number
    if not set(numbers) <= set(every):
        parser.error(f"the numbers are 1 to {len(MUTANTS)}")
    with tempfile.TemporaryDirectory(prefix="dlctl-mutants.") as folder:
        copy = Copy(Path(folder, "tree"))
        for number in numbers:
            known = rows(copy.digest).get(number)
            if known is None or (not known["killed_by"] and known["near"] and not given.near):
                keep(try_one(copy, number, only_near=given.near))
    show(rows(copy.digest))


class Copy:
    """A copy of the tree, in which faults are planted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        digest = hashlib.sha256()
        for name in sorted(filter(None, listed.stdout.split("\0"))):
            source, target = REPOSITORY / name, root / name
            if source.is_file() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
                if not source.is_symlink() and name != "tests/mutants.py":
                    digest.update(f"{name}\0".encode() + source.read_bytes())
        self.digest = digest.hexdigest()[:16]
        subprocess.run(["git", "init", "--quiet", root], check=True)
        self.guiltless: list[str] = []
        """Tests that fail without a fault, too: none of their cases runs any more."""
        self._healthy = ""
        """The text of the file that has a fault."""
        self.why = ""
        """What the last test that failed said."""
        self._passed, self._before, self._failed = (
            root.parent / name for name in ("passed", "before", "failed")
        )

    def plant(self, mutant: Mutant) -> None:
        """Make the fault.

        Raises:
            SystemExit: the table no longer fits the file.
        """
        self._healthy = (self.root / mutant.file).read_text()
        if self._healthy.count(mutant.old) != 1:
            sys.exit(f"{mutant.file} must have this once: {mutant.old!r}")
        self._write(mutant, self._healthy.replace(mutant.old, mutant.new))

    def heal(self, mutant: Mutant) -> None:
        """Take the fault away."""
        self._write(mutant, self._healthy)

    def _write(self, mutant: Mutant, text: str) -> None:
        path = self.root / mutant.file
        path.write_text(text)
        # Python compares a file with what it has compiled by size and whole seconds.
        shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)

    def forget(self) -> None:
        """Let all tests run again."""
        self._passed.write_text("")

    def run(self, words: list[str], *, skips: bool = True) -> str:
        """Run tests, except for those that have passed; return the first that failed, or ""."""
        self._failed.write_text("")
        shutil.copy(self._passed, self._before)
        env = {**os.environ, "PYTHONPATH": str(self.root), tiers.TIER_VARIABLE: "first",
               tiers.FAILED_VARIABLE: str(self._failed),
               tiers.PASSED_VARIABLE: str(self._passed)}  # fmt: skip
        env |= {tiers.SKIP_VARIABLE: str(self._before)} if skips else {}
        pytest = [
            sys.executable, "-m", "pytest", "-x", "-q", "--tb=short",
            "--hypothesis-profile=no-shrinking", f"--timeout={TEST_LIMIT_S}",
        ]  # fmt: skip
        with (self.root.parent / "log").open("w+") as log:
            done = subprocess.run(
                [*pytest, *words], cwd=self.root, env=env, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            log.seek(0)
            lines = log.read().strip().splitlines() or ["nothing"]
        self.why = next((line[1:].strip() for line in lines if line.startswith("E  ")), lines[-1])
        if failed := self._failed.read_text().splitlines():
            return failed[0]
        ended_well = done.returncode in (ExitCode.OK, ExitCode.NO_TESTS_COLLECTED)
        return "" if ended_well else f"pytest itself: {self.why}"


def steps(mutant: Mutant, *, only_near: bool) -> list[list[str]]:
    """Return pytest's words for each run, in the order in which they find a fault fast."""
    cheap, spread = f"{tiers.FIRST} and not cluster", ["-n", "3", "--dist", "loadgroup"]
    module, graph = near.module_of(mutant.file), grimp.build_graph(*near.PACKAGES, cache_dir=None)
    users = graph.find_modules_that_directly_import(module) if module in graph.modules else ()
    room = f"tests/unit/{near.room_of(module).replace('.', '/')}"
    places = [
        _of_no_cluster(near.naming(REPOSITORY, [module])),
        [name for name in (room, f"{room}.py") if (REPOSITORY / name).exists()],
        *([name] for name in mutant.near),
        _of_no_cluster(near.naming(REPOSITORY, users)),
    ]
    found = [["-m", cheap, "-p", "no:xdist", *names] for names in places if names]
    rest = [["-m", cheap, *spread], ["-m", f"{tiers.FIRST} and cluster", "-p", "no:xdist"]]
    return found if only_near else [*found, *rest]


def _of_no_cluster(names: list[str]) -> list[str]:
    return [name for name in names if not name.startswith(("tests/cluster", "tests/web"))]


def try_one(copy: Copy, number: int, *, only_near: bool) -> dict[str, object]:
    """Plant a fault, and run tests until one fails because of it."""
    mutant, began = MUTANTS[number - 1], time.monotonic()
    print(f"{number:2}. {mutant.area}: {mutant.name}", flush=True)
    copy.forget()
    copy.plant(mutant)
    killed_by = ""
    for words in steps(mutant, only_near=only_near):
        while (
            killed_by := copy.run([*words, *(f"--deselect={name}" for name in copy.guiltless)])
        ) and not is_killer(copy, mutant, killed_by, words):
            copy.guiltless.append(killed_by.partition("[")[0])
        if killed_by:
            break
    copy.heal(mutant)
    took_s = round(time.monotonic() - began)
    print(f"    killed by {killed_by} after {took_s} s ({copy.why[:120]})" if killed_by else
          f"    SURVIVED {'the tests near to it' if only_near else 'all tests'}, {took_s} s",
          flush=True)  # fmt: skip
    return {
        "tree": copy.digest, "number": number, "area": mutant.area, "name": mutant.name,
        "killed_by": killed_by, "why": copy.why if killed_by else "", "near": only_near,
        "took_s": took_s,
    }  # fmt: skip


def is_killer(copy: Copy, mutant: Mutant, test: str, words: list[str]) -> bool:
    """Return whether a test that failed fails again, and passes without the fault.

    If pytest itself failed, such as by an import, its words count instead of a test.
    """
    by_itself, why = "::" not in test, copy.why
    again = words if by_itself else ["-p", "no:xdist", test]
    if not copy.run(again, skips=by_itself) and not by_itself:
        return False  # the machine is busy, or the test is unsteady
    copy.heal(mutant)
    failed = copy.run(again, skips=by_itself)
    copy.plant(mutant)
    if failed and by_itself:
        sys.exit(f"pytest fails without any fault: {copy.why}")
    copy.why = why
    return not failed


def keep(row: dict[str, object]) -> None:
    """Write down what came out."""
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows(tree: str) -> dict[int, dict[str, object]]:
    """Return what came out on this tree, by number; the newest counts."""
    lines = ROWS.read_text().splitlines() if ROWS.exists() else []
    known = [row for row in map(json.loads, lines) if row["tree"] == tree]
    return {row["number"]: row for row in known}


def show(known: dict[int, dict[str, object]]) -> None:
    """Print each fault and a table by area."""
    for number, mutant in enumerate(MUTANTS, 1):
        row = known.get(number)
        what = "not tried" if row is None else row["killed_by"] or "SURVIVED"
        print(f"{number:2}. {mutant.name}: {what}")
    for area in AREAS:
        found = [bool(row["killed_by"]) for row in known.values() if row["area"] == area]
        print(f"{area:24} {sum(found):2} of {len(found):2} killed")
    killed = sum(bool(row["killed_by"]) for row in known.values())
    share = killed / len(known) if known else 0.0
    print(f"{killed} of {len(known)} killed: {share:.0%}")


if __name__ == "__main__":
    main()
