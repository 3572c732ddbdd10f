"""Changes of the learning rate and a plateau are events, at the step where they are."""

from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.series.found import found_events
from dlctl.series.replays import Origin
from dlctl.series.run import Run


def test_a_changed_rate_and_a_plateau_are_events():
    run = Run("t-1")
    begin = MetricsLine(0, event="begins", kind=EventKind.BEGIN.value)
    run.add(Origin(2, 0, Source.LOOP), begin)
    for step in range(1, 101):
        values = {"learning_rate": 0.1 if step <= 20 else 0.01,
                  "validation_accuracy": min(0.9, 0.02 * step)}  # fmt: skip
        run.add(Origin(2, 0, Source.LOOP), MetricsLine(step, 1, 1.0 * step, values))
    rate, plateau = found_events(run)
    assert (rate.attempt, rate.step, rate.kind) == (2, 20, "learning_rate")
    assert rate.text == "learning rate from 0.1 to 0.01"
    assert (plateau.kind, 43 <= plateau.step <= 47) == ("plateau", True)
    assert found_events(Run("t-2")) == []
