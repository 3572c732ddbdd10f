"""Find the files that a training has made so far. Standard library only.

A program may save into RESULT_DIR and CHECKPOINT_DIR, or into its own folder, the copy of the code
that it runs in. There a file that was not sent, or is not as it was sent, is the program's output.
So is what it has put beside that folder: into `../data`, LOG_DIR, JOB_STATE_DIR.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import translate
from functools import lru_cache
from pathlib import Path

from dlctl.contract import names
from dlctl.contract.ground.amounts import counted, format_bytes
from dlctl.contract.ground.safe_text import printable, without_prefix
from dlctl.contract.names import CACHES
from dlctl.contract.records import Amount, Made, OutputPlace
from dlctl.contract.sent_files import SENT_INDEX, SentFile, changed_files, parse_index

BESIDE = "../"
"""Begins the path of output beside the program's folder."""
_OURS = (".dlctl-*", ".nfs*")
_MOST_PLACES = 10
_PATIENCE_S = 5.0
"""How long the end of an attempt may take to look: a job at its time limit has little left."""


@lru_cache
def _matcher(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(translate(each.strip("/")) for each in patterns))


def is_cache(path: str, caches: Sequence[str]) -> bool:
    """Return whether a path is, or lies in, what one of the patterns names."""
    match = _matcher((*caches, *_OURS)).match
    parts = path.split("/")
    above = ("/".join(parts[:n]) for n in range(2, len(parts) + 1))
    return any(map(match, parts)) or any(map(match, above))


def not_as_sent(
    sizes: Mapping[str, int], sent: Iterable[SentFile]
) -> tuple[list[str], list[SentFile]]:
    """Return the files that are output, and those of which only the content can tell.

    Args:
        sizes: Of the files in the program's folder that are no caches, by path.
        sent: What was sent.
    """
    index = {file.path: file for file in sent if file.kind != "l"}
    as_large = {path for path, size_bytes in sizes.items()
                if path in index and index[path].size_bytes == size_bytes}  # fmt: skip
    return [path for path in sizes if path not in as_large], [index[path] for path in as_large]


def output_places(sizes: Mapping[str, int]) -> list[OutputPlace]:
    """Return where output lies: what can't be read, then files and folders at the top by size.

    Args:
        sizes: Of files, by path; a path that ends with `/` is a folder that can't be read.
    """
    found: dict[str, list[int]] = {}
    closed = [OutputPlace(path, 0, 0) for path in sorted(sizes) if path.endswith("/")]
    for path, size_bytes in sizes.items():
        if path.endswith("/"):
            continue
        beside = BESIDE if path.startswith(BESIDE) else ""
        top, slash, _ = without_prefix(path, beside).partition("/")
        found.setdefault(beside + top + slash, []).append(size_bytes)
    places = [OutputPlace(top, len(each), sum(each)) for top, each in found.items()]
    places = [*closed, *sorted(places, key=lambda place: (-place.size_bytes, place.path))]
    rest = places[_MOST_PLACES:]
    more = OutputPlace("", sum(p.files for p in rest), sum(p.size_bytes for p in rest))
    return [*places[:_MOST_PLACES], *([more] if rest else [])]


def tell_output(places: Sequence[OutputPlace]) -> str:
    """Return `out/: 14 files, 8.0 MB; model.pt: 1.0 MB; not in RESULT_DIR`, or nothing."""
    parts = [
        f"{printable(place.path) or 'more'}: can't be read" if not place.files else
        f"{printable(place.path) or 'more'}: {format_bytes(place.size_bytes)}"
        if place.files == 1 and not place.path.endswith("/") else
        f"{printable(place.path) or 'more'}: {counted(place.files, 'file')}, "
        f"{format_bytes(place.size_bytes)}"
        for place in places
    ]  # fmt: skip
    elsewhere = ["not in RESULT_DIR"] if any(place.files for place in places) else []
    return "; ".join([*parts, *elsewhere])


def own_output(
    job_dir: Path, caches: Sequence[str] = CACHES, until: float = float("inf")
) -> dict[str, int]:
    """Return the sizes of the files that a program has written into its own folder, by path.

    Reads only files that are as large as they were sent and were touched since the first attempt
    began: their ctime tells, as a program may set the mtime. A link that dlctl has made or removed
    since then changes it, too, and costs one look into the file.

    Args:
        until: The time of `time.monotonic` at which to give up.

    Raises:
        TimeoutError
        OSError
    """
    found = _own_output(job_dir, caches, until)
    return {path: size_bytes for path, size_bytes in found.items() if not path.endswith("/")}


def _own_output(job_dir: Path, caches: Sequence[str], until: float) -> dict[str, int]:
    """Return the program's output and, with a `/` at the end, the folders that can't be read."""
    code, since = job_dir / names.CODE, 0.0
    with suppress(FileNotFoundError):
        since = (job_dir / names.claim(1)).stat().st_mtime
    files = dict(_files(code, until, caches))
    closed = dict.fromkeys((path or "./" for path, status in files.items() if status is None), 0)
    times = {path: max(s.st_mtime, s.st_ctime) for path, s in files.items() if s}
    sizes = {path: status.st_size for path, status in files.items() if status}
    sent: list[SentFile] = []
    with suppress(FileNotFoundError, ValueError):
        sent = parse_index((code / SENT_INDEX).read_bytes())
    found, as_large = not_as_sent(sizes, sent)
    for file in as_large:
        _check(until)
        if times[file.path] > since:
            found += changed_files(code, [file])
    return {**{path: sizes[path] for path in sorted(found)}, **closed}


def look_at_made(job_dir: Path, caches: Sequence[str] = CACHES) -> Made | None:
    """Return what a training has made; None if the file system takes too long to tell."""
    until = time.monotonic() + _PATIENCE_S
    try:
        output = _own_output(job_dir, caches, until)
        amounts: list[Amount] = []
        for folder in (names.RESULTS, names.CHECKPOINTS):
            files = dict(_files(job_dir / folder, until))
            sizes = [status.st_size for status in files.values() if status]
            amounts.append(Amount(len(sizes), sum(sizes)))
            output.update((f"{BESIDE}{folder}/{path}", 0) for path in files if files[path] is None)
        results, checkpoints = amounts
        for path, status in _files(job_dir, until, caches, names.DLCTLS):
            output[BESIDE + path] = status.st_size if status else 0
        return Made(results, checkpoints, output_places(output))
    except OSError:
        return None


def _files(
    root: Path, until: float, caches: Sequence[str] = (), others: Sequence[str] = ()
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield the regular files below a folder; what vanishes meanwhile is left out.

    A folder that can't be read is a path that ends with `/` (the first is empty), and None.

    Args:
        others: What at the top is not looked at.
    """
    match = _matcher((*caches, *_OURS)).match
    waiting = [""]
    while waiting:
        above = waiting.pop()
        try:
            with os.scandir(root / above) as entries:
                for entry in entries:
                    _check(until)
                    path = above + entry.name
                    if match(entry.name) or match(path) or (not above and entry.name in others):
                        continue
                    with suppress(FileNotFoundError):
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(f"{path}/")
                        elif entry.is_file(follow_symlinks=False):
                            yield path, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            pass
        except PermissionError:
            yield above, None


def _check(until: float) -> None:
    if time.monotonic() > until:
        raise TimeoutError
