"""The six answers, each from a curve of which the answer is known."""

import math
import random

import pytest

from dlctl.contract.measured.judged_series import is_better_lower, judged
from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.contract.plan import Resources
from dlctl.series.answers import Known, Saved, answers, found_events
from dlctl.series.pace import Progress, progress
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.series.utilisation import sentences, use_of

LOOP = Origin(1, 0, Source.LOOP)
DRAW = random.Random(1)


def run_of(*lines):
    run = Run("t-1")
    for line in lines:
        run.add(LOOP, line)
    return run


def curve(name, values, per=10):
    return [MetricsLine(i * per, 1, 100.0 + i, {name: v}) for i, v in enumerate(values, 1)]


def accuracy(values, **how):
    return curve("validation_accuracy", values, **how)


def event(step, kind, text="something", **values):
    return MetricsLine(step, 1, 100.0 + step, values, event=text, kind=kind.value)


def told(key, run, **known):
    found = {a.key: a for a in answers(run, Known(now=1000.0, **known))}
    assert list(found) == [
        "guessing", "plateau", "checkpoint", "learning_rate", "stable", "validation",
    ]  # fmt: skip
    return found[key].state, found[key].text


FALLING = [0.402, 0.158, 0.147, 0.135, 0.095, 0.026, 0.011, 0.0062, 0.0037, 0.0029, 0.0023, 0.0017]
RISING = [0.1 + 0.8 * (1 - math.exp(-i / 20)) for i in range(40)]


def test_nothing_measured_is_unknown_and_no_error():
    states = {a.state for a in answers(run_of(), Known(now=1.0))}
    assert states == {"unknown", "note"}


FLAT = [0.1 + 0.01 * (-1) ** i for i in range(30)]
BEGIN = MetricsLine(0, 1, 0.0, {"classes": 20.0}, event="begins", kind="begin")


@pytest.mark.parametrize(
    ("lines", "known", "state", "said"),
    [
        (accuracy(RISING), {"classes": 10}, "good", "guessing among 10 classes is 0.1"),
        (accuracy(FLAT), {"classes": 10}, "bad", ""),
        # The loop tells among how many classes it chooses.
        ([BEGIN, *accuracy(RISING)], {}, "good", "guessing among 20 classes is 0.05"),
        ([BEGIN, *accuracy(RISING)], {"classes": 10}, "good", "guessing among 10 classes is 0.1"),
        # Without classes the first validation is the guess.
        (curve("validation_loss", [2.3, 1.0, 0.9, 0.85]), {}, "good", "the first one is 2.3"),
        (curve("validation_accuracy", [0.6333, 0.7667, 0.9]), {}, "unknown", "Too few values"),
        # One value of a metric to which guessing gives no value proves nothing.
        (curve("validation_bleu", [0.3]), {"classes": 10}, "unknown", ""),
    ],
)
def test_better_than_guessing(lines, known, state, said):
    found = told("guessing", run_of(*lines), **known)
    assert found[0] == state and said in found[1], found
    assert found[1].startswith("Yes.") or state != "good"


def test_pure_noise_is_hardly_ever_better_than_guessing():
    draws = [random.Random(seed) for seed in range(100)]
    noise = [accuracy([draw.gauss(0.1, 0.01) for _ in range(30)]) for draw in draws]
    for known in ({"classes": 10}, {}):
        said = [told("guessing", run_of(*lines), **known)[0] for lines in noise]
        assert said.count("good") <= 10


def test_a_validation_accuracy_judges_rather_than_a_loss():
    lines = [*curve("loss", [1.0] * 20), *curve("validation_loss", [1.0] * 20), *accuracy(RISING)]
    state, text = told("plateau", run_of(*lines))
    assert (state, text[:36]) == ("good", "No: validation accuracy still gets b")


def test_a_plateau_that_was_told_is_shown_until_the_curve_gets_better():
    values = [min(0.9, 0.1 + 0.02 * i) for i in range(60)]
    lines = accuracy(values)
    words = "validation accuracy has hardly improved since step 470"
    line = event(470, EventKind.PLATEAU, f"plateau: {words}", level=0.9, margin=0.01)
    assert told("plateau", run_of(*lines)) == (
        "good",
        "No plateau of validation accuracy has been found.",
    )
    assert told("plateau", run_of(*lines, line)) == ("bad", f"Yes: {words} (14 values).")
    better = [*values, *[min(0.99, 0.9 + 0.02 * i) for i in range(60)]]
    assert told("plateau", run_of(*accuracy(better), line))[0] == "good"


def test_a_plateau_of_another_curve_or_before_another_rate_is_not_shown():
    flat = accuracy([0.9] * 40)
    of_loss = event(100, EventKind.PLATEAU, "plateau: loss has hardly improved since step 100")
    assert told("plateau", run_of(*flat, of_loss))[0] == "good"
    mine = event(
        100, EventKind.PLATEAU, "plateau: validation accuracy has hardly improved since step 100"
    )
    rates = curve("learning_rate", [0.1] * 20 + [0.01] * 20)
    assert told("plateau", run_of(*flat, *rates, mine))[0] == "good"


def test_a_changed_rate_is_an_event():
    run = Run("t-1")
    begin = MetricsLine(0, event="begins", kind=EventKind.BEGIN.value)
    run.add(Origin(2, 0, Source.LOOP), begin)
    for step in range(1, 101):
        values = {"learning_rate": 0.1 if step <= 20 else 0.01}
        run.add(Origin(2, 0, Source.LOOP), MetricsLine(step, 1, 1.0 * step, values))
    (rate,) = found_events(run)
    assert (rate.attempt, rate.step, rate.kind) == (2, 20, "learning_rate")
    assert rate.text == "learning rate from 0.1 to 0.01"
    assert found_events(Run("t-2")) == []


def test_the_pace_of_what_still_gets_better_is_that_of_the_values_tested():
    rising = [0.01 * i for i in range(72)]
    fallen = [0.71 - 0.001 * i for i in range(8)]  # the newest few fall, their quarter rises
    state, text = told("plateau", run_of(*accuracy(rising + fallen, per=1)))
    assert (state, text) == (
        "good", "No: validation accuracy still gets better, by 0.1218 over the newest 20 values.",
    )  # fmt: skip


def test_a_curve_whose_newest_values_only_vary_does_not_get_better():
    newest = [0.9889, 0.9917, 0.9889, 0.9861, 0.9889, 0.9889, 0.9889001, 0.98890015] * 2
    assert told("plateau", run_of(*accuracy([*RISING, *newest])))[1] == (
        "No plateau of validation accuracy has been found."
    )


def test_a_new_learning_rate_begins_anew():
    flat = accuracy([0.9] * 40)
    rates = curve("learning_rate", [0.1] * 37 + [0.01] * 3)
    state, text = told("plateau", run_of(*flat, *rates))
    assert (state, "since the learning rate changed" in text) == ("unknown", True)


def test_the_last_checkpoint_its_size_and_age():
    run = run_of(*curve("loss", [1.0] * 20), event(150, EventKind.CHECKPOINT))
    assert told("checkpoint", run) == (
        "good",
        "Yes, of step 150, 12 min ago; 50 steps have been done since.",
    )
    saved = [Saved(100, 940.0, 3 * 2**20), Saved(180, 970.0, 3 * 2**20)]
    told_now = told("checkpoint", run, checkpoints=saved)[1]
    assert told_now.startswith("Yes, of step 180, 3.1 MB, 30 s")
    assert told("checkpoint", run_of())[0] == "note"
    entries = [Saved(0, 940.0, 4_800_000, "model.pt"), Saved(0, 1.0, 5, "old")]
    state, text = told("checkpoint", run_of(), checkpoints=entries)[:2]
    assert state == "note"
    assert text.startswith("The program has saved model.pt (4.8 MB, 60 s ago) and 1 more. dlctl")
    assert told("checkpoint", run_of(), ended=True)[0] == "bad"


def test_changes_of_the_learning_rate_and_what_they_did():
    rates = curve("learning_rate", [0.1] * 20 + [0.01] * 20)
    better = accuracy([0.5] * 20 + [0.8] * 20)
    state, text = told("learning_rate", run_of(*rates, *better))
    assert text == (
        "Yes, once, last after step 200 from 0.1 to 0.01: validation accuracy went from 0.5 to 0.8 "
        "(medians of 5 values before, and 5 after)."
    )
    falling = curve("learning_rate", [0.1 * 0.99**i for i in range(50)])
    assert told("learning_rate", run_of(*falling))[1].startswith("It changes gradually")
    assert told("learning_rate", run_of(*curve("learning_rate", [0.1] * 5)))[1].startswith("No, it")


@pytest.mark.parametrize(
    ("values", "state", "beginning"),
    [
        ([1 / (i + 1) + DRAW.gauss(0, 1e-4) for i in range(80)], "good", "Yes: loss varies"),
        ([1 + 0.8 * (-1) ** i for i in range(80)], "note", "It oscillates"),
        (FALLING, "good", "Yes: loss varies"),
        ([1 + 0.05 * i + DRAW.gauss(0, 0.05) for i in range(80)], "bad", "No, it diverges"),
        ([1.0] * 20 + [math.nan] * 3, "bad", "No: loss is not a number since step 210"),
        (
            [1.0, math.nan] + [1.0] * 18 + [math.nan] * 3,
            "bad",
            "No: loss is not a number since step 210",
        ),
    ],
)
def test_stable_oscillating_or_diverging(values, state, beginning):
    lines = [
        MetricsLine(line.step, 1, line.time, {"loss": None if v != v else v})
        for line, v in zip(curve("loss", values), values, strict=True)
    ]
    found = told("stable", run_of(*lines))
    assert (found[0], found[1][: len(beginning)]) == (state, beginning), found


def test_the_noise_is_told_as_a_share_of_the_range():
    values = [4.0 * 0.9**n for n in range(100)] + [0.004, 0.012] * 50
    state, text = told("stable", run_of(*curve("loss", values)))
    assert (state, text) == ("good", "Yes: loss varies by 0.21 % of its range between neighbours.")
    wiggle = [0.01 + 0.002 * DRAW.random() for _ in range(300)]
    state, text = told("stable", run_of(*curve("loss", [1.0, 40.0, *wiggle])))
    assert state == "good" and " 0.0 %" not in text, "a spike does not round it away"
    assert text.endswith("between neighbours, and was 40 at step 20."), text


def test_the_stable_loss_is_one_that_has_enough_values():
    run = run_of(*curve("loss", [1.0] * 20))
    run.add(Origin(1, 0, Source.LOG), MetricsLine(1, values={"loss": 2.0}, group="p"))
    assert told("stable", run)[0] == "good"


VALIDATED = [event(step, EventKind.VALIDATION, seconds=1.5) for step in (100, 200, 300)]


@pytest.mark.parametrize(
    ("lines", "known", "text"),
    [
        (VALIDATED, {}, "Every 100 steps, 3 times so far; it takes 1.5 s."),
        (curve("validation_loss", [1.0, 0.9, 0.8], per=25), {}, "Every 25 steps, 3 times so far."),
        (curve("validation_loss", [1.0, 0.9, 0.8], per=1), {}, "Every step, 3 times so far."),
        ([event(step, EventKind.VALIDATION) for step in (10, 20)], {"ended": True},
         "Every 10 steps, 2 times."),
    ],
)  # fmt: skip
def test_how_often_validation_is_and_how_long_it_takes(lines, known, text):
    assert told("validation", run_of(*lines), **known) == ("note", text)


def test_odd_numbers_are_answered_without_an_error():
    run = run_of(*curve("learning_rate", [0.1] * 3), *curve("loss", [1e308, -1e308] * 10))
    for line in run.named("learning_rate"):
        line.points.last[:] = line.points.last.__class__("d", [math.nan] * 3)
    assert told("learning_rate", run)[0] == "unknown"
    assert len(answers(run, Known(now=1.0))) == 6


@pytest.mark.parametrize(
    ("name", "lower"),
    [("val_loss", True), ("accuracy", False), ("top-5 acc", False), ("acceleration", None),
     ("loss_scale", True), ("buffer_size_f10", None), ("fidelity", None)],
)  # fmt: skip
def test_a_name_tells_what_is_better(name, lower):
    assert is_better_lower(name) is lower


def test_a_search_is_no_training_and_gets_no_answers():
    """Its best value stands still for long, because each trial is another one."""
    run, trials = Run("s-1"), Origin(1, 0, Source.PROGRAM)
    for step in range(1, 400):
        values = {"loss": 1.0 + DRAW.random(), "best loss": 1.0}
        run.add(trials, MetricsLine(step, None, 100.0 + step, values, group="trials"))
    assert answers(run, Known(now=1000.0)) == []
    assert judged(run.curves) is None


def test_what_has_ended_is_told_in_the_past():
    running = {a.key: a.text for a in answers(run_of(), Known(now=1.0))}
    assert running["checkpoint"] == "No checkpoint has been written yet."
    ended = [a.text for a in answers(run_of(), Known(now=1.0, ended=True))]
    states = [
        {a.key: a.state for a in answers(run_of(), Known(1.0, ended=True, has_model=has_model))}
        for has_model in (False, True)
    ]
    assert [each["checkpoint"] for each in states] == ["bad", "note"]
    assert not any("yet" in text or "early" in text for text in ended), ended
    assert "No checkpoint was written." in ended


# How busy the nodes are

GIB = 2**30
ASKED = Resources(1, 1, [1], 8, 8, 0, 64 * GIB, 64 * GIB, 0, 3600, 60, [0])


def used(asked=ASKED, step=None, **node):
    run = Run("t-1")
    for number in range(1, 4):
        if step is not None:
            run.add(Origin(1, 0, Source.LOOP), MetricsLine(number, 1, 1.0 * number, step))
        run.add(Origin(1, 0, Source.NODE), MetricsLine(number, 1, 1.0 * number, node))
    return sentences(use_of(run), asked)


def test_a_gpu_that_idles_is_told_with_what_a_step_waits_for():
    waits = {"step_s": 1.0, "data_wait_s": 0.58, "exchange_s": 0.01}
    assert used(step=waits, gpu0_percent=31.0) == [
        "GPU 31 % busy: on average a step waits 58 % of its time for data (`training.prefetch`?)."
    ]
    assert used(step=waits, gpu0_percent=93.0) == ["GPU 93 % busy."]


def test_what_was_asked_for_is_told_beside_what_was_used():
    assert used(cpu_percent=120.0, memory_rss_bytes_max=9.0 * GIB) == [
        "Asked for 8 CPUs a learner, used 1.2 on average: `cpus` can be smaller.",
        "Asked for 64 GiB of memory a learner, used 9 GiB at most: `memory` can be smaller.",
    ]


def test_nothing_measured_is_nothing_told():
    assert sentences(use_of(Run("t-1")), ASKED) == []
    assert used(asked=None, cpu_percent=50.0) == []


PROGRAM = Origin(1, 0, Source.PROGRAM)


def epochs_of(values, origin=PROGRAM):
    run = Run("t-1")
    for epoch, value in enumerate(values, 1):
        run.add(origin, MetricsLine(epoch=epoch, time=100.0 + epoch, values={"loss": value}))
    return run


def test_a_program_that_tells_only_epochs_is_answered_in_epochs():
    run = epochs_of([1 / min(epoch, 8) for epoch in range(1, 31)])
    assert run.last_step == 30 and run.epoch_at(30) == 30
    assert told("guessing", run)[1] == "Yes. The best loss is 0.125 (epoch 8); the first one is 1."
    assert told("plateau", run)[1] == "No plateau of loss has been found."
    shown = progress(run, Progress(None, None, None))
    assert (shown.epoch, shown.done) == (30, None)


def test_an_epoch_without_a_step_stands_at_the_newest_step():
    run = Run("t-1")
    for step in range(1, 31):
        run.add(PROGRAM, MetricsLine(step, time=100.0 + step, values={"loss": 1 / step}))
        if step % 10 == 0:
            line = MetricsLine(epoch=step // 10, time=100.0 + step, values={"val_loss": 2 / step})
            run.add(PROGRAM, line)
    (validation,) = run.named("loss", "validation")
    assert [step for step, _ in validation.values()] == [10, 20, 30]
    assert "(step 30)" in told("guessing", run)[1]


def test_no_value_is_lost_of_a_program_that_tells_several_in_an_epoch():
    run = Run("t-1")
    for n in range(12):
        run.add(PROGRAM, MetricsLine(epoch=1 + n // 4, time=100.0 + n, values={"loss": 1.0 + n}))
    (loss,) = run.named("loss")
    assert [value for _, value in loss.values()] == [1.0 + n for n in range(12)]


def test_a_program_that_nobody_asked_for_checkpoints_lacks_none():
    run = epochs_of([1.0] * 9)
    states = [
        told("checkpoint", run, ended=True, wants_checkpoints=wants)[0] for wants in (True, False)
    ]
    assert states == ["bad", "note"]
