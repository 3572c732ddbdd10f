"""What leaves the cache, and what stays: folders of real data, made by the program that loads."""

import os
import time

import pytest
from served_folder import served_folder
from store_program import StoreProgram

from dlctl import contract
from learner.storage import eviction
from learner.storage.claim import claimed
from learner.supervisor.site_data import cache


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    made.folder.mkdir()
    with served_folder(made.folder) as made.url:
        yield made


class Site:
    """A site's root with trainings that have loaded data from a web server's folders."""

    def __init__(self, folder):
        self.folder, self.root = folder / "web", folder / "site"
        self.count = 0

    def train(self, name, age_s=0, program=None, **env):
        """Load the container `name`; return the training's job directory."""
        data = self.folder / name
        if not data.exists():
            data.mkdir()
            (data / "a").write_bytes(name[:1].encode() * 100_000)
        if program is None:
            self.count += 1
            program = StoreProgram(self.root / f"jobs/t-{self.count}", "http", "", _Nobody, name)
            program.job = program.folder
            mine = program.job / "stores/0"
            mine.mkdir(parents=True)
            program.env |= {
                "STORE_URL": self.url, "STORE_CACHE": str(self.root / "cache"),
                "STORE_DIR": str(mine), "STORE_DATA": str(mine / "data"),
                "STORE_PROGRESS": str(mine / "progress"),
            }  # fmt: skip
        code, told = program.run("load", **env)
        assert code == 0, told
        tree = (program.job / "stores/0/data").resolve()
        os.utime(tree, (time.time() - age_s,) * 2)
        return program

    def end(self, program):
        """End a training: its newest attempt has a verdict."""
        for number in (1, 2):
            file = program.job / contract.verdict_file(number)
            file.parent.mkdir(parents=True)
        file.write_text("{}")

    def names(self):
        """Return the last words of the containers in the cache, the longest unused first."""
        return [each.data.container.rpartition("/")[2] for each in eviction.held(self.root)]


class _Nobody:
    user = password = ""


def test_the_longest_unused_data_goes_first_and_its_bytes_with_it(site):
    for name, age_s in (("new", 100), ("old", 300), ("middle", 200)):
        site.end(site.train(name, age_s))
    assert site.names() == ["old", "middle", "new"]
    answer = cache(site.root, "250000")
    assert [each["container"].rpartition("/")[2] for each in answer["removed"]] == ["old"]
    assert (site.names(), answer["total_bytes"]) == (["middle", "new"], 200_000)
    assert len(list((site.root / "cache").glob("*/objects/*/*"))) == 2


def test_what_a_training_uses_stays_and_is_named(site):
    using = site.train("used", 500)
    site.end(site.train("free", 100))
    answer = cache(site.root, "0")
    assert site.names() == ["used"]
    assert answer["held"][0]["users"] == ["t-1"]
    assert (using.data / "used/a").read_bytes() == b"u" * 100_000
    site.end(using)
    assert cache(site.root, "0")["total_bytes"] == 0


def test_a_training_that_finds_its_data_gone_loads_it_again(site):
    first = site.train("again", 100)
    site.end(first)
    cache(site.root, "0")
    site.train("again", program=first)
    assert (first.data / "again/a").read_bytes() == b"a" * 100_000


def test_what_was_used_a_moment_ago_stays(site):
    """Another node may not see yet who uses it."""
    site.end(site.train("fresh"))
    site.train("new", STORE_CACHE_LIMIT="1")
    assert set(site.names()) == {"fresh", "new"}
    cache(site.root, "0")
    assert site.names() == ["new"], "a person has asked"


def test_a_container_into_which_somebody_fetches_is_left_alone(site):
    site.end(site.train("busy", 100))
    (container,) = (site.root / "cache").iterdir()
    with claimed(container / "claim", lambda _: None):
        cache(site.root, "0")
    assert site.names() == ["busy"]


def test_a_load_that_passes_the_limit_makes_room_first(site):
    site.end(site.train("old", 300))
    site.end(site.train("less", 200))
    site.train("new", STORE_CACHE_LIMIT="250000")
    assert site.names() == ["less", "new"]
    site.train("more", STORE_CACHE_LIMIT="1000")
    assert site.names() == ["new", "more"], "what is in use stays, whatever the limit is"


def test_contents_that_another_listing_has_stay(site):
    first = site.train("both", 300)
    site.end(first)
    (site.folder / "both/b").write_bytes(b"2" * 1000)
    second = site.train("both", 200)
    assert len(eviction.held(site.root)) == 2
    cache(site.root, "0")
    assert (second.data / "both/a").read_bytes() == b"b" * 100_000
    assert sorted(p.name for p in (second.data / "both").iterdir()) == ["a", "b"]
    assert len(eviction.held(site.root)) == 1
