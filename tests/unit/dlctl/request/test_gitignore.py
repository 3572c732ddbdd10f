"""dlctl leaves out what git ignores, however odd a pattern is."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dlctl.request.bundle import collect
from dlctl.request.gitignore import parse

NAMES = [
    "a", "b", "c", "ab", "a1", "foo", "foo.bin", "x.txt", "data", "z", "a b", "[x]", "a-b", "ä",
    "A", ".h", "!k", "#h", "b ", "a\\b", "*s", "sub",
]  # fmt: skip
PIECES = [
    "*", "**", "?", "[", "]", "[!a]", "[^b]", "[z-a]", "[a-c]", "[[:digit:]]", "[[:alpha:]]",
    "[[:bogus:]]", "[[:upper:]", "[]a]", "[a-]", "[\\]]", "\\", "\\*", "\\ ", " ", "a", "b", "c",
    "foo", ".bin", "x.txt", "data", "/", "/", "/", "z", "-", "!", "#", "ä", "\t", "1", "**/", "/**",
    "\\/", "A",
]  # fmt: skip
WHOLE = [
    "!", "\\", "[z-a]", "#c", "\\#h", "\\!k", "", "  ", "/", "//", "!/", "*", "!*", "/*", "!/*/",
    "**", "*.*", "!*.bin", "foo**/a", "/foo**", "[", "a\\ ", "b\\ ", "a\r", "foo/", "data/",
    "!data/", "\ufeffa",
]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "ignored", "kept"),
    [
        ("!\n\\\n*.bin", ["w.bin"], ["a", "!", "\\"]),
        ("[z-a]", ["z"], ["a", "m"]),
        ("[", [], ["[", "a"]),
        ("run[[:digit:]]", ["run7"], ["runs", "run:"]),
        ("[[:bogus:]]", [], ["b", "["]),
        ("[[:alpha:]", [], ["a", "a]"]),
        ("[]a]", ["]", "a"], ["b"]),
        ("a\\ \nb  ", ["a ", "b"], ["a", "b  "]),
        ("*\r\n!*.py\r\n", ["a"], ["t.py"]),
        ("/a/**/z", ["a/z", "a/b/c/z"], ["b/a/z", "az"]),
        ("**/z", ["z", "a/b/z"], ["az"]),
        ("a/b**", ["a/bc", "a/bc/d"], ["b", "x/a/bc"]),
        ("\ufeff# no\n?", ["a"], ["ä", "aa"]),
    ],
)
def test_a_pattern_means_what_it_means_to_git(lines, ignored, kept):
    def is_ignored(path: str) -> bool:
        fitting = [each for each in parse(lines.encode()) if each.matches(os.fsencode(path), False)]
        return bool(fitting) and not fitting[-1].is_allowing

    assert [path for path in ignored if not is_ignored(path)] == []
    assert [path for path in kept if is_ignored(path)] == []


@pytest.mark.skipif(shutil.which("git") is None, reason="compares with git")
@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), pytest.param(40, 400, marks=pytest.mark.slow)]
)
def test_random_trees_are_read_as_git_reads_them(tmp_path, monkeypatch, first, count):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    for seed in range(first, first + count):
        _grow(random.Random(seed), tmp_path / str(seed))
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    asked = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    told = subprocess.run(asked, cwd=tmp_path, check=True, capture_output=True).stdout
    wanted = {os.fsdecode(path) for path in told.split(b"\0") if path}
    for seed in range(first, first + count):
        sent = {f"{seed}/{file.path}" for file in collect(tmp_path / str(seed)).files}
        assert sent == {path for path in wanted if path.startswith(f"{seed}/")}, f"seed {seed}"


def _grow(choose: random.Random, folder: Path, depth: int = 0) -> None:
    """Fill a folder, and folders in it, with files and ignore files."""
    folder.mkdir()
    for name in choose.sample(NAMES, choose.randint(2, 6)):
        if depth < 3 and choose.random() < 0.4:
            _grow(choose, folder / name, depth + 1)
        else:
            (folder / name).touch()
    if choose.random() < (0.3 if depth else 0.9):
        lines = [_pattern(choose) for _ in range(choose.randint(1, 5))]
        text = choose.choice(["\n", "\n", "\r\n"]).join(lines) + choose.choice(["", "\n"])
        (folder / ".gitignore").write_bytes(text.encode())


def _pattern(choose: random.Random) -> str:
    if choose.random() < 0.3:
        return choose.choice(WHOLE)
    allowing = "!" if choose.random() < 0.25 else ""
    if choose.random() < 0.3:
        name, end = choose.choice(NAMES), choose.choice(["", "/", "*", "/*", "/**"])
        return f"{allowing}{choose.choice(['', '/'])}{name}{end}"
    return allowing + "".join(choose.choices(PIECES, k=choose.randint(1, 5)))
