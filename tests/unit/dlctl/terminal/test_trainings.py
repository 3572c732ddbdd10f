"""The table of trainings fits every width, and says why a training is not at work."""

import pytest
from login_side import make_record

from dlctl.contract import Made, OutputPlace, State
from dlctl.terminal.text import width_of
from dlctl.terminal.trainings import frame, reason_of, table, time_left

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
