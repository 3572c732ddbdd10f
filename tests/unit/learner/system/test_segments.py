"""Folders in shared memory of attempts on one node."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator

import pytest

from learner.system.segments import remove_earlier, segment_folder


@pytest.fixture
def training_id() -> Iterator[str]:
    found = f"test-{secrets.token_hex(8)}"
    yield found
    for folder in segment_folder(found, 1).parent.glob(segment_folder(found, "*").name):
        shutil.rmtree(folder)


def test_a_late_attempt_leaves_a_later_one_alone(training_id: str) -> None:
    for attempt in (2, 9, 10, 11):
        segment_folder(training_id, attempt).mkdir()
    remove_earlier(training_id, 10)
    assert [attempt for attempt in range(12) if segment_folder(training_id, attempt).exists()] == [
        10, 11,
    ]  # fmt: skip
