"""The cache of a site: each object's content once, whichever training has fetched it.

    <root>/cache/<digest of endpoint and container>/
        place.json               whose data this is, for people
        claim/                   there while a process fetches: see `learner.storage.claim`
        objects/<2>/<digest>     a content, named by key and etag; whole, or not there
        trees/<digest>/          a listing's files under their names: hard links to contents

The job's data is a link to a tree. A tree appears whole, by a rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.amounts import format_bytes
from dlctl.contract.stores import ListedObject, Listing
from learner.errors import SiteFault
from learner.storage.claim import Claim, claimed
from learner.storage.eviction import evict, total_bytes
from learner.storage.fetch import Fetcher, Overtaken, Wanted
from learner.storage.listing import digest
from learner.storage.objects import ObjectStore, Place
from learner.storage.progress import Progress
from learner.system.files import put_in_place


class Cache:
    """The part of a site's cache that belongs to one container.

    Args:
        root: The cache, right below the site's root.
        limit_bytes: How much the whole cache may take, as far as nobody uses it.
    """

    def __init__(
        self, root: Path, place: Place, limit_bytes: float = math.inf,
        free: Callable[[Path], int] | None = None,
    ) -> None:  # fmt: skip
        name = f"{place.endpoint}\0{place.container}"
        self.folder = root / hashlib.sha256(name.encode()).hexdigest()[:32]
        self._place = place
        self._limit_bytes = limit_bytes
        self._free_bytes = free or (lambda path: shutil.disk_usage(path).free)

    def tree(self, listing: Listing) -> Path | None:
        """Return the folder with a listing's files, if all are there; note that it is used."""
        tree = self.folder / "trees" / digest(listing)
        if not tree.is_dir():
            return None
        for item in listing.objects:
            with contextlib.suppress(OSError):
                if (tree / item.key.removeprefix(listing.prefix)).stat().st_size == item.size_bytes:
                    continue
            return None
        try:
            os.utime(tree)
        except FileNotFoundError:  # just evicted
            return None
        except OSError:
            pass
        return tree

    def fill(
        self, listing: Listing, opened: Callable[[], ObjectStore], progress: Progress
    ) -> tuple[Path, int]:
        """Make the folder with a listing's files; fetch what the cache lacks, once.

        Args:
            opened: Returns the store; not called if the cache lacks nothing.

        Returns:
            The folder, and how many bytes came from the store.

        Raises:
            SiteFault: there is no room.
            Refused, Unavailable: the store's words.
        """
        (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        (self.folder / "trees").mkdir(exist_ok=True)
        if not (about := self.folder / "place.json").exists():
            place = {"endpoint": self._place.endpoint, "container": self._place.container}
            contract.write_whole(about, json.dumps(place) + "\n")
        while True:
            if (tree := self.tree(listing)) is not None:
                return tree, 0
            with (
                contextlib.suppress(Overtaken),
                claimed(self.folder / "claim", progress.wait) as claim,
            ):
                if (tree := self.tree(listing)) is not None:
                    return tree, 0
                fetched_bytes = self._fetch(listing, opened, claim, progress)
                try:
                    return self._make_tree(listing, claim), fetched_bytes
                except FileNotFoundError as error:  # somebody has emptied the cache meanwhile
                    raise Overtaken from error

    def _content(self, item: ListedObject) -> Path:
        name = hashlib.sha256(f"{item.key}\0{item.etag}\0{item.size_bytes}".encode()).hexdigest()
        return self.folder / "objects" / name[:2] / name[2:]

    def _fetch(
        self, listing: Listing, opened: Callable[[], ObjectStore], claim: Claim, progress: Progress
    ) -> int:  # fmt: skip
        lacking = [
            Wanted(item, self._content(item), self._place.etags_are_md5)
            for item in listing.objects
            if not _is_whole(self._content(item), item)
        ]
        for folder in {each.file.parent for each in lacking}:
            folder.mkdir(exist_ok=True)
        self._sweep({each.file.name for each in lacking})
        self._make_room(lacking, {self._content(item) for item in listing.objects})
        if not lacking:
            return 0
        progress.begin(sum(each.item.size_bytes for each in lacking))
        return Fetcher(opened(), claim, progress.add).fetch(lacking)

    def _sweep(self, lacking: set[str]) -> None:
        """Remove what killed fetchers have left and nobody can go on with."""
        for left in self.folder.glob("objects/*/*.*"):
            pair = (left.with_suffix(".part"), left.with_suffix(".chunks"))
            is_wanted = left.name.partition(".")[0] in lacking
            if not (is_wanted and all(each.exists() for each in pair)):
                left.unlink(missing_ok=True)

    def _make_room(self, lacking: list[Wanted], spared: set[Path]) -> None:
        there = (part.stat().st_blocks * 512 for part in self.folder.glob("objects/*/*.part"))
        needed = sum(each.item.size_bytes for each in lacking) - sum(there)
        free = self._free_bytes(self.folder)
        root = self.folder.parent.parent
        over: float = needed - free
        if self._limit_bytes < math.inf:
            over = max(over, total_bytes(root) + needed - self._limit_bytes)
        if over > 0 and evict(root, over, self.folder, spared):
            free = self._free_bytes(self.folder)
        if needed > free:
            raise SiteFault(
                f"The data of data store {self._place.id!r} needs {format_bytes(needed)} in "
                f"{str(self.folder.parent)!r}, where {format_bytes(free)} are free: No space left "
                "on device.",
                hint="All else there is in use, or no data of stores: remove what nobody needs, or "
                "move the site's root to a larger file system",
            )

    def _make_tree(self, listing: Listing, claim: Claim) -> Path:
        trees = self.folder / "trees"
        if not claim.still_owned():  # else it removes what its successor makes
            raise Overtaken
        for old in trees.glob(".new.*"):
            shutil.rmtree(old, ignore_errors=True)
        new, tree = trees / f".new.{claim.token}", trees / digest(listing)
        made = set()
        for item in listing.objects:
            file = new / item.key.removeprefix(listing.prefix)
            if file.parent not in made:
                file.parent.mkdir(parents=True, exist_ok=True)
                made.add(file.parent)
            _link(self._content(item), file)
        if not claim.still_owned():
            raise Overtaken
        aside = trees / f".new.old.{claim.token}"
        put_in_place(new, tree, aside)  # one that is there lacks files that somebody has removed
        contract.sync_directory(trees)
        shutil.rmtree(aside, ignore_errors=True)
        return tree


def _is_whole(file: Path, item: ListedObject) -> bool:
    with contextlib.suppress(OSError):
        return file.stat().st_size == item.size_bytes
    return False


def _link(content: Path, file: Path) -> None:
    """Give a content a second name; a file system without hard links gets a symbolic one."""
    try:
        os.link(content, file)
    except FileNotFoundError:
        raise
    except OSError:
        file.symlink_to(os.path.relpath(content, file.parent))
