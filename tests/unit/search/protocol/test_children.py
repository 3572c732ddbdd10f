"""A process of the hub that dies is started again, later each time, unless its end is final."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from search.protocol import children
from search.protocol.children import FIRST_DELAY_S, Child

Wait = Callable[..., Any]
PROGRAM = """
import sys, time
print("says", sys.argv[1], flush=True)
if sys.argv[1] == "stays":
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "ends_with.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "ends_with"


def test_what_dies_is_started_again_until_its_end_is_final(
    program, tmp_path, wait_until, monkeypatch, capsys
):
    monkeypatch.setattr(children, "LONGEST_DELAY_S", 1.5 * FIRST_DELAY_S)
    child = Child("broker", [program, "3"], tmp_path, frozenset({4}))
    wait_until(lambda: child.look() is not None or child.starts == 2)
    told = capsys.readouterr().err
    assert "dlctl: the broker ended with exit code 3 after" in told
    assert f"it is started again in {FIRST_DELAY_S:.1f} s" in told
    assert child.delay_s == 1.5 * FIRST_DELAY_S, "later the next time"
    child.arguments[-1] = "4"
    assert wait_until(lambda: child.look()) == 4
    child.end(60)
    assert (child.starts, (tmp_path / "broker.log").read_text()) == (3, "says 3\nsays 3\nsays 4\n")


def test_what_lives_is_left_alone_and_ended(program, tmp_path, wait_until):
    child = Child("model", [program, "stays"], tmp_path)
    child.look()
    wait_until(lambda: (tmp_path / "model.log").read_text())
    assert child.look() is None and child.process is not None
    child.end(60)
    assert (child.process.returncode, child.starts) == (-15, 1)
