"""Every face of dlctl tells the same of a curve: lists, table, answers, terminal, page, report."""

import csv
import io
import json
import math
import random
import re
import struct
import time
from collections import defaultdict
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from dashboard_server import served
from login_side import make_record, plan_of

from dlctl import contract
from dlctl.contract import State, Status, Verdict, to_json
from dlctl.contract.metrics import EventKind, MetricsLine, Source, finite
from dlctl.dashboard.curves import MOST_CURVES
from dlctl.dashboard.live import LiveFeed
from dlctl.lifecycle import open_session
from dlctl.outputs.metrics import long_files
from dlctl.series.readable import readable
from dlctl.sites.files import load_site
from learner.collect.parsers.tensorboard import EventParser
from learner.collect.parsing import EventFeed
from learner.job.metrics import MetricsFile

ONE = "t-1"
WHOLE = 16 * 1024 * 1024
REPORT = re.compile(r'<script type="application/json" id="report">(.*?)</script>', re.DOTALL)


def eleven(step, steps, draw):
    """Eleven curves, among them six decades, gaps, and numbers that 32 bits don't hold."""
    noise = draw.gauss(0, 1)
    found = {"loss": 10 ** (-6 * step / steps) * (1 + 0.1 * noise), "huge": 1e300 * (2 + noise)}
    found |= {"tiny": 1e-300 * (5 + noise), "high": 1e9 + noise, "spike": float(step == steps // 3)}
    found["gaps"] = math.nan if step % 3 != 1 else noise
    found["infinite"] = math.inf if step % 2 else -noise
    return found | {f"more{n}": noise * n for n in range(4)}


class Faces:
    """A training, written as its learner writes it, and what each face tells of it."""

    def __init__(self, folder, run, trainings):
        self.folder, self.run = folder / "jobs/t-1", run
        self.record = make_record(folder, site="local", state=State.HALTED)
        trainings.add(self.record)
        (self.folder / "metrics").mkdir(parents=True)
        for name in ("manifest.yml", "job.sbatch"):
            (self.folder / name).touch()
        (self.folder / contract.PLAN).write_text(to_json(plan_of()))
        self.known = defaultdict(list)
        """Step and value of the points that count, by name."""

    def write(self, attempt, steps, values, begins=None):
        file = MetricsFile(self.folder / contract.metrics_file(attempt, 0, Source.PROGRAM))
        if begins is not None:
            file.tell(begins, None, "training begins", EventKind.BEGIN)
        lines = []
        for step in steps:
            made = {name: finite(value) for name, value in values(step).items()}
            lines.append(MetricsLine(step, None, 1e9 + step, made))
            if len(lines) == 100:
                file.add_all(lines)
                lines = []
            for name, value in made.items():
                points = self.known[name]
                while points and points[-1][0] >= step:
                    points.pop()
                points.append((step, value))
        file.add_all(lines)

    def has_run(self):
        """Write what a first attempt that was halted leaves."""
        (self.folder / contract.submit_begin(1)).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / contract.submit_begin(1)).touch()
        begun = Status("supervisor", 0, 1, State.HALTED, started_at=1e9, heartbeat_at=1e9 + 400,
                       step=300, metrics={"loss": 0.25})  # fmt: skip
        for name, content in (
            (contract.status_file(1, "supervisor", 0), begun),
            (contract.verdict_file(1), Verdict(1, "7", State.HALTED, "x", finished_at=1e9 + 400)),
            (contract.plan_file(1), plan_of()),
        ):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(to_json(content))

    def told(self, *arguments):
        done = self.run(*arguments)
        assert done.exit_code == 0, done.output
        return done.stdout

    def csv(self, _):
        for row in csv.DictReader(io.StringIO(self.told("metrics", ONE, "--csv"))):
            yield row["name"], int(row["step"]), finite(float(row["value"]))

    def json(self, _):
        for line in self.told("metrics", ONE, "--json").splitlines():
            entry = json.loads(line)
            for name, value in entry["values"].items() if entry["kind"] == "scalar" else ():
                yield name, entry["step"], value

    def parquet(self, folder):
        self.told("metrics", ONE, "--export", f"parquet={folder}/all.parquet")
        for row in pq.read_table(folder / "all.parquet").to_pylist():
            yield row["name"], row["step"], row["value"]

    def tensorboard(self, folder):
        """Its format has floats of 32 bits."""
        self.told("metrics", ONE, "--export", f"tensorboard={folder}/tb")
        (path,) = (folder / "tb").rglob("*tfevents*")
        feed = EventFeed(path, EventParser(""), {}, lambda _: None)
        while (lines := feed.take(False)) is not None:
            for line in lines:
                for name, value in line.values.items():
                    yield name, line.step, value

    def table(self):
        rows = self.told("metrics", ONE).splitlines()[1:]
        return {row[0]: row[1:] for row in (re.split(r"\s{2,}", row.strip()) for row in rows)}

    def show(self):
        told = json.loads(self.told("show", ONE, "--json"))
        assert told["step"] == max(points[-1][0] for points in self.known.values())
        return self._guess(told)

    @staticmethod
    def _guess(told):
        (answer,) = (each for each in told["answers"] if each["key"] == "guessing")
        return answer["evidence"]

    def pages(self, trainings, *queries):
        """Return what the server answers: the curves for each query, and the evidence."""
        feed = LiveFeed(trainings, lambda name: open_session(load_site(name)))
        try:
            with served(feed) as page:
                at = f"/api/trainings/{ONE}"
                while not page.ask(at).json["metrics_known"]:  # it answers after 5 s, known or not
                    time.sleep(0.1)
                answers = [page.ask(f"{at}/curves?{query}").json for query in queries]
                first = min(points[0][0] for points in self.known.values())
                last = max(points[-1][0] for points in self.known.values())
                assert all(each["span"] == [first, last] for each in answers)
                return [each["curves"] for each in answers], self._guess(page.ask(at).json)
        finally:
            feed.close()

    def report(self, folder):
        self.told("dashboard", ONE, "--export", str(folder / "report.html"))
        (data,) = REPORT.findall((folder / "report.html").read_text())
        found = json.loads(data)
        return found["curves"][ONE]["curves"], self._guess(found["details"][ONE])


def ends(points):
    """Return first, last, lowest and highest of points; of equal values the first one."""
    known = [point for point in points if point[1] is not None]
    if not known:
        return None
    low, high = (pick(known, key=lambda point: point[1]) for pick in (min, max))
    named = {"first": known[0], "last": points[-1], "lowest": low, "highest": high}
    return {name: list(point) for name, point in named.items()}


def single(value):
    """Return a value as 32 bits hold it."""
    if value is None or abs(value) > 3.4e38:
        return None
    return struct.unpack("f", struct.pack("f", value))[0]


def by_name(points):
    found = defaultdict(list)
    for name, step, value in points:
        found[name].append((step, value))
    return found


@pytest.fixture
def faces(tmp_path, run, trainings, xdg, monkeypatch):
    for name, value in xdg.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Faces(tmp_path, run, trainings)


def check(faces, trainings, folder, lists=("csv", "json", "parquet", "tensorboard")):
    """Compare faces with what was written; return the page's curves."""
    known = faces.known
    expected = {name: ends(points) for name, points in known.items()}
    rounded = {n: [(step, single(value)) for step, value in some] for n, some in known.items()}
    for kind in lists:
        listed = by_name(getattr(faces, kind)(folder))
        assert listed == (rounded if kind == "tensorboard" else known), kind
    (page,), evidence = faces.pages(trainings, "width=400")
    report, report_evidence = faces.report(folder)
    for curves in (page, report):
        assert len(curves) == min(len(known), MOST_CURVES)
        for curve in curves:
            assert curve.get("ends") == expected[curve["name"]], curve["name"]
    for curve in page:
        check_drawn(curve, expected[curve["name"]])
    loss = expected["loss"]
    for told in (faces.show(), evidence, report_evidence):
        best = [told["best_step"], told["best"]]
        assert (told["guess"], best) == (loss["first"][1], loss["lowest"])
    table = faces.table()
    assert set(table) == set(known)
    for name, row in table.items():
        assert row[0] == readable(name, math.nan if (v := known[name][-1][1]) is None else v)
        assert int(row[3].replace(",", "")) == len(known[name])
        assert row[4] == f"{known[name][0][0]:,} to {known[name][-1][0]:,}"
    step, best = loss["lowest"]
    assert table["loss"][1:3] == [readable("loss", best), f"{step:,}"]
    legend = f"loss  ● {readable('loss', loss['last'][1])} "
    legend += f"(best {readable('loss', best)} at {step:,})"
    assert legend in faces.told("watch", ONE, "--once")
    return page


def check_drawn(curve, expected):
    """Compare the columns that are drawn with the ends."""
    low, high = curve.get("low", curve["last"]), curve.get("high", curve["last"])
    if expected is None:
        assert set(low + high) == {None}
        return
    assert min(v for v in low if v is not None) == expected["lowest"][1]
    assert max(v for v in high if v is not None) == expected["highest"][1]
    assert curve["newest"] == curve["last"][-1] == expected["last"][1]


def test_what_is_followed_to_the_end_is_what_is_listed(faces):
    faces.write(1, range(20), lambda step: {"loss": 1 / (1 + step)})
    followed = faces.told("metrics", ONE, "--follow", "--csv", "--since", "5")
    assert followed == faces.told("metrics", ONE, "--csv", "--since", "5")
    assert followed.count("\n") == 16  # with a head


@pytest.mark.parametrize(("how", "steps", "is_long"), [
    ("went back", 60, False),
    *(pytest.param(how, 2000, is_long, marks=pytest.mark.slow)
      for how in ("once", "went back", "resumed") for is_long in (False, True)),
])  # fmt: skip
def test_faces_agree(faces, trainings, tmp_path, monkeypatch, how, steps, is_long):
    monkeypatch.setattr(long_files, "LONG_BYTES", 100_000 if is_long else WHOLE)
    draw = random.Random(7)
    made = lambda step: eleven(step, steps, draw)  # noqa: E731
    faces.write(1, range(steps), made, begins=0)
    if how != "once":
        again = range(steps // 2, steps * 3 // 4)
        faces.write(*((2, again, made, steps // 2) if how == "resumed" else (1, again, made)))
    page = check(faces, trainings, tmp_path)
    assert len(page) == 11


@pytest.mark.slow
def test_faces_agree_on_a_spike_in_a_million_points(faces, trainings, tmp_path):
    steps, spike, draw = 10**6, 654_321, random.Random(7)
    faces.write(1, range(steps), lambda step: {
        "loss": 1e9 if step == spike else math.exp(-5 * step / steps) + draw.gauss(0, 0.01)
    })  # fmt: skip
    assert (faces.folder / contract.metrics_file(1, 0, Source.PROGRAM)).stat().st_size > WHOLE
    check(faces, trainings, tmp_path, lists=("csv",))
    around = [f"width=400&from={spike - far}&to={spike + far}" for far in (50_000, 100)]
    (_, (near,)), _ = faces.pages(trainings, *around)
    known = dict(faces.known["loss"])
    assert {spike - 100, spike, spike + 100} < set(near["x"]) and "low" not in near
    assert near["last"] == [known[step] for step in near["x"]]


def test_a_figure_is_the_same_number_in_every_face(faces, trainings):
    """One exchange was 52 % in `watch`, 24 % in `show` and 21.2 % in `report`."""
    values = {"step_s": 1.0, "loss": 0.25}
    faces.write(1, range(1, 301), lambda n: values | {"exchange_s": 0.6 if n <= 200 else 0.3})
    node = MetricsFile(faces.folder / contract.metrics_file(1, 0, Source.NODE))
    node.add_all([
        MetricsLine(n, 1, 1e9 + n, {"cpu_percent": 60.0 if n <= 200 else 10.0,
                                    "memory_rss_bytes_max": 2.0**29 if n == 7 else 2.0**28})
        for n in range(1, 301)
    ])  # fmt: skip
    faces.has_run()
    report, watch = faces.told("report", ONE), faces.told("watch", ONE, "--once")
    show = faces.told("show", ONE, "--all")
    used = "used 0.43 on average"
    for told in (report, watch, show):
        assert used in told and "512 MiB of memory a learner at most" in told, told
        assert "On average a step exchanges for 50 % of its time." in told
    assert re.search(r"exchanging .* 50 %$", report, re.MULTILINE)
    plain = json.loads(faces.told("show", ONE, "--json"))["use"]
    book = json.loads(faces.told("report", ONE, "--json"))
    assert plain["cpus"] == book["cpus_used"] == pytest.approx(0.4333, abs=1e-4)
    assert plain["memory_bytes"] == book["memory_used_bytes"] == 2**29
    assert plain["step_shares"]["exchange"] == book["step_shares"]["exchange"] == pytest.approx(0.5)
    (row,) = json.loads(faces.told("list", "--json"))
    assert (row["step"], row["loss"]) == (300, 0.25)
    assert "step 300, loss 0.25" in show and "step 300 " in f"{watch.splitlines()[0]} "


def test_one_filter_chooses_for_every_face(faces, trainings):
    faces.write(1, range(1, 4), lambda n: {"loss": 1.0 / n})
    trainings.reword([faces.record], "tags", lambda _: ["rates"])
    faces.has_run()
    other = replace(faces.record, training_id="other-1", name="other", job_dir="/nowhere")
    trainings.add(other)
    for command in ("watch --once", "metrics", "report", "list"):
        assert "other-1" not in faces.told(*command.split(), "--tag", "rates"), command
        assert faces.run(*command.split(), "--tag", "nothing").exit_code == 0, command
    page = faces.folder.parent.parent / "rates.html"
    faces.told("dashboard", "--tag", "rates", "--export", str(page))
    (data,) = REPORT.findall(page.read_text())
    assert [row["id"] for row in json.loads(data)["trainings"]] == [ONE]
    (by_tag,) = json.loads(faces.told("report", "--tag", "rates", "--by", "tag", "--json"))
    assert (by_tag["key"], by_tag["trainings"]) == ("rates", 1)
    assert faces.run("report", "--since", "2027-01-01").exit_code == 0
    refused = faces.run("report", ONE, "--by", "colour", "--json")
    assert refused.exit_code == 2
    error = json.loads(refused.stdout)["error"]
    assert error["message"] == "'colour' is no way to group: there are tag, state, site, name"
