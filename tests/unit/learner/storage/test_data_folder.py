"""`data` in the job directory: links to what was loaded, and a program's own `../data`."""

from __future__ import annotations

import pytest
from node_job import Job

from dlctl.contract import DataStore
from learner import storage
from learner.errors import UserFault


@pytest.fixture
def load(tmp_path):
    """Load a job's data from stores of these names, as each attempt does."""

    def load(*names: str) -> None:
        stores = []
        for name in names:
            (tmp_path / "mounted" / name).mkdir(parents=True, exist_ok=True)
            stores.append(
                DataStore(name, "mount_volume", path=str(tmp_path), training_data=f"mounted/{name}")
            )
        job.write_plan(data_stores=stores)
        storage.load(job.plan, job.dir, lambda: None)

    job = Job(tmp_path / "site", "true")
    load.data = job.dir / "data"
    return load


def test_what_a_program_has_downloaded_there_is_there_for_the_next_attempt(load):
    """`datasets.MNIST("../data", download=True)`: no halted training could be resumed."""
    load()
    (load.data / "MNIST").mkdir()
    (load.data / "MNIST/raw").write_text("images")
    (load.data / "link").symlink_to("MNIST")
    load()
    assert (load.data / "link/raw").read_text() == "images"


def test_beside_the_links_of_several_stores_too(load, tmp_path):
    load("a", "b")
    (load.data / "own").write_text("1")
    load("a", "b")
    assert (load.data / "own").read_text() == "1"
    assert (load.data / "b").readlink() == tmp_path / "mounted/b"


def test_a_programs_files_never_go_for_a_link(load):
    load()
    (load.data / "own").write_text("1")
    with pytest.raises(UserFault, match="holds files of the program"):
        load("a")
    assert (load.data / "own").read_text() == "1"


def test_an_earlier_attempts_links_are_replaced_and_what_they_lead_to_stays(load, tmp_path):
    load("a")
    (load.data / "x").write_text("in the store")
    load("a")
    assert load.data.readlink() == tmp_path / "mounted/a"
    load("a", "b")
    assert sorted(path.name for path in load.data.iterdir()) == ["a", "b"]
    assert (load.data / "a/x").read_text() == "in the store"
