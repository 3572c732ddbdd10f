"""Folders in shared memory of attempts on one node."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest

from dlctl import contract
from learner.system.segments import (
    remove_earlier,
    remove_segment_folder,
    segment_folder,
    server_folder,
)
from psrv.shard.private_folder import make_private_folder


@pytest.fixture
def training_id() -> Iterator[str]:
    found = f"test-{secrets.token_hex(8)}"
    yield found
    for folder in segment_folder(found, 1).parent.glob(segment_folder(found, "*").name):
        shutil.rmtree(folder)


def test_a_folder_of_another_user_does_not_stop_the_shards(training_id: str, tmp_path) -> None:
    """Anybody may make the folder with the attempt's name; only its servers know the other."""
    path = tmp_path / contract.server_secret(1)
    path.parent.mkdir(parents=True)
    path.write_text(secrets.token_hex(32))
    segment_folder(training_id, 1).mkdir(mode=0o777)
    segment_folder(training_id, 1).chmod(0o777)
    folder = server_folder(training_id, 1, tmp_path)
    make_private_folder(folder)
    assert folder == server_folder(training_id, 1, tmp_path)
    assert folder.name.startswith(f"{segment_folder(training_id, 1).name}-")
    assert path.read_text()[:8] not in folder.name
    path.write_text(secrets.token_hex(32))
    assert server_folder(training_id, 1, tmp_path) != folder
    remove_segment_folder(training_id, 1)
    assert not folder.exists()


def test_a_late_attempt_leaves_a_later_one_alone(training_id: str) -> None:
    for attempt in (2, 9, 10, 11):
        segment_folder(training_id, attempt).mkdir()
    (shards := segment_folder(training_id, "9-0a1b")).mkdir()
    remove_earlier(training_id, 10)
    assert [attempt for attempt in range(12) if segment_folder(training_id, attempt).exists()] == [
        10, 11,
    ]  # fmt: skip
    assert not shards.exists()
