from collections.abc import Iterator
from pathlib import Path

import pytest
from search_processes import Search


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    (tmp_path / "job").mkdir()
    made = Search(tmp_path / "job")
    try:
        yield made
    finally:
        made.stop()
