"""Lists the cache of a site, and removes what nobody has used for the longest time.

Data is in use while a training leads to it whose newest attempt has no verdict. Only the holder of
a container's claim removes something there: nobody fetches into it meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from dlctl import contract
from dlctl.contract.stores import CACHE, CachedData
from learner.storage.claim import claim_if_free

JUST_USED_S = 60.0
"""Other nodes may see a new link, or a folder's time, only after a while."""


@dataclass(frozen=True)
class Held:
    """One folder of data in the cache."""

    tree: Path
    data: CachedData

    @property
    def container(self) -> Path:
        """The part of the cache that belongs to its container."""
        return self.tree.parent.parent


def held(root: Path) -> list[Held]:
    """Return what the cache below a site's root holds, the longest unused first."""
    users, found = _users(root), []
    for tree in (root / CACHE).glob("*/trees/[!.]*"):
        with contextlib.suppress(OSError, ValueError):  # removed meanwhile
            place = json.loads((tree.parent.parent / "place.json").read_text())
            sizes = [path.stat().st_size for path in _files(tree)]
            data = CachedData(
                place["endpoint"], place["container"], len(sizes), sum(sizes),
                tree.stat().st_mtime, sorted(users.get(tree.resolve(), ())),
            )  # fmt: skip
            found.append(Held(tree, data))
    return sorted(found, key=lambda each: each.data.used_at)


def total_bytes(root: Path) -> int:
    """Return how much the cache takes: a content that several folders share counts once."""
    total = 0
    for path in (root / CACHE).glob("*/objects/*/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_blocks * 512 if path.suffix else path.stat().st_size
    return total


def evict(
    root: Path, wanted_bytes: float, own: Path | None = None, spared: Set[Path] = frozenset(),
    unused_s: float = JUST_USED_S,
) -> list[CachedData]:  # fmt: skip
    """Remove data that nobody uses, the longest unused first, until so much more is free.

    Args:
        own: The container whose claim the caller has.
        spared: Contents of that container that the caller is about to use.
        unused_s: For how long nobody may have used what is removed.

    Returns:
        What was removed.
    """
    gone: list[CachedData] = []
    for each in held(root):
        if wanted_bytes <= 0:
            return gone
        if each.data.users or time.time() - each.data.used_at < unused_s:
            continue
        with _claimed(each.container, own) as is_ours:
            if is_ours and _remove(root, each):
                wanted_bytes -= _sweep(each.container, spared)
                gone.append(each.data)
    for container in (root / CACHE).glob("*"):  # what interrupted loads have left
        if wanted_bytes > 0 and container != own and (container / "objects").is_dir():
            with _claimed(container, own) as is_ours:
                wanted_bytes -= _sweep(container, spared) if is_ours else 0
    return gone


@contextlib.contextmanager
def _claimed(container: Path, own: Path | None) -> Iterator[bool]:
    if container == own:
        yield True
        return
    with claim_if_free(container / "claim") as claim:
        yield claim is not None


def _remove(root: Path, each: Held) -> bool:
    """Remove a folder, unless a load has found it meanwhile; return whether it is gone."""
    aside = each.tree.with_name(f".new.old.{each.tree.name}")
    try:
        each.tree.rename(aside)  # from now on no load finds it
        if aside.stat().st_mtime != each.data.used_at or each.tree.resolve() in _users(root):
            aside.rename(each.tree)
            return False
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _sweep(container: Path, spared: Set[Path]) -> int:
    """Remove contents that no folder has; return their bytes."""
    kept = set()
    for tree in (container / "trees").glob("*"):
        kept |= {(found.st_dev, found.st_ino) for found in (path.stat() for path in _files(tree))}
    freed_bytes = 0
    for path in container.glob("objects/*/*"):
        whole = path.with_name(path.name.partition(".")[0])
        with contextlib.suppress(FileNotFoundError):  # a late fetcher's own file
            found = path.stat()
            if (found.st_dev, found.st_ino) not in kept and whole not in spared:
                path.unlink()
                freed_bytes += found.st_size
    return freed_bytes


def _files(tree: Path) -> Iterator[Path]:
    return (path for path in tree.rglob("*") if path.is_file())


def _users(root: Path) -> dict[Path, set[str]]:
    """Return the trainings that have not ended, by the folder of the cache that they use."""
    found: dict[Path, set[str]] = {}
    for link in (root / "jobs").glob("*/stores/*/data"):
        job = link.parents[2]
        numbers = [int(path.name) for path in job.glob("attempts/*") if path.name.isdecimal()]
        if not (job / contract.verdict_file(max(numbers, default=0))).exists():
            with contextlib.suppress(OSError):
                found.setdefault(link.resolve(), set()).add(job.name)
    return found
