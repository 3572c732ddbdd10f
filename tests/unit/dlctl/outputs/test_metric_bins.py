"""A long file of metrics is opened by its bins, and shows the same curve as its lines."""

import math
import random

import pytest
from test_fetch import HERE

from dlctl import contract
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.outputs.metrics import long_files
from dlctl.outputs.metrics.files import read_metrics
from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.record import Record
from learner.job.metrics import MetricsFile

LINES = 20_000
VALIDATED_EVERY = 500


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(long_files, "LONG_BYTES", 512 * 1024)


def record_of(folder):
    return Record("t-1", "t", "local", str(folder), str(folder), "")


def read(folder):
    reader = MetricsReader(record_of(folder))
    reader.refresh(HERE)
    return reader


class Written:
    """A training that has measured much."""

    def __init__(self, folder):
        self.folder = folder
        draw = random.Random(7)
        self.spikes = set(draw.sample(range(1, LINES), 100))
        self.file = MetricsFile(folder / contract.metrics_file(1, 0))
        self.file.tell(0, 1, "training begins", EventKind.BEGIN)
        self.write(1, LINES + 1)

    def write(self, begin, end, file=None):
        for step in range(begin, end):
            (file or self.file).append(step, 1, {"loss": self.loss(step), "rate": 0.1})
            if step % VALIDATED_EVERY == 0:
                (file or self.file).append(step, 1, {"validation_loss": 1.0 / step})
                (file or self.file).tell(step, 1, "saved", EventKind.CHECKPOINT, {"seconds": 1.0})

    def loss(self, step):
        return 50.0 if step in self.spikes else math.exp(-step / 5000)

    def read(self):
        return read(self.folder)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return Written(tmp_path_factory.mktemp("long"))


def points(reader, name, group=None):
    (curve,) = reader.run.named(name, group)
    return curve.points


def test_bins_hold_every_point_once(written):
    reader = written.read()
    loss = points(reader, "loss", "")
    assert sum(loss.count) == LINES
    assert len(loss) < 1500
    assert (loss.step_first[0], loss.step_last[-1]) == (1, LINES)
    assert all(a < b for a, b in zip(loss.step_last, loss.step_first[1:], strict=False))
    spiked = {s for a, b, high in zip(loss.step_first, loss.step_last, loss.high, strict=True)
              if high == 50.0 for s in written.spikes if a <= s <= b}  # fmt: skip
    assert spiked == written.spikes
    slow = points(reader, "loss", "validation")
    assert sum(slow.count) == LINES // VALIDATED_EVERY
    assert slow.last[-1] == pytest.approx(1 / LINES, rel=1e-6)
    kinds = [event.kind for event in reader.run.events]
    assert kinds == ["begin", *["checkpoint"] * (LINES // VALIDATED_EVERY)]


@pytest.mark.first("1-16393-16", "4000-13-2")
@pytest.mark.parametrize(
    ("names", "lines", "rare"), [(1, 16_393, 16), (60, 4999, 7), (100, 3011, 5), (4000, 13, 2)]
)
def test_bins_hold_every_point_of_many_metrics_and_of_rare_ones(tmp_path, names, lines, rare):
    file = MetricsFile(tmp_path / contract.metrics_file(1, 0))
    for step in range(1, lines + 1):
        file.append(step, 1, {f"layer{i}/norm": float(step) for i in range(names)})
        if step % rare == 0:
            file.append(step, 1, {"validation_loss": float(step)})
    reader = read(tmp_path)
    for key, curve in reader.run.curves.items():
        every = rare if key.group == "validation" else 1
        assert (sum(curve.points.count), curve.last) == (lines // every, lines - lines % every), key


def test_a_file_of_more_series_than_bins_can_have_is_read_whole(tmp_path, monkeypatch):
    for limit in ("USUAL_BYTES", "MOST_BYTES"):
        monkeypatch.setattr(f"learner.job.bins.{limit}", 8)
    file = MetricsFile(tmp_path / contract.metrics_file(1, 0))
    for step in range(1, 5001):
        file.append(step, 1, {f"m{n}": float(step) for n in range(8 + (step > 4500))})
    reader = read(tmp_path)
    assert [len(points(reader, name)) for name in ("m0", "m7", "m8")] == [5000, 5000, 500]


def test_opening_moves_a_small_part_of_the_file(written, monkeypatch):
    moved = []
    run = HERE.run

    def counted(script, **how):
        end = run(script, **how)
        moved.append(len(end.stdout))
        return end

    monkeypatch.setattr(HERE, "run", counted)
    written.read()
    size = (written.folder / contract.metrics_file(1, 0)).stat().st_size
    assert sum(moved) < size / 20, (moved, size)


@pytest.mark.parametrize(("begin", "end"), [(4000, 12_000), (7000, 7400), (19_900, 20_000)])
def test_a_window_is_refined_to_its_points(written, begin, end):
    reader = written.read()
    for _ in range(4):
        reader.refine(HERE, begin, end, 300)
    loss = points(reader, "loss", "")
    inside = [c for a, b, c in zip(loss.step_first, loss.step_last, loss.count, strict=True)
              if a >= begin and b <= end]  # fmt: skip
    assert len(inside) >= min(250, (end - begin) * 0.9)
    assert reader.is_fine(begin, end, 300) or end - begin < 300
    assert sum(loss.count) == LINES
    assert all(a < b for a, b in zip(loss.step_last, loss.step_first[1:], strict=False))


def test_a_window_that_cannot_be_refined_is_asked_for_once(tmp_path):
    written = Written(tmp_path)
    reader = written.read()
    (tmp_path / "metrics/1-0.jsonl").write_bytes(b"")
    for _ in range(2):
        reader.refine(HERE, 12_000, 12_100, 300)
    assert reader.is_fine(12_000, 12_100, 300)
    assert not reader.is_fine(4000, 4100, 300)


def test_a_window_of_too_many_lines_stays_as_it_is(written, monkeypatch):
    monkeypatch.setattr(long_files, "_MOST_LINES_BYTES", 100_000)
    reader = written.read()
    assert reader.is_fine(0, LINES, 5000) and not reader.refine(HERE, 0, LINES, 5000)
    assert reader.refine(HERE, 500, 600, 5000)


def test_a_file_grows_on_after_it_was_opened(tmp_path):
    written = Written(tmp_path)
    reader = written.read()
    written.write(LINES + 1, LINES + 51)
    assert reader.refresh(HERE)
    assert sum(points(reader, "loss", "").count) == LINES + 50
    assert not reader.refresh(HERE)
    again = MetricsFile(tmp_path / contract.metrics_file(2, 0))
    again.tell(LINES - 1000, 1, "continues", EventKind.BEGIN)
    written.write(LINES - 999, LINES - 900, again)
    reader.refresh(HERE)
    loss = points(reader, "loss", "")
    assert loss.step_last[-1] == LINES - 901
    assert sum(loss.count) == LINES - 901, "the bin in which the attempts meet is made of its lines"
    assert all(a < b for a, b in zip(loss.step_last, loss.step_first[1:], strict=False))
    before = [v for s, v in zip(loss.step_last, loss.last, strict=True)
              if LINES - 1010 <= s <= LINES - 1000]  # fmt: skip
    assert before == pytest.approx([written.loss(s) for s in range(LINES - 1010, LINES - 999)])
    entries = [e for e in read_metrics(HERE, record_of(tmp_path)) if not e.line.event]
    assert len([e for e in entries if "loss" in e.line.values]) == LINES - 901


def test_a_writer_that_begins_again_makes_the_bins_from_the_lines(tmp_path):
    written = Written(tmp_path)
    written.file = MetricsFile(tmp_path / contract.metrics_file(1, 0))
    written.write(LINES + 1, LINES + 200)
    assert sum(points(written.read(), "loss", "").count) == LINES + 199


def test_a_file_without_bins_such_as_a_short_one_is_read_by_its_lines(tmp_path):
    written = Written(tmp_path)
    (tmp_path / "metrics/1-0.bins").unlink()
    assert len(points(written.read(), "loss", "")) == LINES
    (tmp_path / "short/metrics").mkdir(parents=True)
    short = MetricsFile(tmp_path / "short" / contract.metrics_file(1, 0))
    for step in range(100):
        short.append(step, 1, {"loss": 1.0})
    assert [path.name for path in (tmp_path / "short/metrics").iterdir()] == ["1-0.jsonl"]


def test_what_is_measured_without_a_step_or_at_the_same_one_is_shown_whole(tmp_path):
    for source, step in ((Source.NODE, lambda i: i // 30), (Source.LOG, lambda i: -1)):
        file = MetricsFile(tmp_path / contract.metrics_file(1, 0, source))
        lines = [MetricsLine(step(i), 1, 1000.0 + 10 * i, {"cpu_percent": float(i)})
                 for i in range(12_000)]  # fmt: skip
        file.add_all(lines[:11_000])
        reader = read(tmp_path)
        file.add_all(lines[11_000:])
        reader.refresh(HERE)
        (curve,) = [c for k, c in reader.run.curves.items() if k.source == source.value]
        assert sum(curve.points.count) == 12_000
        assert (curve.points.first[0], curve.last) == (0.0, 11_999.0)


def test_a_program_that_goes_back_replaces_its_own_steps(tmp_path):
    file = MetricsFile(tmp_path / contract.metrics_file(1, 0, Source.PROGRAM))
    for begin, value in ((1, 1.0), (4001, 5.0)):
        file.add_all(
            [MetricsLine(s, 1, value * 1e6 + s, {"loss": value}) for s in range(begin, 8001)]
        )
    reader = read(tmp_path)
    loss = points(reader, "loss")
    assert all(a < b for a, b in zip(loss.step_last, loss.step_first[1:], strict=False))
    later = [v for s, v in zip(loss.step_first, loss.last, strict=True) if s > 4001]
    assert set(later) == {5.0}
    assert 7900 <= sum(loss.count) <= 8000  # at most the bin in which it went back is missing


def test_files_of_a_later_attempt_wait_for_those_before(tmp_path, monkeypatch):
    monkeypatch.setattr("dlctl.outputs.metrics.files._LOOK_BYTES", 4096)
    (tmp_path / "metrics").mkdir()
    for attempt, first in ((1, 1), (2, 901)):
        path = tmp_path / contract.metrics_file(attempt, 0)
        lines = [MetricsLine(s, 1, None, {"loss": attempt}) for s in range(first, first + 1000)]
        path.write_bytes(b"".join(line.encode() for line in lines))
    reader = read(tmp_path)
    assert not reader.run.out_of_order
    values = dict(reader.run.named("loss")[0].values())
    assert (len(values), values[900], values[901]) == (1900, 1.0, 2.0)
    assert not reader.refresh(HERE)
