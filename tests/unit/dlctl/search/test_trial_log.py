"""The model's log as it is read while it grows, and what is found in it."""

import pytest
from made_search import T0, events_of, lines_of, loss_of, spec_of, trials_of

from dlctl.errors import RecordError
from dlctl.search.summary import point_words
from dlctl.search.trials import TrialLog


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_a_log_that_comes_in_pieces_is_the_same(size):
    content = lines_of(events_of(9, 5))
    whole, log = TrialLog(), TrialLog()
    whole.feed(content)
    for at in range(0, len(content), size):
        log.feed(content[at : at + size])
    assert log.trials(spec_of()) == whole.trials(spec_of())
    assert log.size_bytes == len(content)


def test_what_is_known_does_not_change_when_more_is_read_and_a_line_waits_for_its_end():
    content = lines_of(events_of(4))
    log = TrialLog()
    log.feed(content[: content.index(b'{"event": "tell"')])
    before = log.trials(spec_of())
    log.feed(content[content.index(b'{"event": "tell"') : -3])
    assert before.outstanding == 4 and log.trials(spec_of()).outstanding == 1
    log.feed(content[-3:])
    assert log.trials(spec_of()).outstanding == 0


def test_a_damaged_line_is_named():
    content = lines_of(events_of(3))
    log = TrialLog("search/trials.jsonl")
    with pytest.raises(RecordError, match="trials.jsonl: line 3 is no event of a search"):
        log.feed(content.replace(b'"number": 2', b'"namber": 2'))
    with pytest.raises(RecordError, match="line 3"):
        log.feed(b"")


def test_each_better_trial_is_told_with_how_many_had_ended():
    found = trials_of(12, failed=0.0)
    best = found.best_over_time()
    losses = [loss_of(row.point) for row in found.rows]
    assert best[0].ended == 1 and best[-1].number == found.best.number
    assert [b.metric for b in best] == sorted((b.metric for b in best), reverse=True)
    for each in best:
        assert each.metric == min(losses[: each.ended])
        assert each.time == T0 + 30 * each.ended
    more = trials_of(12, failed=0.0, maximize=True)
    best = more.best_over_time()
    assert [b.metric for b in best] == sorted(b.metric for b in best)
    assert best[-1].metric == max(row.metric for row in more.rows) == more.best.metric


def test_a_failed_trial_is_not_best_and_reports_are_kept_by_trial():
    found = trials_of(6, failed=1.0)
    assert found.best is None and found.best_over_time() == []
    assert all(row.failed for row in found.rows)
    found = trials_of(3, 2)
    assert [step for step, _ in found.reports[1]] == [1, 2, 3] and 2 not in found.reports


def test_a_trial_that_is_not_there_is_refused():
    with pytest.raises(RecordError, match="no trial 9: the search has the trials 0 to 2"):
        trials_of(3).find(9)
    with pytest.raises(RecordError, match="no trial 0: the search has no trial so far"):
        trials_of(0).find(0)


def test_a_point_of_a_training_is_short_in_words():
    point = {"framework.arguments.lr": 0.019491, "training.batch_size": 32, "env.MODE": "a"}
    assert point_words(point) == "lr=0.01949 training.batch_size=32 env.MODE=a"
    assert point_words(point, 12) == "lr=0.01949 …"
