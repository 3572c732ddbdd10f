"""The tiers of the tests: shards, second tries, costs, and the environment that they run in."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cost
import near
import pytest
import tiers
from repository import REPOSITORY


def load(path):
    """Load a program that is no module of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """tests/run.py with a build folder of its own; `fails` says what fails at each try, and
    `ends` which of those that fail first end the second one before they are reported.

    `code` is pytest's, where it is not to follow from that.
    """
    program = load(REPOSITORY / "tests/run.py")
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setattr(program, "tree", lambda: "now")
    monkeypatch.setattr(program.os, "environ", {})
    tries = []

    def start(fails, *, tier="first", words=(), code=None, ends=()):
        def run(argv, *_):
            failed = fails[len(tries)]
            passed = Path(program.os.environ[tiers.PASSED_VARIABLE])
            if tries:  # pytest's last words are the tests
                good = set(fails[0]) - set(failed) - set(ends)
                passed.write_text("".join(f"{name}\n" for name in sorted(good)))
            tries.append(argv)
            book = Path(program.os.environ[tiers.FAILED_VARIABLE])
            book.write_text(book.read_text() + "".join(f"{name}\n" for name in failed))
            return bool(failed) if code is None else code

        monkeypatch.setattr(program, "run", run)
        return program.Run(tier, "1/1", measured=False).go([], list(words)), tries

    return start


NAMES = [f"tests/unit/test_x.py::test_{number}" for number in range(100)]


def test_shards_are_all_tests_once():
    taken = [{n for n in NAMES if tiers.is_in_shard(n, f"{k}/4")} for k in (1, 2, 3, 4)]
    assert sorted(name for part in taken for name in part) == sorted(NAMES)
    assert all(len(part) > 10 for part in taken)


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("a.py::test_x@cluster", "a.py::test_x"),
        ("a.py::test_x[you@here]@web", "a.py::test_x[you@here]"),
        ("a.py::test_x[you@here]", "a.py::test_x[you@here]"),
    ],
)
def test_the_group_is_no_part_of_a_name(told, name):
    assert tiers.name_of(told) == name


def test_a_run_without_failures_has_one_try(runner):
    code, tries = runner([[]])
    assert (code, len(tries)) == (0, 1)


def test_a_run_that_is_interrupted_has_no_second_try(runner):
    code, tries = runner([NAMES[:1], []], code=pytest.ExitCode.INTERRUPTED)
    assert (code, len(tries)) == (pytest.ExitCode.INTERRUPTED, 1)


@pytest.mark.parametrize(
    ("passed_before", "words", "good"),
    [("a.py::test_x\n", [], True), ("", [], False), ("a.py::test_x\n", ["-k", "typo"], False)],
)
def test_nothing_to_do_is_good_only_if_all_has_passed_before(
    runner, tmp_path, passed_before, words, good
):
    (tmp_path / "passed-now.txt").write_text(passed_before)
    none = pytest.ExitCode.NO_TESTS_COLLECTED
    code, _ = runner([[]], tier="all", words=words, code=none)
    assert code == (0 if good else none)


def test_two_tests_that_pass_alone_are_unsteady_and_told(runner, capsys):
    code, tries = runner([NAMES[:2], []])
    assert (code, tries[1][-2:]) == (0, NAMES[:2])
    assert "unsteady" in capsys.readouterr().out


def test_three_unsteady_tests_fail_the_run(runner):
    assert runner([NAMES[:3], []])[0] == 1


def test_a_test_that_fails_alone_too_fails_the_run(runner, capsys):
    code, _ = runner([NAMES[:2], NAMES[:1]])
    assert code == 1
    assert f"  {NAMES[1]}\n" in capsys.readouterr().out


def test_a_test_that_is_not_reported_at_the_second_try_has_failed(runner, capsys):
    assert runner([NAMES[:1], []], ends=NAMES[:1])[0] == 1
    assert "unsteady" not in capsys.readouterr().out


def test_many_failures_are_not_tried_again(runner):
    code, tries = runner([NAMES[:50]])
    assert (code, len(tries)) == (1, 1)


def told_of(**costs):
    told = cost.CostReport()
    for name, (cpu_s, scripts, limit_s) in costs.items():
        bill = {"cpu_s": cpu_s, "scripts": scripts, "limit_s": limit_s, "fixtures": {}}
        nodeid = f"tests/unit/dlctl/test_x.py::{name}"
        told.pytest_runtest_logreport(SimpleNamespace(nodeid=nodeid, duration=1, dlctl_cost=bill))
    return told


def test_dear_tests_are_listed_and_too_dear_ones_refused(monkeypatch):
    monkeypatch.setenv(tiers.TIER_VARIABLE, "first")
    monkeypatch.delenv("COVERAGE_RUN", raising=False)
    told = told_of(cheap=(0.2, 3, 5.0), scripts=(0.5, 61, 5.0), dear=(2.0, 0, 5.0),
                   road=(9.0, 0, 20.0), worse=(10.1, 0, 5.0), slow=(60.0, 0, None))  # fmt: skip
    assert [name.partition("::")[2] for name, _ in told.dear()] == [
        "worse", "road", "dear", "scripts",
    ]  # fmt: skip
    (line,) = told.too_dear()
    assert "::worse: 10.1 s" in line and "make it cheaper or mark it" in line
    monkeypatch.setenv(tiers.TIER_VARIABLE, "all")
    assert told.too_dear() == []
    assert any(line.split()[:3] == ["unit/dlctl", "6", "tests"] for line in cost.summary(told))
    assert not any("control group" in line for line in cost.summary(told))
    told.tests["tests/unit/dlctl/test_x.py::road"]["is_whole"] = False
    assert any("no control group" in line for line in cost.summary(told))


def test_the_meter_counts_what_children_use():
    meter = cost.Meter()
    try:
        before, started = meter.used_s(), meter.started
        subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
        assert meter.used_s() - before > 0.01
        assert meter.started == started + 1
    finally:
        meter.close()


@pytest.fixture
def real_run(tmp_path):
    """Runs tests in a small copy of the suite, and says how that ended."""
    for name in ("tests/run.py", "tests/support/tiers.py", "tests/support/near.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    (tmp_path / "tests/conftest.py").write_text(
        "import tiers\npytest_configure = tiers.pytest_configure\n"
        "pytest_collection_modifyitems = tiers.pytest_collection_modifyitems\n"
    )
    marks = ["cluster", "first", "frameworks", "slow", "long", "unmeasured"]
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\npythonpath = tests/support\nmarkers =\n"
        + "".join(f"  {each}\n" for each in marks)
    )
    for folder in (*near.PACKAGES, ".ci"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".gitignore").write_text("build\n__pycache__\n.pytest_cache\n")
    (tmp_path / ".ci/system-packages").write_text("#!/bin/sh\n")
    (tmp_path / ".ci/system-packages").chmod(0o755)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)

    def run(tier="first", **files):
        for name, text in files.items():
            (tmp_path / "tests" / f"test_{name}.py").write_text(text)
        words = [sys.executable, "tests/run.py", tier]
        env = {name: text for name, text in os.environ.items() if not name.startswith("DLCTL_TEST")}
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


FAILS_ONCE = """
from pathlib import Path

def test_once():
    first = not Path("once").exists()
    Path("once").touch()
    assert not first
"""


@pytest.mark.slow
@pytest.mark.parametrize(("files", "code"), [
    ({"a": FAILS_ONCE}, 0),
    ({"a": FAILS_ONCE, "b": "import no_such_module"}, 1),
    ({"a": FAILS_ONCE, "b": "import os\ndef test_b(): os.kill(os.getpid(), 9)"}, 1),
    ({"a": "def test_a(): assert 0"}, 1),
])  # fmt: skip
def test_no_run_is_green_that_has_not_run_all(real_run, files, code):
    found, said = real_run(**files)
    assert found == code, said


@pytest.mark.slow
def test_only_what_has_run_and_passed_is_left_out_next_time(real_run):
    skips = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip()"
    code, said = real_run("all", a=skips)
    assert code == 0 and "1 passed, 1 skipped" in said
    code, said = real_run("all")
    assert code == 0 and "passed" not in said.split("tier all")[0] and "1 skipped" in said
    code, said = real_run("all", a=skips.replace("pytest.skip()", "assert 0"))
    assert code == 1 and "1 failed, 1 passed" in said


@pytest.fixture(scope="module")
def graph():
    return near.grimp.build_graph(*near.PACKAGES, cache_dir=None)


@pytest.mark.parametrize(("file", "tests"), [
    ("pyproject.toml", "tests"), ("dlctl/units.py", "tests/unit/dlctl/test_units.py"),
    ("dlctl/dashboard/static/gone.js", "tests/unit/dlctl/dashboard"),
    ("dlctl/gone_with_its_test.py", ""), ("templates/stores/s3.yml", "tests/contract"),
    ("tests/support/near.py", "tests/unit/suite/test_tiers.py"), ("examples/x.py", "tests"),
    ("tests/mpi/conftest.py", "tests/mpi"), ("tests/golden/scripts/x", "tests/golden"),
])  # fmt: skip
def test_the_tests_near_to_a_file(monkeypatch, graph, file, tests):
    monkeypatch.setattr(near.grimp, "build_graph", lambda *_, **__: graph)
    monkeypatch.setattr(near, "changed", lambda _: [file])
    assert tests in near.tests(REPOSITORY) or (not tests and not near.tests(REPOSITORY))


def test_rooms_near_to_a_change_are_those_that_import_it():
    assert near.module_of("dlctl/plan/__init__.py") == "dlctl.plan"
    assert near.room_of("dlctl.plan.decide") == "dlctl.plan"
    assert "tests/unit/suite/test_tiers.py" in near.naming(REPOSITORY, ["near"])


def test_a_later_stage_makes_nothing_anew_that_jobs_run_from(tmp_path, monkeypatch):
    """`make cluster` after `make demo` took `dlctl` away for half a minute."""
    program, ran = load(REPOSITORY / ".ci/make_venv.py"), []
    monkeypatch.setattr(program, "make_demo", Path.mkdir)
    monkeypatch.setattr(program, "installer", lambda _: lambda *words, **_: words)
    monkeypatch.setattr(program, "add_servers", lambda *_: None)
    monkeypatch.setattr(program, "run", ran.append)
    monkeypatch.setattr(program.subprocess, "run", lambda *_: None)
    monkeypatch.setattr(program.sys, "argv", ["", str(tmp_path / "venv"), "test"])
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    program.main()
    assert (tmp_path / "venv/.demo").exists(), "else make begins with it anew"
    assert [set(words) & {"-e", "."} for words in ran] == [set()]


def test_uv_gets_pips_own_settings(tmp_path):
    program = load(REPOSITORY / ".ci/make_venv.py")
    pip = tmp_path / "pip"
    pip.write_text(
        "#!/bin/sh\n"
        "echo \":env:.find-links='/own'\"\n"
        "echo \"global.extra-index-url='https://a.example/simple file:///b'\"\n"
        "echo \"global.find-links='/wheels'\"\n"
        "echo \"global.no-index='true'\"\n"
        "echo \"install.constraint='/etc/c.txt'\"\n"
    )
    pip.chmod(0o755)
    assert program.pip_settings([str(pip)]) == [
        "--index", "https://a.example/simple", "--index", "file:///b", "--find-links", "/own",
        "--constraint", "/etc/c.txt", "--no-index",
    ]  # fmt: skip
