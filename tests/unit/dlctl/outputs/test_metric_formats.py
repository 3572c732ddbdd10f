"""The files of `dlctl metrics` are read by the programs that they are for."""

import csv
import io
import json
import math
import os
import subprocess
import sys

import pytest

from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.errors import Misused
from dlctl.outputs.metrics.formats import (
    chosen,
    print_csv,
    rows,
    summary,
    write_parquet,
    write_tensorboard,
)
from dlctl.outputs.metrics.platform import idle_nodes
from dlctl.series.merged import Entry, merge
from dlctl.series.readable import readable
from dlctl.series.replays import Origin
from dlctl.series.run import Run

LOOP, NODE = Origin(1, 0, Source.LOOP), Origin(1, 1, Source.NODE)
ODD = 'a "quoted", <b>name</b>\nof two lines'
LINES = [
    (LOOP, MetricsLine(0, 1, 99.0, event="training begins", kind=EventKind.BEGIN.value)),
    (LOOP, MetricsLine(10, 1, 100.5, {"loss": 2.5, "validation_loss": 3.0, ODD: 1.0})),
    (LOOP, MetricsLine(20, 2, 101.5, {"loss": None, "validation_loss": 2.0})),
    (NODE, MetricsLine(20, 2, 102.0, {"cpu_percent": 50.0}, texts={"note": "warm"})),
]
ENTRIES = merge(LINES)


def test_csv_holds_every_value_in_a_row():
    stream = io.StringIO()
    print_csv(rows("t-1", ENTRIES), stream)
    found = list(csv.DictReader(io.StringIO(stream.getvalue())))
    assert [(r["group"], r["name"], r["step"], r["value"]) for r in found] == [
        ("", "loss", "10", "2.5"), ("", ODD, "10", "1.0"), ("validation", "loss", "10", "3.0"),
        ("", "loss", "20", "nan"), ("validation", "loss", "20", "2.0"),
        ("", "cpu_percent", "20", "50.0"), ("", "note", "20", "warm"),
    ]  # fmt: skip
    assert found[5]["learner"] == "1"
    values = {f"name {i}": float(i) for i in range(20_000)}
    many = [Entry(LOOP, MetricsLine(1, 1, 1.0, values))]
    assert sum(1 for _ in rows("t-1", many)) == 20_000


def test_rows_of_a_growing_list_arrive_at_once_in_a_pipe():
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading):
        print_csv(rows("t-1", ENTRIES[:2]), stream)
        assert os.read(reading, 1000).count(b"\n") > 2


def test_records_are_json_and_events_stay_events():
    plain = [entry.plain() for entry in chosen(ENTRIES, 0, None)]
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert (plain[0]["kind"], plain[0]["event"], plain[0]["values"]) == (
        "begin", "training begins", {},
    )  # fmt: skip
    assert [(p["step"], p["group"], p["values"]) for p in plain[3:5]] == [
        (20, "", {"loss": None}), (20, "validation", {"loss": 2.0}),
    ]  # fmt: skip


def test_all_formats_tell_the_same_groups_and_names(tmp_path):
    lines = [
        *LINES,
        (LOOP, MetricsLine(30, 2, 103.0, {"train_loss": 1.0}, group="a/b", texts={"subid": "x"})),
    ]
    entries = merge(lines)
    for since, names in ((0, None), (15, "loss"), (0, "^validation/"), (0, "validation_loss")):
        some = list(chosen(entries, since, names))
        from_json = {
            (p["group"], name, p["step"])
            for p in (entry.plain() for entry in some) if p["kind"] == "scalar"
            for name in p["values"]
        }  # fmt: skip
        from_rows = {(row[4], row[8], row[5]) for row in rows("t-1", some)}
        assert from_json == from_rows
        assert ("validation", "loss", 20) in from_rows
        numbers = {(g, n) for g, n, _ in from_rows if n != "note"}
        assert len(summary(some)) == len(numbers)
    assert {row[4] for row in rows("t-1", chosen(entries, 30, None))} == {"x/a/b"}


def test_steps_and_names_can_be_chosen():
    found = list(chosen(ENTRIES, 15, "loss"))
    assert [(e.line.step, e.line.group, list(e.line.values)) for e in found] == [
        (20, "", ["loss"]), (20, "validation", ["loss"]),
    ]  # fmt: skip
    assert [e.line.event for e in chosen(ENTRIES, 0, None)][0] == "training begins"
    with pytest.raises(Misused, match="no regular expression"):
        list(chosen(ENTRIES, 0, "(loss"))


READ = """
import json, sys, warnings
warnings.simplefilter("ignore")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = {}
for folder in sys.argv[1:]:
    events = EventAccumulator(folder).Reload()
    found[folder] = {t: [(e.wall_time, e.step, e.value) for e in events.Scalars(t)]
                     for t in events.Tags()["scalars"]}
print(json.dumps(found))
"""


def test_tensorboard_reads_the_event_files(tmp_path):
    files = write_tensorboard(tmp_path, {"t-1": ENTRIES})
    folders = [str(path.parent) for path in files]
    assert [path.parent.relative_to(tmp_path).as_posix() for path in files] == [
        "t-1", "t-1/learner-1/node", "t-1/validation",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", READ, *folders], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    loss = found[folders[0]]["loss"]
    assert loss[0] == [100.5, 10, 2.5]
    assert math.isnan(loss[1][2])
    assert found[folders[0]][ODD] == [[100.5, 10, 1.0]]
    assert found[folders[2]]["loss"] == [[100.5, 10, 3.0], [101.5, 20, 2.0]]


def test_parquet_holds_the_rows(tmp_path):
    pytest.importorskip("pyarrow")
    assert write_parquet(tmp_path / "m.parquet", rows("t-1", ENTRIES)) == 7
    script = "import pyarrow.parquet as q, sys, json; print(json.dumps(q.read_table(sys.argv[1]).to_pylist()))"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "m.parquet")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert [row["value"] for row in found] == [2.5, 1.0, 3.0, None, 2.0, 50.0, None]
    assert found[-1]["text"] == "warm"


def test_the_table_tells_the_newest_and_the_best():
    found = summary(ENTRIES)
    assert all(
        len({len(cell) for cell in column}) == 1 for column in list(zip(*found, strict=True))[1:]
    )
    table = {row[0]: [cell.strip() for cell in row[1:]] for row in found}
    assert table["validation loss"] == ["2", "2", "20", "2", "10 to 20"]
    assert table["loss"] == ["nan", "2.5", "10", "2", "10 to 20"]
    assert table["learner 1: cpu_percent"] == ["50 %", "-", "-", "1", "20 to 20"]
    assert summary([]) == []
    long = merge([(LOOP, MetricsLine(1, 1, 1.0, {"n" * 3000: 1.0}))])
    assert summary(long)[0][0] == "n" * 99 + "…", "its values have room"
    of_a_node = [
        (NODE, MetricsLine(step, 1, step, {"cpu_percent": mean, "cpu_percent_max": most}))
        for step, mean, most in [(1, 50.0, 90.0), (2, 40.0, 80.0)]
    ]
    assert summary(merge(of_a_node)) == [
        ["learner 1: cpu_percent", "40 %", "max 90 %", "1", "2", "1 to 2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_bytes", 3.0323e8, "289 MiB"), ("memory_rss_bytes_max", 1023 * 2**20, "0.999 GiB"),
        ("cgroup_memory_bytes", 0.0, "0 B"), ("read_bytes_per_s", 1_300_000.0, "1.3 MB/s"),
        ("step_s", 0.0034316, "3.43 ms"), ("exchange_s", 2.8e-4, "280 µs"), ("wait_s", 0.0, "0 s"),
        ("checkpoint_s", 119.0, "119 s"), ("checkpoint_s", 300.0, "5 min"),
        ("x_s", 1e9, "11,574 d"),
        ("samples_per_s", 17467.2, "17,467 /s"), ("cpu_percent", 97.31, "97.3 %"),
        ("wait_share", 0.25, "25 %"), ("gpu0_power_w", 301.0, "301 W"),
        ("gpu0_temperature_c", 61.0, "61 °C"), ("loss", 0.0220171, "0.02202"),
        ("memory_bytes", math.nan, "nan"), ("step_s", -math.inf, "-inf"), ("loss", 1e300, "1e+300"),
    ],
)  # fmt: skip
def test_values_have_the_units_that_people_read(name, value, text):
    assert readable(name, value) == text


GROUPS = ["a/b", "a_b", "a b", "a%2Fb", "..", ".", "node", "Node", "learner-1", "%6Eode", "数据",
          "\0", "a" * 400, "a" * 401, "🙂" * 90, "/", "//", "", "<b>", "a\nb"]  # fmt: skip


def test_each_group_has_a_folder_of_its_own(tmp_path):
    lines = [(LOOP, MetricsLine(1, 1, 1.0, {"v": float(i)}, group=group))
             for i, group in enumerate(GROUPS)]  # fmt: skip
    lines += [(NODE, MetricsLine(1, 1, 1.0, {"v": -1.0})),
              (Origin(1, 0, Source.NODE), MetricsLine(1, 1, 1.0, {"v": -2.0}))]  # fmt: skip
    files = write_tensorboard(tmp_path / "tb", {"t-1": merge(lines)})
    assert len({path.resolve() for path in files}) == len(GROUPS) + 2
    assert all((tmp_path / "tb/t-1") in path.resolve().parents for path in files)
    assert (tmp_path / "tb/t-1/a%2Fb").is_dir()
    assert (tmp_path / "tb/t-1/a_b").is_dir()


def test_a_node_is_idle_if_none_of_its_learners_is_busy():
    run = Run("t-1")
    for rank, percent in ((0, 90.0), (1, 1.0), (2, 0.5), (3, 2.0)):
        for step in range(6):
            line = MetricsLine(step, 1, 100.0 + step, {"cpu_percent": percent})
            run.add(Origin(1, rank, Source.NODE), line)
    found = idle_nodes("t-1", run, {0: "n1", 1: "n1", 2: "n2", 3: "n2", 4: "n3"})
    assert [(node.host, node.busy_percent) for node in found] == [("n2", 2.0)]
