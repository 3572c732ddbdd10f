"""A client that stays is a light guest of the log-in host: counted there, over a real sshd."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from login_host import NAMESPACE, Trainings, can_count, counted, init_of
from login_side import make_site
from ssh_servers import Sshd, block, start_sshd

from dlctl.cli import logs as following
from dlctl.contract import State
from dlctl.dashboard.live import LiveFeed
from dlctl.files.small_files import read_texts
from dlctl.lifecycle import Session, read_queue
from dlctl.live import sites, training
from dlctl.live.sites import Live
from dlctl.record import RecordStore
from dlctl.terminal.watch import Watched

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_count(), reason="no PID namespaces: unshare --pid"),
]


@dataclass
class Guests:
    """A log-in host, its trainings, and those who look at them."""

    setup: object
    server: Sshd
    folder: Path
    lasting: object

    def trainings(self, count: int = 1, state: State = State.TRAINING) -> Trainings:
        made = Trainings(self.folder / "site", count, state)
        self.store = RecordStore(self.folder / "record.db")
        for record in made.records:
            self.store.add(record)
        return made

    def open(self, trainings: Trainings, kind: str = "ssh") -> Session:
        config = block(self.setup, "counting", self.server,
                       known=self.server.known_by(self.folder / "known"))  # fmt: skip
        if kind == "openssh":
            transport = self.lasting("counting", config)
        else:
            transport = self.setup.open("counting", config=config)
        return trainings.session(make_site(root=str(trainings.root)), transport)

    def counted(self):
        return counted(init_of(self.server.process))


@pytest.fixture
def guests(ssh_setup, lasting, tmp_path):
    server = start_sshd(tmp_path / "server", [ssh_setup.key], within=NAMESPACE)
    yield Guests(ssh_setup, server, tmp_path, lasting)
    server.stop()


@pytest.fixture
def printed(monkeypatch, wait_until):
    """The output of all followers; `until` waits for a text."""

    class Printed:
        text = ""

        def until(self, words: str) -> None:
            wait_until(lambda: words in self.text, what=words)

    seen = Printed()

    def take(pieces, lines=None):
        for piece in pieces:
            seen.text += piece.content.decode()

    monkeypatch.setattr(following, "print_pieces", take)
    return seen


@pytest.fixture
def follow(guests, printed):
    """Start following a training; it ends before the test does."""
    with ExitStack() as ends:

        def start(trainings: Trainings, kind: str = "ssh") -> None:
            session = guests.open(trainings, kind)
            record = trainings.records[0]
            thread = threading.Thread(
                target=lambda: following.follow(session, record, guests.store)
            )
            thread.start()
            ends.callback(session.close)
            ends.callback(thread.join)
            ends.callback(trainings.end)

        yield start


@pytest.mark.parametrize("kind", ["ssh", "openssh"])
def test_a_follower_of_a_job_that_lives_starts_no_process(guests, printed, follow, kind):
    jobs = guests.trainings()
    follow(jobs, kind)
    for number in range(3):  # the first looks compress what they bring, and open files
        jobs.log(f"early {number}\n")
        printed.until(f"early {number}\n")
    with guests.counted() as found:
        for number in range(20):
            jobs.beat()
            jobs.log(f"line {number}\n")
            printed.until(f"line {number}\n")
    assert (found, jobs.squeue_calls) == ([0], 0)


def test_a_job_whose_heartbeat_stops_is_asked_about_and_its_end_is_told(
    guests, printed, follow, wait_until
):
    jobs = guests.trainings()
    follow(jobs)
    jobs.log("hello\n")
    printed.until("hello\n")
    assert jobs.squeue_calls == 0
    jobs.queue({"1": "CANCELLED"})
    jobs.beat(ago_s=30)
    wait_until(lambda: guests.store.find("t-0").state.final, what="the end")
    assert guests.store.find("t-0").state is State.CANCELLED


def test_a_dashboard_of_many_trainings_that_live_starts_no_process(guests, wait_until):
    jobs = guests.trainings(12)
    feed = LiveFeed(guests.store, lambda _: guests.open(jobs))

    def show(step: int) -> None:
        jobs.beat()
        for number in range(12):
            jobs.measure(step, number)
        wait_until(lambda: {row["step"] for row in feed.trainings()} == {step}, what=f"step {step}")

    try:
        with feed.look([]):
            show(1)
            show(2)
            with guests.counted() as found:
                for step in range(3, 9):
                    show(step)
        assert (found, jobs.squeue_calls) == ([0], 0)
    finally:
        feed.close()


def watch(guests, jobs):
    """Return what `dlctl watch` looks with, at trainings that have a checkpoint."""
    for record in jobs.records:
        folder = Path(record.job_dir, "checkpoints")
        folder.mkdir()
        (folder / "model.pt").write_text("weights")
    return Watched(guests.store, lambda _: guests.open(jobs), jobs.records)


@pytest.fixture
def details_at_once(monkeypatch):
    for name in ("_DETAILS_EVERY_S", "_QUIET_DETAILS_EVERY_S"):
        monkeypatch.setattr(training, name, 0.0)


def looked(guests, looking, jobs=None):
    """Look twice, and five times more; return how many processes these five have started."""
    with closing(looking):
        looking.look()
        looking.look()
        with guests.counted() as found:
            for _ in range(5):
                if jobs:
                    jobs.beat()
                looking.look()
    return found[0]


@pytest.mark.usefixtures("details_at_once")
def test_a_watch_of_many_trainings_reads_their_checkpoints_by_a_few_processes(guests):
    jobs = guests.trainings(12)
    watched = watch(guests, jobs)
    found = looked(guests, watched.live, jobs)
    assert {c["name"] for t in watched.trainings.values() for c in t.details["checkpoints"]} == {
        "model.pt"
    }
    assert found <= 5 * 5 and jobs.squeue_calls == 0  # two of the shell's own, find, and its shell


@pytest.mark.usefixtures("details_at_once")
def test_a_watch_of_a_training_that_waits_reads_its_checkpoints_once(guests):
    """36 processes a minute, of which nothing could come."""
    jobs = guests.trainings(state=State.PENDING)
    jobs.queue({"1": "PENDING"})
    watched = watch(guests, jobs)
    assert looked(guests, watched.live) == 0
    assert watched.live.records[0].state is State.PENDING


def test_a_list_that_stays_starts_no_process_while_trainings_live(guests, monkeypatch):
    monkeypatch.setattr(sites, "STATE_EVERY_S", 0.0)
    jobs = guests.trainings(12)
    live = Live(guests.store, lambda _: guests.open(jobs), guests.store.all)
    assert (looked(guests, live, jobs), jobs.squeue_calls) == (0, 0)


def test_a_question_about_the_queue_starts_squeue_and_nothing_more(guests):
    jobs = guests.trainings(state=State.PENDING)
    jobs.queue({"1": "PENDING"})
    session = guests.open(jobs).stay()
    with closing(session):
        read_texts(session.transport, [])  # the shell is there
        read_queue(session)
        with guests.counted() as found:
            answers = [read_queue(session) for _ in range(5)]
    assert [(job.job_id, problem) for _, (job,), problem in answers] == [("1", "")] * 5
    # A process of the shell, squeue, and its `cat`.
    assert found == [5 * 3] and jobs.squeue_calls == 6
