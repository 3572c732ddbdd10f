"""Any interleaving of taking, reporting, dying and restoring leaves each sample to one learner."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from simulated_learners import Fuse, Killed, World

from psrv.cursor.base import Chunk, CursorError, read_state
from psrv.cursor.table import LEASES


def positions(chunk: Chunk, samples: int) -> range:
    first = chunk.pass_number * samples
    return range(first + chunk.start, first + chunk.stop)


class Learners(RuleBasedStateMachine):
    """The model: `history` counts what was reported done, `held` has the living's chunks."""

    @initialize(samples=st.integers(1, 40), passes=st.integers(1, 3))
    def start(self, samples: int, passes: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.world = World(Path(self.folder.name) / "cursor", samples, passes)
        self.samples, self.total = samples, samples * passes
        self.history: Counter[int] = Counter()
        self.held: dict[Any, list[Chunk]] = {}
        self.expelled: list[Any] = []
        self.reported: dict[Any, int] = {}
        self.saved: tuple[dict[str, Any], Counter[int]] | None = None
        self.join()

    @precondition(lambda self: len(self.held) < 4)
    @rule()
    def join(self) -> None:
        learner = self.world.join()
        self.held[learner], self.reported[learner] = [], 0

    @precondition(lambda self: self.held)
    @rule(data=st.data(), samples=st.integers(1, 50), report=st.booleans())
    def take(self, data: st.DataObject, samples: int, report: bool) -> None:
        learner = data.draw(st.sampled_from(list(self.held)))
        mine = self.held[learner]
        done = (
            data.draw(st.sampled_from(mine)) if mine and (report or len(mine) == LEASES) else None
        )
        self._keep(learner, learner.take(samples, done), done, samples)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        learner = data.draw(st.sampled_from([who for who, mine in self.held.items() if mine]))
        done = data.draw(st.sampled_from(self.held[learner]))
        learner.done(done)
        self._count(learner, done)

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self._bury(data.draw(st.sampled_from(list(self.held))))

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data(), samples=st.integers(1, 50), store=st.integers(0, 60))
    def die_at_a_store(self, data: st.DataObject, samples: int, store: int) -> None:
        learner = data.draw(st.sampled_from(list(self.held)))
        mine = self.held[learner]
        done = data.draw(st.sampled_from(mine)) if mine else None
        learner.fuse.left = store
        try:
            taken = learner.take(samples, done)
        except Killed:
            self.world.kill(learner)
            del self.held[learner]
            other = next(iter(self.held))
            (entry,) = [e for e in other.learners() if e.learner == learner.learner]
            assert not entry.alive
            if entry.reported > self.reported[learner]:
                assert entry.reported == self.reported[learner] + 1
                self.history.update(positions(done, self.samples))
        else:
            learner.fuse.left = None
            self._keep(learner, taken, done, samples)

    @precondition(lambda self: len(self.held) > 1)
    @rule(data=st.data(), store=st.integers(0, 60))
    def one_is_expelled_and_lives(self, data: st.DataObject, store: int) -> None:
        """If the expelling process is killed at some store, it is tried again."""
        learner = data.draw(st.sampled_from(list(self.held)))
        fuse = Fuse()
        fuse.left = store
        try:
            self.world.expel(learner, fuse)
        except Killed:
            if next(e for e in self._entries(learner) if e.learner == learner.learner).alive:
                self.world.expel(learner)
        mine = self.held.pop(learner) or [Chunk(0, 0, 1)]
        for call in (lambda: learner.take(3), learner.state, lambda: list(map(learner.done, mine))):
            with pytest.raises(CursorError, match="expelled"):
                call()
        self.expelled.append(learner)

    def _entries(self, learner: Any) -> list[Any]:
        return next(other for other in self.held if other is not learner).learners()

    @precondition(lambda self: self.expelled)
    @rule()
    def an_expelled_one_dies(self) -> None:
        self.world.kill(self.expelled.pop())

    @precondition(lambda self: self.held)
    @rule()
    def save(self) -> None:
        self.saved = (next(iter(self.held)).state(), self.history.copy())

    @precondition(lambda self: self.saved)
    @rule()
    def all_die_and_go_on_from_what_was_saved(self) -> None:
        for learner in list(self.held):
            self._bury(learner)
        while self.expelled:  # the simulated locks support only one file
            self.an_expelled_one_dies()
        state, history = self.saved
        learner = self.world.join()
        learner.restore(state)
        self.history = history.copy()
        self.held, self.reported = {learner: []}, {learner: 0}

    def _keep(self, learner: Any, taken: Chunk | None, done: Chunk | None, samples: int) -> None:
        if done is not None:
            self._count(learner, done)
        if taken is not None:
            assert 1 <= taken.samples <= samples + (samples > 1)
            assert 0 <= taken.start < taken.stop <= self.samples
            self.held[learner].append(taken)

    def _count(self, learner: Any, done: Chunk) -> None:
        self.held[learner].remove(done)
        self.reported[learner] += 1
        self.history.update(positions(done, self.samples))

    def _bury(self, learner: Any) -> None:
        self.world.kill(learner)
        del self.held[learner]

    @invariant()
    def nothing_belongs_to_two(self) -> None:
        seen = self.history.copy()
        for chunk in [chunk for mine in self.held.values() for chunk in mine]:
            seen.update(positions(chunk, self.samples))
        assert not seen or max(seen.values()) == 1
        if self.held:
            state = read_state(next(iter(self.held)).state(), self.samples, self.world.passes)
            assert state.done_samples == self.history.total()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        for learner in list(self.held):
            self._bury(learner)
        for learner in self.expelled:
            self.world.kill(learner)
        last = self.world.join()
        chunk = last.take(7)
        while chunk is not None:
            self.history.update(positions(chunk, self.samples))
            chunk = last.take(7, chunk)
        assert last.finished
        assert self.history == Counter(range(self.total))
        last.close()
        self.folder.cleanup()


TestAnyInterleaving = Learners.TestCase
TestAnyInterleaving.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip


def some_work(learner: Any, journal: list[tuple[str, Chunk]]) -> None:
    """Take two chunks at a time, and report them in a different order."""
    first, second = learner.take(3), learner.take(2)
    while first is not None and second is not None:
        journal.append(("trained", first))
        third = learner.take(3, first)
        journal.append(("trained", second))
        learner.done(second)
        first, second = third, learner.take(2)
    if first is not None:
        journal.append(("trained", first))
        learner.done(first)


@pytest.mark.parametrize("died_before", [False, True])
def test_a_kill_at_every_store_leaves_a_whole_file(tmp_path, died_before):
    """From the file's creation to its last chunk, taking over another learner's leases."""
    killed_at = 0
    for store in range(100_000):
        world = World(tmp_path / f"cursor-{store}", samples=11, passes=2)
        history: Counter[int] = Counter()
        if died_before:
            lost = world.join()
            assert lost.take(4)
            assert lost.take(4)
            world.kill(lost)
        fuse, journal, learner = Fuse(), [], None
        fuse.left = store
        try:
            learner = world.join(fuse)
            some_work(learner, journal)
        except Killed:
            killed_at += 1
        finished = fuse.left is not None and fuse.left > 0
        world.owners.clear()
        successor = world.join()
        if learner is not None:
            (entry,) = [e for e in successor.learners() if e.learner == learner.learner]
            assert len(journal) - 1 <= entry.reported <= len(journal)
            for _, chunk in journal[: entry.reported]:
                history.update(positions(chunk, 11))
        chunk = successor.take(5)
        while chunk is not None:
            history.update(positions(chunk, 11))
            chunk = successor.take(5, chunk)
        assert successor.finished
        assert history == Counter(range(22)), store
        world.kill(successor)
        if learner is not None:
            world.kill(learner)  # closes its descriptor
        if finished:
            break
    assert killed_at > 300
