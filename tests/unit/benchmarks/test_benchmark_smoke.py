"""`python -m benchmarks --smoke` judges groups; here programs stand for groups."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY))
from benchmarks import smoke

SAYS_ALL = """
import json
print(json.dumps({"what": "speed", "peers": {"scp": 1.0}}), flush=True)
print(json.dumps({"left_out": ["zookeeper"], "why": "it is not installed"}), flush=True)
"""


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a program instead of a group; return whether all is well, and what was printed."""
    known = {"speed": {"scp", "zookeeper_2"}, "zookeeper_start": set[str]()}
    monkeypatch.setattr(smoke.page, "known", lambda group: known)

    def ran(text: str) -> tuple[bool, str]:
        monkeypatch.setattr(smoke, "program", lambda group: [sys.executable, "-c", text])
        return smoke.run(["group"]), capsys.readouterr().out

    return ran


def test_a_group_is_well_if_what_it_lacks_was_left_out_by_name(run):
    well, said = run(SAYS_ALL)
    assert well, said
    assert "left out: zookeeper (it is not installed)" in said
    assert said.endswith("all ok\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SAYS_ALL.replace("speed", "size"), "missing: speed"),
        (SAYS_ALL.replace("scp", "rsync"), "missing: scp"),
        (SAYS_ALL + "print('12 tasks')", "it printed what is no JSON"),
        (SAYS_ALL + "raise ValueError('no such peer')", "ValueError: no such peer"),
    ],
)
def test_a_group_fails_and_the_reason_is_named(run, text, problem):
    well, said = run(text)
    assert not well
    assert problem in said
    assert said.endswith("failed: group\n")


def test_a_group_whose_time_is_up_is_ended_with_its_processes(run, monkeypatch, tmp_path):
    monkeypatch.setattr(smoke, "_LIMIT_S", 1.0)
    monkeypatch.setattr(smoke, "_LEFT_S", 0.5)
    program = f"""
import pathlib, subprocess
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
child.wait()
"""
    well, said = run(program)
    assert not well
    assert "it took more than 1 s" in said
    pid = (tmp_path / "pid").read_text()
    assert f"it left process {pid}: sleep 300" in said
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
