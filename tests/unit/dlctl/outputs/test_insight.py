"""What `dlctl show --json` tells of the events of a training."""

import json

from login_side import make_record

from dlctl.contract.metrics import EventKind, MetricsLine, Source
from dlctl.outputs.insight import insight
from dlctl.series.replays import Origin
from dlctl.series.run import Run


def test_a_plateau_that_the_node_told_is_listed_once_beside_what_is_found():
    run = Run("t-1")
    for step in range(1, 101):
        values = {"learning_rate": 0.1 if step <= 60 else 0.01, "loss": max(1.0, 5 - step / 10)}
        run.add(Origin(1, 0, Source.LOOP), MetricsLine(step, 1, 1.0 * step, values))
    values = {"level": float("inf")}
    told = MetricsLine(45, None, 90.0, values, "plateau: …", kind=EventKind.PLATEAU.value)
    run.add(Origin(1, 0, Source.JOB), told)
    events = insight(run, make_record(), None, []).plain()["events"]
    assert [(e["kind"], e["step"]) for e in events] == [("plateau", 45), ("learning_rate", 60)]
    json.dumps(events, allow_nan=False)
