"""The collector as a process: beside a learner, over attempts, and whatever goes wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from event_files import beginning, event, scalar
from node_job import Job, alive, wait_until
from repository import REPOSITORY
from zygote import light

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.measured.utilisation import MEMORY_RSS_BYTES, PROCESSES
from dlctl.contract.metrics import Source, parse_line
from learner.collect import state as collector_state
from learner.collect.collector import Collector, Reported
from learner.collect.state import Complaints
from learner.collect.usage.sampler import Sampler

GROUPS = {
    "train": {
        "regex": "it %{INT:i} loss=%{FLOAT:loss}",
        "scalars": {"loss": {"type": "FLOAT", "value": "$loss"}},
        "etimes": {"iteration": {"type": "INT", "value": "$i"}},
    }
}
REGEX = {"type": "regex_extractor", "groups": GROUPS}


def lines_of(directory, source=Source.LOG, attempt=1, rank=0):
    path = directory / contract.metrics_file(attempt, rank, source)
    found = [parse_line(text) for text in path.read_text().splitlines()] if path.exists() else []
    assert None not in found
    return found


def losses(directory, **which):
    return [(line.step, line.values["loss"]) for line in lines_of(directory, **which)]


class Beside:
    """A collector without watchdog or learner, in a job directory."""

    def __init__(self, job):
        self.job = job
        self.dir = job.dir
        self.log = job.dir / contract.learner_log(1, 0)
        self.log.touch()
        self.process = None

    def start(self, attempt=1, rank=0):
        folder = self.dir / contract.attempt_dir(attempt)
        folder.mkdir(exist_ok=True)
        if attempt > 1:
            shutil.copy(self.dir / contract.PLAN, self.dir / contract.plan_file(attempt))
        self.log = self.dir / contract.learner_log(attempt, rank)
        self.log.touch()
        argv = [self.dir, str(attempt), str(rank), str(os.getpid())]
        self.process = light().start(
            "-m", "learner.collect", *argv, env=self.job.env, stdin=subprocess.PIPE
        )

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0

    def write(self, text, path=None):
        path = path or self.log
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)


@pytest.fixture
def beside(tmp_path):
    made = []

    def make(**settings):
        made.append(Beside(Job(tmp_path, "true", evaluation_metrics=settings or REGEX)))
        (made[-1].dir / contract.LOGS).mkdir()
        return made[-1]

    yield make
    for collector in made:
        if collector.process is not None and collector.process.poll() is None:
            collector.process.kill()
            collector.process.wait()
        if collector.process is not None and not collector.process.stdin.closed:
            collector.process.stdin.close()


# Beside a learner --------------------------------------------------------------------------------


def test_a_training_has_parsed_and_measured_lines(tmp_path):
    lines = "it 1 loss=0.1\\nit 2 loss=0.2\\nit 3 loss=nan\\n"
    metrics = f"{tmp_path}/jobs/*/metrics"
    command = (
        f"printf '{lines}it 4 loss=0.5'; "
        f"until cat {metrics}/1-0-log.jsonl 2>/dev/null | grep -q .; do sleep 0.05; done"
    )
    job = Job(tmp_path, command, evaluation_metrics=REGEX)
    assert job.run().state is State.COMPLETED
    assert losses(job.dir) == [(1, 0.1), (2, 0.2), (3, None), (4, 0.5)]
    (line,) = lines_of(job.dir, Source.NODE)
    assert line.values[MEMORY_RSS_BYTES] > 0 and 1 <= line.values[PROCESSES] <= 4
    assert "dlctl" not in job.log()
    state = json.loads((job.dir / contract.collector_state(0)).read_text())
    assert list(state["files"]) == [contract.learner_log(1, 0)]


def test_a_complaint_has_a_line_of_its_own(tmp_path):
    log = tmp_path / "learner-0.log"
    log.write_bytes(b"it 14 loss=0.1")
    complaints = Complaints(log)
    complaints.say("one")
    complaints.say("two")
    told = b"it 14 loss=0.1\ndlctl: WARNING: one\ndlctl: WARNING: two\n"
    assert log.read_bytes() == told
    log.write_bytes(b"")
    Complaints(log).say("one")
    assert log.read_bytes() == b"dlctl: WARNING: one\n"


def test_a_users_parser_is_run(tmp_path):
    metrics = {"type": "python", "parser": "my_parser.py"}
    job = Job(tmp_path, "echo loss 0.5", evaluation_metrics=metrics)
    job.write(
        "my_parser.py",
        "def parse(lines):\n    return [{'step': 3, 'loss': float(l.split()[1])} for l in lines]\n",
    )
    assert job.run().state is State.COMPLETED
    assert losses(job.dir) == [(3, 0.5)]


def test_a_collector_that_can_not_start_costs_a_sentence(tmp_path):
    groups = {"bad": {"regex": "(", "scalars": {}, "etimes": {}}}
    job = Job(tmp_path, "true", evaluation_metrics={"type": "regex_extractor", "groups": groups})
    assert job.run().state is State.COMPLETED
    assert job.log().count("dlctl: WARNING: evaluation_metrics can't be used: ") == 1


# Alone -------------------------------------------------------------------------------------------


class Broken:
    """Parsers with a mistake."""

    def look(self, until):
        raise KeyError("mistake")

    finish = look


def test_a_mistake_in_a_parser_costs_only_the_parsed_metrics(tmp_path):
    said, samples = [], []
    reading, writing = os.pipe()

    class Probe:
        def sample(self):
            samples.append(1)
            if len(samples) == 2:
                os.close(writing)
            return {"n": 1.0}

    lines = []
    sampler = Sampler([Probe()], lines.append)
    Collector(tmp_path, sampler, Broken(), said.append).run(reading)
    os.close(reading)
    assert len(samples) == 2 and [line.values["n"] for line in lines] == [1.0]
    assert len(said) == 1 and "parsed metrics are missing from here on: KeyError" in said[0]


def test_lines_that_came_too_fast_to_be_read_are_told(tmp_path):
    """A program's losses stood behind 25 MB of other lines: nobody said that they were not read."""
    reading, writing = os.pipe()
    os.close(writing)
    unread = SimpleNamespace(look=lambda until: True, finish=lambda until: False)
    said = []
    Collector(tmp_path, Sampler([], lambda line: None), unread, said.append).run(reading)
    os.close(reading)
    assert said == ["the program wrote faster than its lines can be read for metrics: those of its "
                    "last lines are missing"]  # fmt: skip


def test_it_ends_with_its_watchdog_but_by_no_signal(beside):
    collector = beside()
    collector.start()
    collector.write("it 1 loss=0.5\n")
    wait_until(lambda: losses(collector.dir))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGHUP):
        collector.process.send_signal(number)
    collector.write("it 2 loss=0.5\nit 3 loss=0.5")
    collector.end()
    assert [step for step, _ in losses(collector.dir)] == [1, 2, 3]
    assert not alive(collector.process.pid)


def test_it_ends_if_the_job_directory_vanishes(beside):
    collector = beside()
    collector.start()
    wait_until(lambda: (collector.dir / "metrics").exists())
    collector.dir.rename(collector.dir.with_name("gone"))
    assert collector.process.wait() == 0
    assert not collector.dir.exists()


def test_files_live_on_over_attempts_and_are_read_on(beside):
    collector = beside()
    shared = collector.dir / contract.LOGS / "training-log.txt"
    collector.start()
    collector.write("it 1 loss=0.5\nit 2 lo", shared)
    wait_until(lambda: losses(collector.dir))
    collector.end()
    collector.write("ss=0.5\nit 3 loss=0.5\n", shared)
    collector.start(attempt=2)
    collector.write("it 4 loss=0.5\n")
    collector.end()
    assert [step for step, _ in losses(collector.dir)] == [1]
    assert sorted(step for step, _ in losses(collector.dir, attempt=2)) == [2, 3, 4]
    state = json.loads((collector.dir / contract.collector_state(0)).read_text())
    assert set(state["files"]) == {contract.learner_log(2, 0), "logs/training-log.txt"}


def test_each_learner_has_its_own_log_and_rank_0_the_shared_files(beside):
    collector = beside()
    collector.write("it 1 loss=0.5\n", collector.dir / contract.LOGS / "a" / "user_log.txt")
    for rank in (1, 0):
        collector.start(rank=rank)
        collector.write(f"it 2 loss=0.{rank + 1}\n")
        collector.end()
    assert losses(collector.dir, rank=1) == [(2, 0.2)]
    assert sorted(losses(collector.dir)) == [(1, 0.5), (2, 0.1)]
    by_step = {line.step: line.texts for line in lines_of(collector.dir)}
    assert by_step == {1: {"subid": "a"}, 2: {}}


def test_by_default_rank_0_s_log_is_read_until_the_program_reports_itself(beside):
    collector = beside(type="auto", default=True)
    for rank in (1, 0):
        collector.start(rank=rank)
        collector.write("step 2: loss 0.5\n")
        wait_until(lambda r=rank: losses(collector.dir, rank=r) or r)
        if rank == 0:
            path = contract.metrics_file(1, 0, Source.PROGRESS)
            collector.write("{}\n", collector.dir / path)
            collector.write("step 3: loss 0.4\n")
        collector.end()
    assert losses(collector.dir) == [(2, 0.5)]
    assert not (collector.dir / contract.metrics_file(1, 1, Source.LOG)).exists()


def test_after_a_kill_nothing_is_double_or_missing(beside):
    collector = beside()
    collector.start()
    collector.write("it 1 loss=0.5\n")
    state = collector.dir / contract.collector_state(0)
    wait_until(state.exists)
    # Within ten seconds of the first state there is no second one.
    collector.write("it 2 loss=0.5\n")
    wait_until(lambda: len(losses(collector.dir)) == 2)
    collector.process.kill()
    collector.process.wait()
    collector.process.stdin.close()
    collector.start()
    collector.write("it 3 loss=0.5\n")
    collector.end()
    assert [step for step, _ in losses(collector.dir)] == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "nonsense", "[1]", '{"files": 5}', '{"files": {"x": 1}}'])
def test_a_broken_state_only_means_reading_again(beside, content):
    collector = beside()
    state = collector.dir / contract.collector_state(0)
    state.parent.mkdir()
    state.write_text(content)
    collector.start()
    collector.write("it 1 loss=0.5\n")
    collector.end()
    assert losses(collector.dir) == [(1, 0.5)]


def test_event_files_of_two_folders(beside):
    collector = beside(type="tensorboard")
    for place, step in (("state/logs/tb/train", 1), ("logs/run-a/test", 2), ("logs", 3)):
        folder = collector.dir / place
        folder.mkdir(parents=True, exist_ok=True)
        content = beginning() + event(step, scalar("loss", 0.5))
        (folder / "events.out.tfevents.1").write_bytes(content)
    collector.start()
    collector.end()
    found = {line.step: line for line in lines_of(collector.dir)}
    assert {step: line.group for step, line in found.items()} == {1: "train", 2: "test", 3: ""}
    assert found[2].texts == {"subid": "run-a"}


def test_a_link_leads_nowhere(beside, tmp_path):
    collector = beside()
    (tmp_path / "training-log.txt").write_text("it 1 loss=0.5\n")
    (collector.dir / contract.LOGS / "training-log.txt").symlink_to(tmp_path / "training-log.txt")
    (collector.dir / contract.LOGS / "around").symlink_to(collector.dir)
    collector.start()
    collector.end()
    assert losses(collector.dir) == []


def test_it_imports_neither_numpy_nor_torch():
    code = "import learner.collect.__main__, learner.collect.parsed_files, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "torch", "mpi4py", "h5py", "pynvml", "psutil", "yaml", "pydantic"}


def test_a_collector_that_was_cut_off_does_not_undo_the_next_ones_state(tmp_path):
    path, outputs = tmp_path / "0.state", [tmp_path / f"{n}-0-log.jsonl" for n in (1, 2)]
    cut_off = collector_state.State(path, outputs[0], 1)
    cut_off.write()
    collector_state.State(path, outputs[1], 2).write()
    outputs[1].write_text("a line\n")
    cut_off.write()
    assert json.loads(path.read_text())["attempt"] == 2
    path.unlink()  # where attempt 2 stopped is unknown: nothing is read twice
    late_one = collector_state.State(path, outputs[1], 2)
    assert late_one.files == {} and outputs[1].read_text() == "a line\n"


def test_values_that_only_a_report_has_become_lines(tmp_path):
    path, lines = tmp_path / "progress.json", []
    reported = Reported(path, lines.append)
    for told in (
        None, "[]", '{"metrics": {"loss": "x"}}', '{"step": 3, "metrics": {"loss": 0.5}}', None,
        '{"step": 4, "metrics": {"loss": 0.4}, "listed": true}', '{"done": 0.5}',
        '{"epoch": 2, "metrics": {"loss": null, "step": 1.5}}',
    ):  # fmt: skip
        if told is not None:
            path.write_text(told)
        reported.look()
    found = [(line.step, line.epoch, line.values) for line in lines]
    assert found == [(3, None, {"loss": 0.5}), (-1, 2, {"loss": None, "step_": 1.5})]
