"""How busy the nodes are, in words."""

from dlctl.contract.metrics import MetricsLine, Source
from dlctl.contract.plan import Resources
from dlctl.series.replays import Origin
from dlctl.series.run import Run
from dlctl.series.utilisation import sentences

GIB = 2**30
ASKED = Resources(1, 1, [1], 8, 8, 0, 64 * GIB, 64 * GIB, 0, 3600, 60, [0])


def told(asked=ASKED, step=None, **node):
    run = Run("t-1")
    for number in range(1, 4):
        if step is not None:
            run.add(Origin(1, 0, Source.LOOP), MetricsLine(number, 1, 1.0 * number, step))
        run.add(Origin(1, 0, Source.NODE), MetricsLine(number, 1, 1.0 * number, node))
    return sentences(run, asked)


def test_a_gpu_that_idles_is_told_with_what_a_step_waits_for():
    waits = {"step_s": 1.0, "data_wait_s": 0.58, "exchange_s": 0.01}
    assert told(step=waits, gpu0_percent=31.0) == [
        "GPU 31 % busy: on average a step waits 58 % for data (`training.prefetch`?)."
    ]
    assert told(step=waits, gpu0_percent=93.0) == ["GPU 93 % busy."]


def test_what_was_asked_for_is_told_beside_what_was_used():
    assert told(cpu_percent=120.0, memory_rss_bytes_max=9.0 * GIB) == [
        "Asked for 8 CPUs a learner, used 1.2: `cpus` can be smaller.",
        "Asked for 64 GiB of memory a learner, used 9 GiB at most: `memory` can be smaller.",
    ]


def test_nothing_measured_is_nothing_told():
    assert sentences(Run("t-1"), ASKED) == []
    assert told(asked=None, cpu_percent=50.0) == []
