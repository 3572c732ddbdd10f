"""The table of trainings fits every width, and says why a training is not at work."""

import pytest
from login_side import make_record

from dlctl.contract import Made, OutputPlace, State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.errors import Misused
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.terminal.text import width_of
from dlctl.terminal.trainings import Columns, frame, reason_of, table, time_left

NOW = 1_800_000_000.0
RECORDS = [
    make_record(training_id="digits-of-a-long-name-that-goes-on-abcdefgh", state=State.TRAINING,
                seen_at=NOW, started_at=NOW - 600, epoch=3, epochs=8, loss=0.5, ends_at=NOW + 1000),
    make_record(training_id="waits-abcdefgh", state=State.PENDING, seen_at=NOW,
                starts_at=NOW + 2400,
                reason="waiting in the queue: other jobs go first (Priority)"),
    make_record(training_id="失敗-abcdefgh", state=State.FAILED, seen_at=NOW,
                reason="learner 0 on n1 ended with exit code 3: \x1b]0;title\x07 evil"),
]  # fmt: skip


@pytest.mark.parametrize("columns", [40, 57, 80, 120, 300])
def test_it_fits(columns):
    texts = [line.render(False) for line in table(RECORDS, columns, NOW)]
    assert max(map(width_of, texts)) <= columns
    assert all(text.isprintable() for text in texts)
    assert [name in texts[0] for name in ("training", "state")] == [True, True]
    assert ("why" in texts[0]) == (columns >= 60)
    lines = frame(RECORDS, {"testbed": "does not answer"}, columns, 6, NOW)
    assert len(lines) == 6
    assert lines[-1].render(False) == "and 2 more"
    # No id is cut off for reasons that nobody has.
    known = make_record(training_id="my-training-6vpg67su", state=State.TRAINING, seen_at=NOW,
                        site="testcluster", epoch=31, epochs=300, ends_at=NOW + 120)  # fmt: skip
    assert "my-training-6vpg67su" in table([known], 80, NOW)[1].render(False)


def test_why_and_when():
    told = reason_of(RECORDS[1], NOW)
    assert told.startswith("starts at about ")
    assert told.endswith("in 40 min; other jobs go first (Priority)")
    assert reason_of(RECORDS[1], NOW + 9999) == "other jobs go first (Priority)"
    assert (reason_of(RECORDS[0], NOW), time_left(RECORDS[0], NOW)) == ("", "17 min")


def test_a_list_says_what_is_to_be_said_of_a_training_that_completed():
    """A crash that `| tee` had hidden stood in `show` alone."""
    why = "but the log of learner 1 ends with a traceback (ValueError: mine)."
    record = make_record(
        state=State.COMPLETED, reason=f"All 2 learners ended with exit code 0; {why}"
    )
    assert reason_of(record, NOW) == why
    made = Made(output=[OutputPlace("core", 1, 9)])
    failed = make_record(state=State.FAILED, reason="It was killed by signal 11.", made=made)
    assert reason_of(failed, NOW) == "It was killed by signal 11; core: 9 B; not in RESULT_DIR"


@pytest.mark.parametrize(
    "reason", ["is being halted: saving a checkpoint", "learner 2 gave no sign of life for 70 s"]
)
def test_what_is_unusual_in_a_training_at_work_is_told(reason):
    """`list` said TRAINING and nothing else of a learner that was silent."""
    assert reason_of(make_record(state=State.TRAINING, seen_at=NOW, reason=reason), NOW) == reason


def test_a_long_id_keeps_its_unique_end():
    """At 80 columns two trainings of one long name looked the same."""
    for columns in (40, 60, 80):
        row = table(RECORDS, columns, NOW)[1].render(False)
        assert row.startswith("di") and row.split()[0].endswith("-abcdefgh"), columns


def test_a_terminal_leaves_out_what_says_nothing_and_a_pipe_does_not():
    done = [make_record(training_id=f"w{n}-abcdefgh", name=f"w{n}", state=State.COMPLETED,
                        seen_at=NOW, started_at=NOW - 60, ended_at=NOW, loss=n / 10, step=7)
            for n in (1, 10, 2)]  # fmt: skip
    head = table(done, 80, NOW)[0].render(False).split()
    assert head == ["training", "state", "site", "progress", "elapsed", "loss"]
    head = table(done, None, NOW)[0].render(False).split()
    assert head[-4:] == ["left", "elapsed", "loss", "why"]
    why = "learner 0 on n1 ended with exit code 3 " * 11
    failed = make_record(state=State.FAILED, seen_at=NOW, reason=why)
    line = table([failed], None, NOW)[1].render(False)
    assert len(line) < 160 and line.endswith("…")
    by_name = Columns(by="name").ordered(done, NOW)
    assert [each.name for each in by_name] == ["w1", "w2", "w10"]


def sweep():
    found = {"lr=0.1 batch_size=8": 0.5, "lr=0.02 batch_size=8": 0.9, "lr=1 batch_size=8": None}
    runs, records = {}, []
    for n, (varied, accuracy) in enumerate(found.items()):
        records.append(make_record(training_id=f"t-{n}", state=State.COMPLETED, seen_at=NOW,
                                   varied=varied, loss=accuracy))  # fmt: skip
        runs[f"t-{n}"] = run = Run(f"t-{n}")
        for step, value in enumerate([] if accuracy is None else [accuracy, accuracy / 2], start=1):
            run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, 1, 1.0, {"val_accuracy": value}))
    return records, runs


def test_a_sweep_shows_what_varied_and_which_was_best():
    records, runs = sweep()
    head, *rows = (line.render(False).split() for line in table(records, 60, NOW))
    assert head[:4] == ["training", "state", "lr", "batch_size"] and head[-1] == "loss"
    assert rows[1][:4] == ["t-1", "COMPLETED", "0.02", "8"]

    def order(by):
        return [each.training_id for each in Columns(by=by, runs=runs).ordered(records, NOW)]

    assert order("loss") == ["t-0", "t-1", "t-2"]
    assert order("lr") == ["t-1", "t-0", "t-2"]
    # The best come first, what is not known last.
    assert order("val_accuracy") == order("best:validation_accuracy") == ["t-1", "t-0", "t-2"]
    shape = Columns(["training", "best:val_accuracy"], "val_accuracy", runs)
    lines = [line.render(False).split() for line in table(records, 80, NOW, shape=shape)]
    assert lines == [["training", "best:val_accuracy", "val_accuracy"], ["t-0", "0.5", "0.25"],
                     ["t-1", "0.9", "0.45"], ["t-2", "-", "-"]]  # fmt: skip
    named = Columns(["training", "env.lr"], "env.lr").shortened(records)
    assert (named.wanted, named.by) == (["training", "lr"], "lr")
    assert shape.measured(records[0], ["val_accuracy"]) == {"measured": {"val_accuracy": 0.25}}
    assert shape.measured(records[2], ["val_accuracy"]) == {"measured": {"val_accuracy": None}}
    mixed = [*records, make_record(training_id="other", seen_at=NOW)]
    assert "lr" not in table(mixed, 200, NOW)[0].render(False)
    with pytest.raises(Misused, match="no training here has a column or a metric 'nosuch'"):
        order("nosuch")
