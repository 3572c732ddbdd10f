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
from benchmarks.report import Load, Result, compare, main, rounds

_LEARNERS, _NOBODY = (4, 4, 2), -1
_EPOCHS, _ROUNDS = (12, 12, 1), rounds(5, 0)
_ACCURACY = 0.97, 0.97, 0.0
_SERVER = {"solver": "downpour_sgd", "learning_rate": 0.2}
_PROGRAM = Path(__file__).with_name("slow_digits.py")


def measure(load: Load) -> Iterator[Result]:
    """Yield the result."""
    with digits() as example:
        shutil.copy(_PROGRAM, example.code / "slow.py")
        served, slow = {"parameter_server": _SERVER}, _LEARNERS[load] - 1
        yield compare(
            "psrv_straggler",
            _time(example, load, slow, served),
            _time(example, load, _NOBODY, served),
            {
                "allreduce": _time(example, load, slow, {}),
                "allreduce_equal": _time(example, load, _NOBODY, {}),
            },
            rounds=_ROUNDS[load],
        )  # fmt: skip


def _time(example: Digits, load: Load, slow: int, more: dict[str, Any]) -> Callable[[], float]:
    seeds = itertools.count(1)

    def time_s() -> float:
        slow_manifest = manifest(_LEARNERS[load], _EPOCHS[load], next(seeds), **more)
        slow_manifest["framework"].update(job="slow.py", arguments={"lr": 0.002, "slow": slow})
        return _time_to_accuracy_s(example.train(slow_manifest), _ACCURACY[load])

    return time_s


def _time_to_accuracy_s(job_dir: Path, accuracy: float) -> float:
    began = min(float(file.read_text()) for file in (job_dir / "state").glob("began-*"))
    for line in (job_dir / "metrics/1-0.jsonl").read_text().splitlines():
        values = json.loads(line)
        if values.get("validation_accuracy", -1.0) >= accuracy:
            return float(values["time"]) - began
    raise RuntimeError(f"{job_dir.name} has not reached {accuracy:.0%}")


if __name__ == "__main__":
    main(measure)
