"""Every face of dlctl tells the same of a curve: its list, its answers, its page."""

import math
import random

import pytest
from test_fetch import HERE

from dlctl import contract
from dlctl.contract.metrics import Source
from dlctl.dashboard.curves import Wanted, curves
from dlctl.outputs.metrics import MetricsReader, bins, read_metrics
from dlctl.record import Record
from dlctl.series.answers import Known, answers
from dlctl.series.best import best_of
from dlctl.series.merged import by_group
from dlctl.series.smooth import Smoother
from learner.job.metrics import MetricsFile

STEPS = 2000


def values(step, draw):
    """Eleven curves, among them six decades, gaps, and numbers that 32 bits don't hold."""
    noise = draw.gauss(0, 1)
    found = {"loss": 10 ** (-6 * step / STEPS) * (1 + 0.1 * noise), "huge": 1e300 * (2 + noise)}
    found |= {"tiny": 1e-300 * (5 + noise), "high": 1e9 + noise, "spike": float(step == 1234)}
    found["gaps"] = math.nan if step % 3 else noise
    return found | {f"more{n}": noise * n for n in range(5)}


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Record("t-1", "t", "local", str(tmp_path), str(tmp_path), "")


def write(record, steps, folder):
    draw = random.Random(7)
    file = MetricsFile(folder / contract.metrics_file(1, 0, Source.PROGRAM), clock=lambda: 1.0)
    for step in steps:
        file.append(step, None, values(step, draw))


def listed(record):
    """Return the points of each name, as `dlctl metrics` prints them."""
    found = {}
    for entry in (part for each in read_metrics(HERE, record) for part in by_group(each)):
        for name, value in entry.line.values.items():
            found.setdefault(name, []).append((entry.line.step, value))
    return found


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("again", [(), range(1000, 1500)], ids=["once", "went back"])
def test_the_list_the_answers_and_the_page_agree(record, tmp_path, monkeypatch, again, is_long):
    monkeypatch.setattr(bins, "LONG_BYTES", 100_000 if is_long else 16 * 1024 * 1024)
    write(record, [*range(STEPS), *again], tmp_path)
    reader = MetricsReader(record, 48 * 1024)
    reader.refresh(HERE)
    told, last = listed(record), again[-1] if again else STEPS - 1
    page = curves(reader.run, Wanted(width=400), Smoother())["curves"]
    assert reader.run.last_step == last and set(told) == {curve["name"] for curve in page}
    for drawn in page:
        known = [(step, value) for step, value in told[drawn["name"]] if value is not None]
        assert known[-1][0] <= last
        (curve,) = reader.run.named(drawn["name"])
        low, high = drawn.get("low", drawn["last"]), drawn.get("high", drawn["last"])
        first = next(v for v in drawn.get("first", drawn["last"]) if v is not None)
        assert first == known[0][1]
        assert min(v for v in low if v is not None) == min(value for _, value in known)
        assert max(v for v in high if v is not None) == max(value for _, value in known)
        lowest = min(curve.extremes(), key=lambda point: (math.isnan(point[1]), point[1]))
        assert lowest == min(known, key=lambda point: point[1])
        assert drawn["newest"] == told[drawn["name"]][-1][1]
        if not is_long or again:
            assert curve.values() == known
    guessing = answers(reader.run, Known(1.0, None, [], True))[0]
    step, best = best_of("loss", [each for each in told["loss"] if each[1] is not None])
    assert (guessing.evidence["best_step"], guessing.evidence["best"]) == (step, best)
