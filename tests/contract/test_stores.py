"""The promises of every type of data store that the nodes read and write."""

import hashlib
import os

import pytest
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import DataStore
from dlctl.contract.stores import MOUNTED_STORES
from learner import storage
from learner.errors import UserFault
from learner.storage import Interrupted
from learner.storage.index import write_index


class Bench:
    """One store of a type with data in it, and a job directory with results."""

    def __init__(self, kind, root):
        self.kind, self.root, self.job = kind, root, root / "job"
        (root / "store/images").mkdir(parents=True)
        (root / "store/images/a.bin").write_bytes(b"data")
        (self.job / contract.RESULTS / "deep").mkdir(parents=True)
        (self.job / contract.RESULTS / "model.pt").write_bytes(b"weights" * 500_000)
        (self.job / contract.RESULTS / "deep/log").write_text("it went well")
        (self.job / contract.RESULTS / "run.sh").write_text("#!/bin/sh\n")
        (self.job / contract.RESULTS / "run.sh").chmod(0o755)
        self.ticks = 0
        self.publication = storage.Publication(1, self.tick, lambda: None)

    def store(self, **changes):
        known = {"path": str(self.root / "store"), "training_data": "images",
                 "training_results": "trained", **changes}  # fmt: skip
        return DataStore("s", self.kind, **known)

    def plan(self, *stores):
        plan = make_plan(job_dir=str(self.job))
        return contract.Plan(**{**vars(plan), "data_stores": list(stores), "training_id": "t-1"})

    def tick(self):
        self.ticks += 1

    def save(self, index=None, publication=None, **changes):
        """Store the results, as the supervisor does; return what it tells."""
        index = index or write_index(self.job)
        return storage.save(self.plan(self.store(**changes)), self.job / contract.RESULTS, index,
                            publication or self.publication)  # fmt: skip

    def stored(self):
        """Return every file that the store has of this training, with its content."""
        folder = self.root / "store/trained/t-1"
        return {str(path.relative_to(folder)): path.read_bytes()
                for path in folder.rglob("*") if path.is_file()}  # fmt: skip


@pytest.fixture(params=MOUNTED_STORES)
def bench(request, tmp_path):
    return Bench(request.param, tmp_path)


def test_a_stores_data_is_in_data_dir(bench):
    told = storage.load(bench.plan(bench.store()), bench.job, bench.tick)
    assert (bench.job / contract.DATA / "a.bin").read_bytes() == b"data"
    assert len(told) == 1 and told[0].startswith("s: ")


def test_each_of_two_stores_has_a_folder_that_a_later_attempt_replaces(bench):
    other = contract.DataStore(**{**vars(bench.store()), "id": "other"})
    for _ in range(2):
        storage.load(bench.plan(bench.store(), other), bench.job, bench.tick)
        for name in ("s", "other"):
            assert (bench.job / contract.DATA / name / "a.bin").read_bytes() == b"data"


def test_existing_data_is_no_problem_and_missing_data_is_named(bench):
    assert storage.data_problems(bench.plan(bench.store())) == []
    assert storage.data_problems(bench.plan(bench.store(training_data=None))) == []
    (problem,) = storage.data_problems(bench.plan(bench.store(training_data="gone")))
    seen, what_to_do = problem.split("\n")
    assert "gone" in seen and "'s'" in seen and what_to_do


def test_results_arrive_whole_with_their_modes(bench):
    index = write_index(bench.job)
    (told,) = bench.save(index)
    assert told.startswith("s: 3 files in ")
    found = bench.stored()
    assert set(found) == {"model.pt", "deep/log", "run.sh"}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    assert digests == {item.path: item.sha256 for item in index.files}
    assert os.access(bench.root / "store/trained/t-1/run.sh", os.X_OK)
    assert bench.ticks >= 3, "it ticks while data moves"


def test_what_a_program_has_written_into_its_own_folder_is_stored_with_the_results(bench):
    (bench.job / contract.CODE / "out").mkdir(parents=True)
    (bench.job / contract.CODE / "out/model.pt").write_bytes(b"weights")
    told = bench.save()
    assert told[1].startswith("s: 1 file in ")
    assert bench.stored()["_output/out/model.pt"] == b"weights"


def test_results_in_a_store_are_as_open_as_the_store(bench):
    """The job's own umask keeps all but the user out; who may read a store is the store's."""
    (bench.root / "store/trained").mkdir()
    (bench.root / "store/trained").chmod(0o2750)
    before = os.umask(0o077)
    try:
        bench.save()
    finally:
        os.umask(before)
    modes = {p.name: p.stat().st_mode & 0o7777 for p in (bench.root / "store/trained").rglob("*")}
    assert modes == {
        "t-1": 0o2750, "deep": 0o2750, "log": 0o640, "model.pt": 0o640, "run.sh": 0o750
    }  # fmt: skip


def test_a_store_that_takes_no_results_gets_none(bench):
    assert bench.save(training_results=None) == []


def test_an_interrupted_copy_leaves_no_part_of_a_file(bench):
    def interrupt():
        raise Interrupted

    with pytest.raises(Interrupted):
        bench.save(publication=storage.Publication(1, interrupt, lambda: None))
    assert bench.stored() == {}


def test_a_copy_that_differs_is_a_fault_that_names_the_results_folder(bench):
    index = write_index(bench.job)
    (bench.job / contract.RESULTS / "model.pt").write_bytes(b"changed")
    with pytest.raises(UserFault, match=r"'model.pt' can't be stored in data store 's'") as caught:
        bench.save(index)
    assert "dlctl fetch results" in caught.value.hint


def test_a_late_attempt_wins_against_no_successor(bench):
    """A job that was stopped while it copied, and went on after its successor had completed."""
    index, results = write_index(bench.job), bench.job / contract.RESULTS

    def late():
        raise Interrupted

    def sleep_through_the_successor():
        if not bench.stored().get("model.pt"):
            (results / "model.pt").write_bytes(b"new")
            bench.save(publication=storage.Publication(2, bench.tick, lambda: None))

    with pytest.raises(Interrupted):  # it looks before it publishes
        bench.save(index, storage.Publication(1, bench.tick, late))
    assert bench.stored() == {}
    with pytest.raises(UserFault):  # it slept between the look and the name
        bench.save(index, storage.Publication(1, bench.tick, sleep_through_the_successor))
    assert bench.stored()["model.pt"] == b"new"
