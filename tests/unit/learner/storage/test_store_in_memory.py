"""What is brought from and to a store of objects, which is a dictionary here."""

import hashlib
import json
import shutil
import zlib

import pytest

from dlctl.contract.stores import ListedObject, Listing
from learner.errors import SiteFault
from learner.storage import fetch
from learner.storage.cache import Cache
from learner.storage.claim import Claim, claimed
from learner.storage.listing import digest, list_container
from learner.storage.objects import Place
from learner.storage.objects.base import Digests
from learner.storage.progress import Progress
from learner.storage.upload import Upload, save

CHUNK = 8


class Memory:
    """A store that notes what was written, in order."""

    def __init__(self, contents):
        self.contents, self.written, self.read_from = dict(contents), [], []

    def list(self):
        return iter(map(self.stat, self.contents))

    def stat(self, key):
        content = self.contents.get(key)
        return None if content is None else ListedObject(key, len(content), "opaque")

    def read(self, item, start, into):
        self.read_from.append(start)
        into.put(self.contents[item.key][start : start + len(into.room)])

    def write(self, key, source, _moved):
        self.contents[key] = content = source.read_bytes()
        self.written.append(key.rpartition("/")[2])
        return Digests(len(content), hashlib.sha256(content).hexdigest(), ())


def saved(tmp_path, store, attempt):
    source = tmp_path / "results"
    source.mkdir(exist_ok=True)
    (source / "a").write_text(f"of attempt {attempt}")
    upload = Upload(source, "t-1/", "t-1", attempt, "COMPLETED")
    return save(upload, store, Progress(None, "stores"), lambda: None)


def test_no_marker_names_files_that_are_not_there_yet(tmp_path):
    store = Memory({})
    saved(tmp_path, store, 1)
    assert store.written == ["a", "_complete.json"]
    store.written.clear()
    saved(tmp_path, store, 2)
    assert store.written == ["_complete.json", "a", "_complete.json"]
    assert json.loads(store.contents["t-1/_complete.json"])["attempt"] == 2


def test_a_late_load_leaves_the_folder_that_its_successor_made(tmp_path, monkeypatch):
    """It was stopped just before it gave its own folder the name."""
    item = ListedObject("k", 3, "opaque")
    listing = Listing("http://s3", "bucket", "", 0.0, [item])
    cache = Cache(tmp_path, Place("s3", "bucket"))
    owned, made = Claim.still_owned, []

    def succeed(claim):
        for new in (cache.folder / "trees").glob(".new.*"):
            if (new / "k").exists() and not list(new.parent.glob("[!.]*")):
                tree = shutil.copytree(new, new.parent / digest(listing))
                made.append(tree.stat().st_ino)
                shutil.rmtree(new)
        return owned(claim)

    monkeypatch.setattr(Claim, "still_owned", succeed)
    tree, _ = cache.fill(listing, lambda: Memory({"k": b"abc"}), Progress(None, "stores"))
    assert (tree / "k").read_bytes() == b"abc"
    assert made == [tree.stat().st_ino]


def test_a_cache_without_room_says_what_is_needed(tmp_path):
    place, store = Place("mine", "bucket"), Memory({"a": b"x" * 5000})
    listing = list_container(store, place)
    cache = Cache(tmp_path, place, free=lambda _: 4000)
    with pytest.raises(SiteFault, match="needs 5.0 kB in .*, where 4.0 kB are free: No space left"):
        cache.fill(listing, lambda: store, Progress(None, ""))
    cache = Cache(tmp_path, place, free=lambda _: 5000)
    tree, _ = cache.fill(listing, lambda: store, Progress(None, ""))
    assert (tree / "a").read_bytes() == b"x" * 5000


def test_a_chunk_that_a_killed_fetcher_left_damaged_is_fetched_again(tmp_path, monkeypatch):
    """The etag can't tell: the sum beside the chunk does."""
    monkeypatch.setattr(fetch, "CHUNK_BYTES", CHUNK)
    content = bytes(range(3 * CHUNK))
    store, item = Memory({"k": content}), ListedObject("k", len(content), "opaque")
    file = tmp_path / "content"
    file.with_name("content.dead.part").write_bytes(content[:CHUNK] + b"never on the disk"[:CHUNK])
    sums = [zlib.crc32(content[at : at + CHUNK]) for at in (0, CHUNK)]
    file.with_name("content.dead.chunks").write_text(f"0 {sums[0]}\n1 {sums[1]}\n")
    with claimed(tmp_path / "claim", lambda _: None) as claim:
        fetch.Fetcher(store, claim, lambda _: None).fetch([fetch.Wanted(item, file)])
    assert file.read_bytes() == content
    assert sorted(store.read_from) == [CHUNK, 2 * CHUNK]
