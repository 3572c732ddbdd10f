"""Trainings whose data comes from a real Swift, and whose results go there: the main road."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from trainings import submit, wait_for_state

from dlctl import contract
from dlctl.contract.stores import Listing, Stored, listing_file

DIGITS = Path(__file__).resolve().parents[2] / "examples/digits"
PASSWORD = "correct-horse-battery"


def listing_1(swift, kind="softlayer_objectstore", **connection):
    """Return Listing 1 of the paper, with the credentials by reference."""
    return {
        "name": "my-mnist-model", "version": "1.0", "Learners": 1, "memory": "1024MiB",
        "time": "10m",
        "data_stores": [{
            "id": "softlayer-object-storage", "type": kind,
            "training_data": {"container": "my_training_data"},
            "training_results": {"container": "my_training_results"},
            "connection": {
                "auth_url": swift.auth_url, "user_name": {"from_env": "STORE_USER"},
                "password": {"from_env": "STORE_PASS"}, **connection,
            },
        }],
        "framework": {"name": "pytorch", "job": "train.py", "arguments": {"lr": 0.002}},
        "training": {"epochs": 2, "batch_size": 64},
    }  # fmt: skip


@pytest.fixture
def digits(tmp_path, swift_for):
    """Swift with the digits in a container, and a folder whose program reads DATA_DIR."""
    folder = tmp_path / "mnist"
    shutil.copytree(DIGITS, folder, ignore=shutil.ignore_patterns("data"))
    files = {path.name: path.read_bytes() for path in (DIGITS / "data").iterdir()}
    swift_for.container("my_training_data", files)
    swift_for.container("my_training_results", {})
    return folder, files


def test_listing_1_trains_on_the_data_of_a_real_swift_and_stores_its_results_there(
    dlctl, site, digits, swift_for, wait_until
):
    folder, files = digits
    (folder / "manifest.yml").write_text(json.dumps(listing_1(swift_for)))
    secret = {"STORE_USER": swift_for.user, "STORE_PASS": swift_for.password}
    training_id = submit(dlctl, site, folder, env=secret)
    wait_for_state(dlctl, wait_until, training_id, "COMPLETED")
    job_dir = site.job_dir(training_id)
    listing = contract.read_record(Listing, job_dir / listing_file(0))
    assert {item.key: item.size_bytes for item in listing.objects} == {
        name: len(content) for name, content in files.items()
    }
    stored = contract.from_json(
        Stored, swift_for.get(f"my_training_results/{training_id}/_complete.json")
    )
    assert (stored.state, stored.attempt) == ("COMPLETED", 1)
    names = {item.name for item in stored.files}
    assert {"model.pt", "learner-1/training-log.txt", "_submitted_code/model.zip"} <= names
    own = (job_dir / "results/model.pt").read_bytes()
    assert swift_for.get(f"my_training_results/{training_id}/model.pt") == own
    there = {name for name in swift_for.names("my_training_results") if training_id in name}
    assert there == {f"{training_id}/{name}" for name in [*names, "_complete.json"]}
    held = [p for p in job_dir.rglob("*") if p.is_file() and PASSWORD.encode() in p.read_bytes()]
    assert held == []
