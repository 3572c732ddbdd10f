"""Sets of learners that take turns in the benchmarks; what they measure is no test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY))
from benchmarks import learners, training, turns

LEARNER = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from benchmarks.turns import Place

place = Place(sys.argv[-1])
(place.folder / "who").write_text(f"{{place.number}} of {{place.size}}")

def note(what):
    (place.folder / "notes").open("a").write(what)

def fail(what):
    raise ValueError(what)

place.obey({{"note": note, "fail": fail}})
(place.folder / "notes").rename(sys.argv[1])
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Have one learner start without mpiexec."""
    program = tmp_path / "learner.py"
    program.write_text(LEARNER)
    monkeypatch.setattr(learners, "_mpiexec", lambda count: [])
    monkeypatch.setattr(learners, "program", lambda module: [sys.executable, str(program)])


def test_learners_carry_out_orders_and_leave(tmp_path):
    with turns.start("ours", 1, "module", str(tmp_path / "notes")) as learner_set:
        (answer,) = learner_set.ask("note", "a")
        assert answer["begin"] <= answer["end"]
        assert learner_set.time_s("note", "b") >= 0
        folder = learner_set.folder
        assert (folder / "who").read_text() == "0 of 1"
    assert (tmp_path / "notes").read_text() == "ab"
    assert not folder.exists()


def test_the_last_words_of_a_learner_that_has_gone(tmp_path):
    with (
        pytest.raises(RuntimeError, match=r"(?s)ours did not answer.*ValueError: no such way"),
        turns.start("ours", 1, "module", str(tmp_path / "notes")) as learner_set,
    ):
        folder = learner_set.folder
        learner_set.ask("fail", "no such way")
    assert not folder.exists()


def test_a_learner_that_does_not_start(tmp_path, monkeypatch):
    monkeypatch.setattr(learners, "program", lambda module: [sys.executable, "-c", "print('no')"])
    with (
        pytest.raises(RuntimeError, match=r"(?s)a learner did not start: no"),
        turns.start("ours", 1, "module"),
    ):
        pytest.fail("started")


class Written:
    """A set whose learners write weights that are given."""

    def __init__(self, folder: Path, *weights: list[float]) -> None:
        self.folder, self.size = folder, len(weights)
        self._weights = weights
        folder.mkdir()

    def ask(self, order: str, name: str) -> None:
        assert order == "write_weights"
        for number, values in enumerate(self._weights):
            np.array(values, np.float32).tofile(self.folder / f"{name}.{number}")


@pytest.mark.parametrize("way", ["ours", "mpi_chunked", "ddp_gloo"])
def test_every_learner_has_to_train_as_ddp_does(tmp_path, way):
    alike = [1.0, 2.0], [1.00001, 2.0]
    sets = {name: Written(tmp_path / name, *alike) for name in training._ALIKE}
    training._check(sets)
    assert not list(tmp_path.glob("*/weights*"))
    sets[way] = Written(tmp_path / "other", [1.0, 2.0], [1.0, 2.001])
    with pytest.raises(AssertionError, match=f"weights of {way}, learner 1"):
        training._check(sets)


def test_a_benchmark_ends_quietly_when_nobody_reads():
    program = (
        "from benchmarks.report import Result, main\n"
        "def measure(load):\n"
        "    yield from [Result('key', 's', 1.0, 1.0)] * 3\n"
        "main(measure)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    assert process.stdout and process.stderr
    process.stdout.close()
    with process.stderr as errors:
        said = errors.read()
    assert (process.wait(), said) == (128 + 13, b"")
