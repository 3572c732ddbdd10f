"""One list over all attempts and sources: steps that were done again are replaced."""

import random

import pytest

from dlctl.contract.measured.bins import point
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.series.merged import merge
from dlctl.series.replays import Origin
from dlctl.series.run import Run

LOOP, NODE, LOG = Source.LOOP, Source.NODE, Source.LOG


def lines(attempt, steps, value, source=LOOP, learner=0, begin=None):
    origin = Origin(attempt, learner, source)
    if begin is not None:
        yield origin, MetricsLine(begin, event="begins", kind=EventKind.BEGIN.value)
    for step in steps:
        yield origin, MetricsLine(step, 1, 100.0 * attempt + step, {"loss": float(value)})


def values(entries, source=LOOP, learner=0):
    return [
        (e.line.step, e.line.values["loss"]) for e in entries
        if not e.line.event and (e.origin.source, e.origin.learner) == (source, learner)
    ]  # fmt: skip


def curve(run, source=LOOP, learner=0):
    return next(
        c.values() for k, c in run.curves.items() if (k.source, k.learner) == (source, learner)
    )


def run_of(some):
    run = Run("t-1")
    for origin, line in some:
        run.add(origin, line)
    return run


def both(some, source=LOOP, learner=0):
    """Return what the list holds, which is what the curve holds."""
    found = values(merge(some), source, learner)
    assert curve(run_of(some), source, learner) == found
    return found


@pytest.mark.parametrize(
    ("some", "expected"),
    [
        ([*lines(1, [10, 20, 30, 40], 1), *lines(2, [30, 40, 50], 2)],
         [(10, 1), (20, 1), (30, 2), (40, 2), (50, 2)]),
        # An attempt that says where it begins replaces what it does again.
        ([*lines(1, range(1, 58), 1, begin=0), *lines(2, [50, 60], 2, begin=40)],
         [*((step, 1) for step in range(1, 41)), (50, 2), (60, 2)]),
        # A node that was cut off computes on, while its successor trains; its file is read later.
        ([*lines(1, [10, 20, 50], 1, begin=0), *lines(2, [30, 40, 50], 2, begin=20),
          *lines(1, [60, 70], 9)], [(10, 1), (20, 1), (30, 2), (40, 2), (50, 2)]),
        # An attempt that measured nothing drops nothing.
        ([*lines(1, [1, 2], 1), *lines(2, [], 2), *lines(3, [2], 3)], [(1, 1), (2, 3)]),
        # A program that goes back replaces its own steps.
        ([*lines(1, [10, 20, 30], 1), *lines(1, [20, 30], 2)], [(10, 1), (20, 2), (30, 2)]),
    ],
)  # fmt: skip
def test_steps_that_are_done_again_are_replaced(some, expected):
    assert both(some) == expected


def test_lines_of_files_come_in_any_order():
    files = [
        [*lines(1, [10, 20, 50], 1, begin=0)],
        [*lines(2, [30, 40, 50, 60], 2, begin=20)],
        [*lines(3, [60, 70], 3, begin=50)],
    ]
    expected = [(10, 1), (20, 1), (30, 2), (40, 2), (50, 2), (60, 3), (70, 3)]
    for seed in range(50):
        draw, left = random.Random(seed), [list(file) for file in files]
        some = []
        while any(left):
            some.append(draw.choice([file for file in left if file]).pop(0))
        found = sorted(values(merge(some)))
        assert found == expected, seed


def test_a_line_that_shows_late_has_all_read_again_unless_it_has_no_step():
    run = run_of([*lines(1, [10], 1, begin=0), *lines(2, [30], 2, begin=20), *lines(1, [60], 9)])
    run.add(Origin(1, 0, LOG), MetricsLine(time=5.0, values={"speed": 1.0}))
    run.add(Origin(1, 0, Source.JOB), MetricsLine(10, event="FAILED: x", kind="verdict"))
    assert not run.out_of_order
    run.add(Origin(1, 0, LOOP), MetricsLine(20, 1, 1.0, {"loss": 1}))
    assert run.out_of_order


def test_each_learner_and_source_has_its_own_curve():
    some = [
        *lines(1, [10, 20], 1), *lines(1, [10, 20], 5, learner=1), *lines(1, [15, 25], 7, LOG),
        *lines(2, [20, 30], 2), *lines(2, [25], 8, LOG),
    ]  # fmt: skip
    assert both(some) == [(10, 1), (20, 2), (30, 2)]
    assert both(some, learner=1) == [(10, 5), (20, 5)]
    assert both(some, LOG) == [(15, 7), (25, 8)]


def test_what_was_measured_of_a_node_stays():
    some = [*lines(1, [10, 20], 1, NODE), *lines(2, [10, 20], 2, NODE, begin=0)]
    assert values(merge(some), NODE) == [(10, 1), (20, 1), (10, 2), (20, 2)]


def test_events_of_replaced_steps_go_but_begins_stay():
    origin, again = Origin(1, 0, LOOP), Origin(2, 0, LOOP)
    begin, saved = EventKind.BEGIN.value, EventKind.CHECKPOINT.value
    some = [
        (origin, MetricsLine(0, event="begins", kind=begin)),
        (origin, MetricsLine(10, event="saved", kind=saved)),
        (origin, MetricsLine(20, event="saved", kind=saved)),
        (again, MetricsLine(10, event="continues", kind=begin)),
    ]
    run = run_of(some)
    assert [(e.attempt, e.step) for e in run.events] == [(1, 0), (1, 10), (2, 10)]
    assert [(a.attempt, a.first_step) for a in run.attempts] == [(1, 0), (2, 10)]


@pytest.mark.parametrize("name", ["validation_loss", "val_loss", "val/loss", "eval/loss"])
def test_the_groups_of_a_loss_are_one_name(name):
    run = run_of([(Origin(1, 0, LOOP), MetricsLine(1, 1, 1.0, {"loss": 2, name: 3}))])
    assert [(c.key.group, c.last) for c in run.named("loss")] == [("", 2), ("validation", 3)]


def test_steps_of_another_group_or_name_are_no_return():
    origin = Origin(1, 0, LOG)
    some = [(origin, MetricsLine(step, values={"loss": 1.0}, group="train")) for step in (50, 99)]
    some += [(origin, MetricsLine(step, values={"loss": 2.0}, group="test")) for step in (1, 2)]
    some += [(origin, MetricsLine(3, values={"rate": 0.1}, group="train"))]
    assert [entry.line.step for entry in merge(some)] == [50, 99, 1, 2, 3]
    two = MetricsLine(5, values={"loss": 1.0, "rate": 0.1})
    merged = merge([(origin, two), (origin, MetricsLine(4, values={"loss": 2.0}))])
    assert [entry.line.values for entry in merged] == [{"rate": 0.1}, {"loss": 2.0}]


def test_several_runs_in_one_file_are_curves_of_their_own():
    run = run_of(
        (Origin(1, 0, LOG), MetricsLine(step, 1, 1.0, {"loss": 1.0}, texts={"subid": name}))
        for name in ("one", "two") for step in (1, 2, 3)
    )  # fmt: skip
    assert {c.key.group: len(c) for c in run.named("loss")} == {"one": 3, "two": 3}


def grouped(attempt, group, steps, value):
    origin = Origin(attempt, 0, LOG)
    return [
        (origin, MetricsLine(s, None, None, {"loss": float(value)}, group=group)) for s in steps
    ]


def test_a_later_attempt_replaces_each_group_by_its_own_steps():
    """A program may count its validation by epochs, and log it before its next step."""
    some = [
        *grouped(1, "test", [1, 2, 3], 1), *grouped(1, "train", [100, 200, 300], 1),
        *grouped(2, "test", [3, 4], 2), *grouped(2, "train", [300, 400], 2),
    ]  # fmt: skip
    run, entries = run_of(some), merge(some)
    for group, expected in {
        "test": [(1, 1), (2, 1), (3, 2), (4, 2)],
        "train": [(100, 1), (200, 1), (300, 2), (400, 2)],
    }.items():
        assert run.named("loss", group)[0].values() == expected
        assert [(e.line.step, e.line.values["loss"]) for e in entries if e.line.group == group] == (
            expected
        )


def test_bins_of_a_later_attempt_replace_those_of_their_group():
    some = [*grouped(1, "test", [1, 2, 3], 1), *grouped(1, "train", [100, 200, 300], 1)]
    run = run_of(some)
    run.add_bins(Origin(2, 0, LOG), "test", "loss", [point(3.0, 0.0, 2.0)])
    assert run.named("loss", "test")[0].values() == [(1, 1), (2, 1), (3, 2)]
    assert run.named("loss", "train")[0].values() == [(100, 1), (200, 1), (300, 1)]
