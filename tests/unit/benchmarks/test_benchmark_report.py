"""The benchmarks' own arithmetic; what they measure is no test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY))
from benchmarks import learners, smoke
from benchmarks.__main__ import PACKAGES
from benchmarks.goals import GOALS, Bound, Cost, OnTop, Speed
from benchmarks.page import PAGE, known, table, write
from benchmarks.report import Command, Result, Rounds, compare


def test_medians_of_interleaved_runs_without_the_warm_up():
    order: list[str] = []

    def timed(name: str, values: list[float]):
        left = iter(values)

        def run() -> float:
            order.append(name)
            return next(left)

        return run

    result = compare(
        "key",
        timed("ours", [99.0, 3.0, 1.0, 2.0]),
        timed("floor", [99.0, 6.0, 4.0, 5.0]),
        {"scp": timed("scp", [99.0, 9.0, 7.0, 8.0])},
        rounds=Rounds(3, 1),
    )
    assert json.loads(result.to_json()) == {
        "what": "key", "unit": "s", "ours": 2.0, "floor": 5.0, "peers": {"scp": 8.0}, "runs": 3,
    }  # fmt: skip
    rounds = [order[at : at + 3] for at in range(0, len(order), 3)]
    assert all(sorted(names) == ["floor", "ours", "scp"] for names in rounds)
    assert {names[0] for names in rounds} == {"floor", "ours", "scp"}


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_command_that_fails_is_no_measurement(tmp_path, on_terminal):
    program = "import sys; print(sys.stdout.isatty()); sys.exit(3)"
    command = Command(
        [sys.executable, "-c", program], os.environ, tmp_path, on_terminal=on_terminal
    )
    with pytest.raises(RuntimeError, match=f"(?s)exit code 3: {on_terminal}"):
        command.time_s()


def result(what: str = "key", unit: str = "s", ours: float = 2.0, floor: float = 1.0, **peers):
    return Result(what, unit, ours, floor, peers)


@pytest.mark.parametrize(
    ("goal", "measured", "text", "met"),
    [
        (Speed(2, ("gloo",)), result(gloo=4.0), "≥ 2 × `gloo`: 2.00", True),
        (Speed(2, ("gloo",)), result(gloo=3.9), "≥ 2 × `gloo`: 1.95", False),
        (
            Speed(2, ("mpi", "mpi_chunked")),
            result(mpi=9.0, mpi_chunked=3.0),
            "≥ 2 × the best of `mpi`, `mpi_chunked`: 1.50",
            False,
        ),
        (Speed(0.8), result(floor=1.6), "≥ 0.8 × floor: 0.80", True),
        (Speed(1.5), result(unit="samples/s", ours=3.0, floor=2.0), "≥ 1.5 × floor: 1.50", True),
        (
            Speed(1.5, ("a", "b")),
            result(unit="samples/s", ours=3.0, a=1.0, b=2.5),
            "≥ 1.5 × the best of `a`, `b`: 1.20",
            False,
        ),
        (Speed(2, ("absent",)), result(), "≥ 2 × `absent`: not measured", None),
        (Cost(2), result(), "≤ 2 × floor: 2.00", True),
        (Cost(0.3, "dcp_async"), result(dcp_async=4.0), "≤ 0.3 × `dcp_async`: 0.50", False),
        (Cost(0.3, "dcp_async"), result(), "≤ 0.3 × `dcp_async`: not measured", None),
        (OnTop(0.5), result(ours=1.6), "≤ floor + 0.5 s: 0.600", False),
        (Bound(0), result(unit="lost", ours=0.0), "≤ 0 lost", True),
        (Bound(0), result(unit="lost", ours=1.0), "≤ 0 lost", False),
        (Bound(1e6), result(unit="chunks/s", ours=2e6), "≥ 1,000,000 chunks/s", True),
        (Bound(1e6), result(unit="chunks/s", ours=9e5), "≥ 1,000,000 chunks/s", False),
    ],
)
def test_a_goal_is_judged_in_the_direction_of_its_unit(goal, measured, text, met):
    assert goal.judge(measured) == (text, met)


def test_a_row_has_its_goals_beside_what_was_reached():
    measured = Result(
        "allreduce_161_2", "s", 0.008, 0.005, {"gloo": 0.056, "mpi": 0.04, "mpi_chunked": 0.009}, 31
    )
    row = table([measured]).splitlines()[-1]
    assert row == (
        "| `allreduce_161_2` | 8.0 ms | 5.0 ms | 1.60 "
        "| `gloo` 56.0 ms<br>`mpi` 40.0 ms<br>`mpi_chunked` 9.0 ms "
        "| ≥ 6 × `gloo`: 7.00<br>≥ 1.2 × the best of `mpi`, `mpi_chunked`: 1.12 "
        "| yes<br>no | 31 |"
    )
    assert table([result("kills", "lost", 0.0, 0.0)]).splitlines()[-1] == (
        "| `kills` | 0 lost | 0 lost | - | - | - | - | 1 |"
    )


def test_a_group_rewrites_its_own_table_and_no_other(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n<!-- written by `python -m benchmarks a` -->\nold a\n<!-- end -->\nbetween\n"
        "<!-- written by `python -m benchmarks b` -->\nold b\n<!-- end -->\nafter\n"
    )
    write("b", "new\n", page)
    assert page.read_text() == (
        "# Title\n<!-- written by `python -m benchmarks a` -->\nold a\n<!-- end -->\nbetween\n"
        "<!-- written by `python -m benchmarks b` -->\n\nnew\n\n<!-- end -->\nafter\n"
    )
    with pytest.raises(SystemExit, match="benchmarks c"):
        write("c", "new\n", page)
    write("a", table([result("submit_cold", scp=1.0, rsync=2.0), result("status_cold")]), page)
    assert known("a", page) == {"submit_cold": {"scp", "rsync"}, "status_cold": set()}


def test_the_page_has_a_place_for_each_group_and_explains_each_goal():
    text = PAGE.read_text()
    for group in PACKAGES:
        assert text.count(f"<!-- written by `python -m benchmarks {group}` -->\n") == 1
    for what in GOALS:
        assert f"`{what.removesuffix('_terminal')}`" in text


@pytest.mark.parametrize("code", [0, 3])
def test_learners_bring_results_and_leave_nothing(tmp_path, monkeypatch, code):
    program = tmp_path / "learner.py"
    program.write_text(
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "child = subprocess.Popen(['sleep', '60'])\n"
        f"Path({str(tmp_path / 'seen')!r}).write_text(f'{{child.pid}} {{sys.argv[2]}}')\n"
        "Path(sys.argv[2]).write_text('{\"what\": \"' + sys.argv[1] + '\"}\\n')\n"
        "print('last words')\n"
        f"sys.exit({code})\n"
    )
    monkeypatch.setattr(learners, "_mpiexec", lambda count: [])
    monkeypatch.setattr(learners, "program", lambda module: [sys.executable, str(program)])
    if code == 0:
        assert learners.run_learners(2, "module", "key") == [{"what": "key"}]
    else:
        with pytest.raises(RuntimeError, match="(?s)exit code 3: last words"):
            learners.run_learners(2, "module", "key")
    child, file = (tmp_path / "seen").read_text().split()
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"
    assert not Path(file).parent.exists()


# `--smoke`, with programs that stand for groups ---------------------------------------------------

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
