"""The metrics of a training are kept on this machine, and open without its site."""

import os
import shutil
import stat
import zlib
from pathlib import Path

import pytest
from test_fetch import HERE

from dlctl import contract
from dlctl.contract.metrics import EventKind, make_line
from dlctl.errors import ConnectionLost
from dlctl.live.training import Training
from dlctl.outputs.metrics import cache, long_files
from dlctl.outputs.metrics.files import kept_metrics, read_metrics
from dlctl.outputs.metrics.reader import MetricsReader
from dlctl.record import Record
from learner.job.metrics import MetricsFile


class Counting:
    """This machine as a site: counts the bytes that it sends, and can stop answering."""

    name = "here"

    def __init__(self, fails_after=10**9):
        self.sent_bytes, self.scripts, self.fails_after = 0, 0, fails_after

    def run(self, script, **options):
        if self.scripts >= self.fails_after:
            raise ConnectionLost("the network is down")
        self.scripts += 1
        done = HERE.run(script, **options)
        self.sent_bytes += len(done.stdout)
        return done


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(long_files, "LONG_BYTES", 512 * 1024)
    return tmp_path / "cache/dlctl/metrics"


@pytest.fixture
def record(tmp_path):
    job = tmp_path / "job"
    (job / "metrics").mkdir(parents=True)
    return Record("t-1", "t", "here", str(job), str(job), "")


def path_of(record, attempt=1):
    return Path(record.job_dir, contract.metrics_file(attempt, 0))


def write(record, begin, end, attempt=1):
    """Write steps as a file without bins, as many programs do."""
    with path_of(record, attempt).open("ab") as file:
        for step in range(begin, end):
            file.write(make_line(step, 1, 1000.0 + step, {"loss": step / attempt}).encode())


def read(record, site=HERE, **how):
    reader = MetricsReader(record, **how)
    reader.refresh(site)
    return reader


def losses(reader):
    return dict(reader.run.named("loss")[0].values()) if reader.run.curves else {}


def test_a_training_opens_without_its_site(record):
    write(record, 1, 101)
    first = read(record)
    again = MetricsReader(record)
    assert losses(again) == losses(first) and len(losses(again)) == 100
    assert 0 < again.seen_at <= first.seen_at + 0.1
    with pytest.raises(ConnectionLost):
        again.refresh(Counting(fails_after=0))
    assert len(losses(again)) == 100
    assert Training(record).metrics.run.last_step == 100, "a watch begins with it"


@pytest.mark.slow
def test_a_long_training_that_has_ended_opens_again_without_its_bytes(record):
    file = MetricsFile(path_of(record))
    file.tell(0, 1, "training begins", EventKind.BEGIN)
    file.add_all([make_line(s, 1, 1000.0 + s, {"loss": 1 / s}) for s in range(1, 50_001)])
    first_site, second_site = Counting(), Counting()
    first = read(record, first_site)
    again = read(record, second_site)
    assert again.run.events == first.run.events
    assert losses(again) == losses(first)
    assert again.run.named("loss")[0].points == first.run.named("loss")[0].points
    assert second_site.sent_bytes < 1000 < first_site.sent_bytes / 5
    assert again.refine(HERE, 100, 120, 50)
    assert sum(100 <= step <= 120 for step in losses(again)) == 21


def test_the_exact_list_is_there_without_the_site_unless_a_file_is_known_by_bins(
    record, monkeypatch
):
    monkeypatch.setattr("dlctl.outputs.metrics.files._LOOK_BYTES", 40_000)
    assert kept_metrics(record) is None
    write(record, 1, 101)
    write(record, 60, 161, attempt=2)
    read(record)
    seen_at, entries = kept_metrics(record)
    assert entries == read_metrics(HERE, record) and len(entries) == 160
    assert seen_at > 0
    write(record, 161, 50_000, attempt=3)
    MetricsFile(path_of(record, 3)).add(make_line(50_000, 1, 1.0, {"loss": 1.0}))  # makes bins
    read(record)
    assert kept_metrics(record) is None


def test_what_has_grown_meanwhile_goes_on_behind_what_is_known(record):
    write(record, 1, 1001)
    read(record)
    with path_of(record).open("ab") as file:
        file.write(b'{"step": 1001, "loss"')
    read(record)
    with path_of(record).open("ab") as file:
        file.write(b": 7}\n")
    write(record, 901, 1101, attempt=2)  # a later attempt does steps again
    site = Counting()
    known = losses(read(record, site))
    assert known == {s: float(s if s < 901 else s / 2) for s in range(1, 1101)}
    assert site.sent_bytes < 20_000


def test_what_was_seen_outlives_a_purge_of_the_file(record):
    write(record, 1, 101)
    read(record)
    path_of(record).unlink()
    for _ in range(2):
        assert list(losses(read(record))) == list(range(1, 101))
    write(record, 101, 201, attempt=2)
    assert list(losses(read(record))) == list(range(1, 201))


@pytest.mark.parametrize("last", [1100, 1010])
def test_a_file_that_is_another_one_is_read_anew(record, last):
    write(record, 1, 101)
    read(record)
    path_of(record).unlink()
    write(record, 1001, last + 1)
    known = losses(read(record))
    assert list(known) == list(range(1001, last + 1))
    assert losses(MetricsReader(record)) == known


@pytest.mark.parametrize("how", ["cut", "noise", "empty", "version", "other job", "no folder"])
def test_what_cannot_be_used_is_dropped_silently(record, folder, monkeypatch, how):
    write(record, 1, 101)
    read(record)
    path = folder / "t-1.metrics"
    whole = path.read_bytes()
    if how == "version":
        monkeypatch.setattr("dlctl.outputs.metrics.cache._VERSION", 0)
    elif how == "no folder":
        shutil.rmtree(folder.parents[1])
        folder.parents[1].write_text("a file is no folder")
    elif how == "other job":
        packed = zlib.decompress(whole).replace(record.job_dir.encode(), b"/elsewhere", 1)
        path.write_bytes(zlib.compress(packed))
    else:
        path.write_bytes({"cut": whole[:-9], "noise": b"x" * 99, "empty": b""}[how])
    assert losses(MetricsReader(record)) == {}
    assert len(losses(read(record))) == 100


def test_the_cache_is_private_and_the_oldest_go_first(record, folder, monkeypatch):
    write(record, 1, 101)
    read(record)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "t-1.metrics").stat().st_mode) == 0o600
    size = (folder / "t-1.metrics").stat().st_size
    for name, age_s in (("oldest", 300), ("old", 200)):
        (folder / f"{name}.metrics").write_bytes(b"x" * size)
        os.utime(folder / f"{name}.metrics", (1e9 - age_s, 1e9 - age_s))
    monkeypatch.setattr("dlctl.outputs.metrics.cache.LIMIT_BYTES", int(2.5 * size))
    write(record, 101, 103)
    read(record)
    assert sorted(path.name for path in folder.iterdir()) == ["old.metrics", "t-1.metrics"]
    cache.forget("t-1")
    cache.forget("t-1")
    assert [path.name for path in folder.iterdir()] == ["old.metrics"]


@pytest.mark.slow
def test_lines_of_a_long_watch_do_not_fill_the_memory(record, monkeypatch):
    """Once they are many, the file is opened anew by its bins."""
    monkeypatch.setattr("dlctl.outputs.metrics.reader._MOST_KEPT_BYTES", 1024 * 1024)
    file = MetricsFile(path_of(record))
    reader = MetricsReader(record)
    for begin in range(1, 40_001, 4000):
        file.add_all(
            [make_line(s, 1, 1000.0 + s, {"loss": 1 / s}) for s in range(begin, begin + 4000)]
        )
        reader.refresh(HERE)
        points = reader.run.named("loss")[0].points
        assert sum(points.count) == begin + 3999
    assert len(points) < 20_000
    reader.refresh(HERE)
    assert sum(MetricsReader(record).run.named("loss")[0].points.count) == 40_000


@pytest.mark.parametrize("breaks_after", [0, 1, 2])
def test_a_connection_that_breaks_between_two_reads_leaves_no_gap(
    record, monkeypatch, breaks_after
):
    """The lines that a look has read count, although the look did not come to its end."""
    monkeypatch.setattr("dlctl.outputs.metrics.files._LOOK_BYTES", 40_000)
    file = MetricsFile(path_of(record))
    file.add_all([make_line(s, 1, 1000.0 + s, {"loss": 1 / s}) for s in range(1, 20_001)])
    write(record, 15_001, 18_001, attempt=2)
    reader = MetricsReader(record)
    with pytest.raises(ConnectionLost):
        reader.refresh(Counting(fails_after=breaks_after))
    reader.refresh(HERE)
    points = reader.run.named("loss")[0].points
    assert (points.step_first[0], points.step_last[-1]) == (1, 18_000)
    assert len(points) < 6000 and sum(points.count) > 17_900


def test_the_lines_where_attempts_meet_are_kept(record):
    first = MetricsFile(path_of(record))
    first.add_all([make_line(s, 1, 1000.0 + s, {"loss": float(s)}) for s in range(1, 20_001)])
    write(record, 9_901, 10_001, attempt=2)
    known = read(record).run.named("loss")[0].points
    assert sum(known.count) == 10_000
    site = Counting()
    again = read(record, site)
    assert again.run.named("loss")[0].points == known and site.sent_bytes < 5000
