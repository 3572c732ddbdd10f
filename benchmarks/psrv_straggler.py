"""A slow learner, with a parameter server and with allreduce (part of `benchmarks.psrv`).

    psrv_straggler  time until examples/digits reaches 97 % on its validation data: 4 learners, one
                    of which computes 4 times as long as the others

Ours is Downpour SGD. The floor is the same without a slow learner. The peer is the unchanged
example: Adam and allreduce, which waits for the slowest learner; `allreduce_equal` is the same
without a slow learner. All are submitted to this machine's site `local`, in turn and with the same
seeds. The time begins with the first learner's first step and ends with the metrics line that has
the accuracy, so the start of processes does not count. Learner 0 validates once per epoch.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.digits import Digits, digits, manifest
from benchmarks.report import Result, compare, main

_LEARNERS, _SLOW, _NOBODY = 4, 3, -1
_EPOCHS, _RUNS = 12, 5
_ACCURACY = 0.97
_SERVER = {"solver": "downpour_sgd", "learning_rate": 0.2}
_PROGRAM = Path(__file__).with_name("slow_digits.py")


def measure(quick: bool = False) -> Iterator[Result]:
    """Yield the result."""
    with digits() as example:
        shutil.copy(_PROGRAM, example.code / "slow.py")
        served = {"parameter_server": _SERVER}
        yield compare(
            "psrv_straggler",
            _time(example, _SLOW, served),
            _time(example, _NOBODY, served),
            {
                "allreduce": _time(example, _SLOW, {}),
                "allreduce_equal": _time(example, _NOBODY, {}),
            },
            runs=1 if quick else _RUNS, warm_up=0,
        )  # fmt: skip


def _time(example: Digits, slow: int, more: dict[str, Any]) -> Callable[[], float]:
    seeds = itertools.count(1)

    def time_s() -> float:
        asked = manifest(_LEARNERS, _EPOCHS, next(seeds), **more)
        asked["framework"].update(job="slow.py", arguments={"lr": 0.002, "slow": slow})
        return _time_to_accuracy_s(example.train(asked))

    return time_s


def _time_to_accuracy_s(job_dir: Path) -> float:
    began = min(float(file.read_text()) for file in (job_dir / "state").glob("began-*"))
    for line in (job_dir / "metrics/1-0.jsonl").read_text().splitlines():
        values = json.loads(line)
        if values.get("validation_accuracy", 0.0) >= _ACCURACY:
            return float(values["time"]) - began
    raise RuntimeError(f"{job_dir.name} has not reached {_ACCURACY:.0%} in {_EPOCHS} epochs")


if __name__ == "__main__":
    main(measure)
