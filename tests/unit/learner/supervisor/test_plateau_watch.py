"""A plateau is told once, by the node, whatever the number of attempts and of steps."""

import json
import math
import random
import shlex
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_curves import told
from node_job import Job
from scheduler_plan import make_plan

from dlctl import contract
from dlctl.contract import Notify, Plateau, State, Stopped, StopRules, VerdictKind
from dlctl.contract.measured.rates import Rates, rate_changes
from dlctl.contract.measured.trend import slope, trend
from dlctl.contract.metrics import EventKind, MetricsLine, Source, parse_line
from learner.job.guards import read_stopped, write_stopped
from learner.supervisor.oversight import plateau
from learner.supervisor.oversight.guards import Overseer
from learner.supervisor.oversight.plateau import PlateauFinder, PlateauWatch
from learner.supervisor.oversight.standstill import LEAST, find_plateau


class Training:
    """Files of metrics, and a watch of the newest attempt."""

    def __init__(self, folder):
        self.dir = folder
        (folder / contract.METRICS).mkdir()
        self.begin(1, 0)

    def begin(self, attempt, step):
        self.attempt, self.now = attempt, 0.0
        self.watch = PlateauWatch(self.dir, attempt, clock=lambda: self.now)
        begin = MetricsLine(step, event="begins", kind=EventKind.BEGIN.value)
        self.write([begin], Source.LOOP)

    def write(self, lines, source):
        path = self.dir / contract.metrics_file(self.attempt, 0, source)
        with path.open("ab") as file:
            file.writelines(line.encode() for line in lines)

    def look(self):
        self.now += 100
        return self.watch.look()

    def train(self, steps, value, source=Source.LOOP):
        """Measure a loss that falls to a value within some steps; look after each."""
        told = []
        for i, step in enumerate(steps):
            loss = value + math.exp(-i / 3)
            self.write([MetricsLine(step, 1, 1.0, {"validation_loss": loss})], source)
            told += [self.look()]
        return [each for each in told if each is not None]

    def events(self):
        lines = []
        for n in range(1, self.attempt + 1):
            path = self.dir / contract.metrics_file(n, 0, Source.JOB)
            lines += path.read_bytes().splitlines() if path.exists() else []
        return [line for text in lines if (line := parse_line(text)) is not None]


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


@pytest.mark.parametrize("source", [Source.LOOP, Source.PROGRAM, Source.LOG])
def test_a_plateau_is_told_once_and_again_after_a_better_value(training, source):
    (told,) = training.train(range(1, 60), 1.0, source)
    (event,) = training.events()
    assert (event.kind, event.texts["metric"]) == ("plateau", "validation loss")
    assert 10 <= event.step <= 20 and event.step == told.plateau.since_step
    assert event.event == f"plateau: validation loss has hardly improved since step {event.step}"
    assert event.texts["method"] and event.values["level"] == pytest.approx(1.0, abs=0.1)
    assert not training.train(range(60, 90), 1.0 - 0.0001, source)
    assert len(training.train(range(90, 200), 0.2, source)) == 1


def test_a_changed_rate_begins_anew(training):
    for step in range(1, 121):
        values = {"validation_loss": 1.0, "learning_rate": 0.1 if step <= 60 else 0.01}
        training.write([MetricsLine(step, 1, 1.0, values)], Source.LOOP)
        training.look()
    first, second = training.events()
    assert first.step < 20 and 60 < second.step < 80


def test_a_plateau_is_found_of_a_program_that_tells_only_epochs():
    watch = PlateauFinder()
    for epoch in range(1, 31):
        watch.add(Source.PROGRAM, MetricsLine(epoch=epoch, values={"loss": 1 / min(epoch, 8)}))
    found = watch.look()
    assert found is not None and 8 <= found.plateau.since_step <= 12


def test_the_newest_step_is_that_of_all_sources():
    watch = PlateauFinder()
    watch.add(Source.PROGRAM, MetricsLine(80, values={"loss": 1.0}))
    watch.add(Source.LOG, MetricsLine(3, values={"memory": 1.0}))  # it is read afterwards
    for step in range(81, 101):
        watch.add(Source.PROGRAM, MetricsLine(step, values={"loss": 1.0}))
    watch.add(Source.LOG, MetricsLine(4, values={"memory": 1.0}))
    told = watch.look()
    assert told is not None and told.step == 100


def test_the_next_attempt_does_not_tell_again_unless_the_plateau_is_undone(training):
    assert training.train(range(1, 60), 1.0)
    training.begin(2, 40)
    flat = [MetricsLine(step, 1, 1.0, {"validation_loss": 1.0}) for step in range(41, 80)]
    training.write(flat, Source.LOOP)
    assert training.look() is None and len(training.events()) == 1
    training.begin(3, 5)  # before the plateau
    assert len(training.train(range(6, 60), 1.0)) == 1


@pytest.mark.parametrize("begin", [40, 59])
@pytest.mark.parametrize(("rate", "ends"), [(0.1, True), (0.01, False)])
def test_a_plateau_ends_the_attempt_after_one_that_it_could_not_end(training, rate, ends, begin):
    """Unless that trains at another rate."""

    def train(step, rate):
        values = {"validation_loss": 1.0, "learning_rate": rate}
        training.write([MetricsLine(step, 1, 1.0, values)], Source.LOOP)
        return training.look()

    assert any([train(step, 0.1) for step in range(60)])
    training.begin(2, begin)
    rule = Plateau("validation_loss", 0, "lower")
    training.watch = PlateauWatch(training.dir, 2, rule, clock=lambda: training.now)
    found = [train(step, rate) for step in range(begin + 1, begin + 4)]
    assert [each is not None for each in found] == [ends, False, False]


@pytest.mark.slow
def test_a_million_points_cost_little_memory_and_hide_no_trend():
    watch, draw = PlateauFinder(), random.Random(3)
    for step in range(100_000):
        loss = 2 - step / 100_000 + draw.gauss(0, 0.5)
        watch.add(Source.PROGRAM, MetricsLine(step, 1, 1.0, {"loss": loss}))
        if step % 10_000 == 9_999:
            assert watch.look() is None
    (curve,) = watch._curves.values()
    assert len(curve.points) <= 240
    for step in range(100_000, 400_000):
        value = {"loss": 1 + draw.gauss(0, 0.5), f"other {step}": 1.0}
        watch.add(Source.PROGRAM, MetricsLine(step, 1, 1.0, value))
    told = watch.look()
    assert told is not None and 80_000 <= told.plateau.since_step <= 120_000
    assert len(watch._signs) <= plateau._MOST_NAMES


def test_lines_are_read_bit_by_bit_and_a_half_one_waits(training):
    path = training.dir / contract.metrics_file(1, 0, Source.LOOP)
    lines = [MetricsLine(n, 1, 1.0, {"validation_loss": 1.0}).encode() for n in range(1, 40)]
    text = b"".join([*lines[:20], b"{broken\n", b"\x00\xff\n", *lines[20:]])
    told = []
    for begin in range(0, len(text), 97):
        with path.open("ab") as file:
            file.write(text[begin : begin + 97])
        told.append(training.look())
    assert sum(each is not None for each in told) == 1


ODD = [1.0, 1.7e308, -1.7e308, 5e-324, 0.0, None, 10**300, 10**400]


@given(
    lines=st.lists(
        st.tuples(
            st.integers(0, 60) | st.sampled_from([0, 2**52]),
            st.sampled_from(ODD) | st.floats(0, 1),
            st.sampled_from([0.1, 0.0, -1.0, 1e308, None]),
            st.sampled_from(["", "begin", "verdict"]),
        ),
        max_size=80,
    )
)
def test_any_line_is_survived_and_each_event_can_be_written(lines):
    """An error here would end the supervisor."""
    watch = PlateauFinder()
    for i, (step, value, rate, kind) in enumerate(lines):
        found = {"step": step if i % 3 else i, "time": 1.0, "loss": value, "lr": rate}
        text = json.dumps(found | ({"event": "x", "kind": kind} if kind and not i % 7 else {}))
        line = parse_line(text)
        assert line is not None
        watch.add(Source.PROGRAM, line)
        if (told := watch.look()) is not None:
            event = parse_line(watch.line(told).encode())
            assert event is not None
            watch.remember(event)


def test_a_mistake_in_the_watch_ends_no_attempt(training, monkeypatch):
    monkeypatch.setattr(PlateauFinder, "look", lambda _: 1 / 0)
    training.write([MetricsLine(1, 1, 1.0, {"loss": 1.0})], Source.LOOP)
    assert training.look() is None and training.look() is None


def overseer(folder, rule, steps=1, **framework):
    (folder / contract.attempt_dir(1)).mkdir(parents=True)
    (folder / contract.METRICS).mkdir()
    source = Source.LOOP if framework["job"] else Source.PROGRAM
    values = [{"accuracy": 0.5, "loss": 2.0 - step / 100} for step in range(100)]
    with (folder / contract.metrics_file(1, 0, source)).open("ab") as file:
        file.writelines(
            MetricsLine(n, 1 + n // steps, 1.0, dict(v)).encode() for n, v in enumerate(values)
        )
    plan = make_plan()
    plan = replace(plan, stop=StopRules(plateau=rule) if rule else None)
    return Overseer(
        replace(plan, framework=replace(plan.framework, **framework)), folder, 1,
        tell=lambda told: (folder / "told").touch(),
    )  # fmt: skip


PROGRAM = {"job": None, "command": "python train.py"}


@pytest.mark.parametrize(
    ("rule", "framework", "ends", "tells"),
    [
        (None, PROGRAM, False, True),
        (Plateau(), PROGRAM, True, False),
        (Plateau(), {"job": "train.py", "command": None}, False, False),
        (Plateau("loss", 0, "lower"), PROGRAM, False, False),
        (Plateau("accuracy", 0, "higher"), PROGRAM, True, False),
        (Plateau("accuracy", 90, "higher"), PROGRAM, False, True),
    ],
)
def test_who_ends_at_a_plateau(
    tmp_path, monkeypatch, rule, framework,
    ends, tells,
):  # fmt: skip
    """The accuracy stands still and the loss falls; the loop itself ends after its epoch."""
    monkeypatch.setattr(plateau, "SOONEST_S", 0.0)
    request = overseer(tmp_path, rule, **framework).look(list)
    assert (request is not None) is ends
    if request is not None:
        assert (request.action, request.kind) == ("halt", VerdictKind.PLATEAU)
        assert request.reason.startswith("accuracy has hardly improved since step ")
    is_kept = (tmp_path / contract.stopped_file(1)).exists()
    assert is_kept is (ends or framework["job"] is not None)
    assert (tmp_path / "told").exists() is tells


@pytest.mark.parametrize(("steps", "ends"), [(10, True), (20, False), (100, False)])
def test_the_loop_ends_by_the_values_of_eight_epochs_and_not_of_steps(
    tmp_path, monkeypatch, steps, ends
):
    """The first steps of many trainings stand still, and the loop would end after that epoch."""
    monkeypatch.setattr(plateau, "SOONEST_S", 0.0)
    overseer(tmp_path, Plateau(), steps, job="train.py", command=None).look(list)
    assert (tmp_path / contract.stopped_file(1)).exists() is ends


@pytest.mark.parametrize(("every", "ends"), [(1, True), (40, True), (41, False)])
def test_training_data_ends_nothing_before_the_first_validation(every, ends):
    watch = PlateauFinder(by_epochs=every)
    for epoch in range(1, 42):
        watch.add(Source.LOOP, MetricsLine(epoch, epoch, 1.0, {"loss": 1.0}))
    assert (watch.look() is not None) is ends


def test_a_plateau_hides_no_jump_by_which_the_loop_has_ended(tmp_path, monkeypatch):
    """Its kind decides that the next attempt goes on, and which batches it leaves out."""
    monkeypatch.setattr(plateau, "SOONEST_S", 0.0)
    watching = overseer(tmp_path, Plateau(), job="train.py", command=None)
    jump = Stopped(str(VerdictKind.LOSS_SPIKE), 99, "the loss jumped")
    write_stopped(tmp_path, 1, jump)
    assert watching.look(list) is None
    assert read_stopped(tmp_path, 1) == jump


PYTHON = shlex.quote(sys.executable)
PROGRAM_THAT_STANDS_STILL = """
import pathlib, time
from learner.ddl import log
told = pathlib.Path("..", "told")
step = 0
while not told.exists() or step < 200:
    step += 1
    log(step, accuracy=min(0.9, 0.05 * step))
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_running_training_tells_of_its_plateau_and_goes_on(tmp_path):
    notify = Notify(["plateau"], command="cat >> ../told")
    job = Job(tmp_path, f"{PYTHON} program.py", notify=notify)
    (job.code / "program.py").write_text(PROGRAM_THAT_STANDS_STILL)
    verdict = job.run()
    assert verdict.state is State.COMPLETED, verdict
    notice = json.loads((job.dir / "told").read_text())
    assert notice["event"] == "plateau" and notice["state"] == "TRAINING"
    assert notice["reason"].startswith("still running; accuracy has hardly improved since step ")
    (file,) = (job.dir / contract.NOTICES).iterdir()
    assert file.name == f"0-plateau-{notice['since_step']}.command"


@pytest.mark.parametrize("code", [0, 3])
def test_only_a_training_that_completes_has_a_plateau_of_which_nobody_is_told(tmp_path, code):
    """The next attempt tells of no plateau that is in the metrics."""
    job = Job(tmp_path, f"{PYTHON} program.py", notify=Notify(["plateau"], command="true"))
    lines = "from learner.ddl import log\nfor n in range(60): log(n, accuracy=0.5)\n"
    (job.code / "program.py").write_text(f"{lines}raise SystemExit({code})")
    job.run()
    text = (job.dir / contract.metrics_file(1, 0, Source.JOB)).read_text()
    is_told = (job.dir / contract.NOTICES).exists()
    assert (EventKind.PLATEAU.value in text) is (code == 0 or is_told)


@pytest.mark.parametrize(("group", "is_told"), [("trials", False), ("", True)])
def test_the_best_value_of_a_search_stands_still_without_a_plateau(training, group, is_told):
    """Each value is of another trial: that the best one stays says nothing of a training."""
    told = []
    for step in range(1, 120):
        values = {"loss": 1 + step % 7, "best loss": 1.0 + math.exp(-step / 3)}
        training.write([MetricsLine(step, None, 1.0, values, group=group)], Source.PROGRAM)
        told.append(training.look())
    assert any(told) is is_told


def test_who_looks_after_each_value_is_not_misled():
    figures = told(100)
    assert figures.precision > 0.97 and figures.recall > 0.9, figures


def test_a_plateau_begins_where_the_curve_bends():
    plateau = find_plateau([(step, min(4.0, step * 0.1)) for step in range(100)], 4.0)
    assert plateau is not None
    assert 38 <= plateau.since_step <= 42


def test_a_curve_that_gets_worse_is_on_a_plateau():
    assert find_plateau([(i, -float(i)) for i in range(30)], 0.0) is not None
    assert find_plateau([(i, float(i)) for i in range(30)], 29.0) is None


def test_few_values_tell_nothing():
    flat = [(i, 1.0) for i in range(LEAST)]
    assert find_plateau(flat, 1.0) is not None and find_plateau(flat[1:], 1.0) is None


def test_the_trend_of_noise_is_none_and_of_a_rise_is_sure():
    draw = random.Random(4)
    noise = [draw.gauss(0, 1) for _ in range(60)]
    assert abs(trend(noise)) < 1.64
    assert trend([v + i / 5 for i, v in enumerate(noise)]) > 3
    assert trend([2.0] * 50) == 0.0
    assert slope([(i, 3.0 * i + (100 if i == 7 else 0)) for i in range(20)]) == pytest.approx(3.0)


def test_the_rate_is_changed_by_steps_and_not_by_a_schedule():
    stepped = [(i, 0.1 if i < 50 else 0.01) for i in range(100)]
    assert [(c.step, c.before, c.after) for c in rate_changes(stepped)] == [(49, 0.1, 0.01)]
    assert rate_changes([(i, 0.1 / (1 + i)) for i in range(100)]) == []


def test_what_is_done_again_changes_no_rate_twice():
    rates = Rates()
    for step in range(60):
        rates.add(step, 0.1 if step < 50 else 0.01)
    rates.drop_after(40)
    for step in range(41, 100):
        rates.add(step, 0.1 if step < 70 else 0.01)
    assert [change.step for change in rates.changes()] == [69]
