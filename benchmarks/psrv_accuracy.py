"""The accuracy of each solver of the parameter server (`python -m benchmarks.psrv_accuracy`).

Prints a table for docs/parameter-server.md: examples/digits on this machine's site `local` with 1,
2 and 4 learners, 20 epochs, 3 seeds. A cell has the median of the final validation accuracy, the
lowest in brackets, and the median epoch in which it first reached 97 %. A single learner has no
server, whatever the manifest says, so its column has one value. `--quick` uses one seed; `--only
TEXT` prints the rows with TEXT in their name; `--smoke` trains one cell for one epoch.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.digits import Digits, digits, manifest
from benchmarks.report import Load, end_in_order, options

_EPOCHS, _SEEDS, _LEARNERS = 20, (1, 2, 3), (1, 2, 4)
_ACCURACY = 0.97
_NAME = "validation_accuracy"
NESTEROV = "`elastic_averaging`, SGD with Nesterov's momentum 0.9 (EAMSGD), learning rate 0.02"
SETTINGS: dict[str, dict[str, Any] | None] = {
    "allreduce, Adam (no server)": None,
    "`parallel_sgd`, learning_rate 0.1, momentum 0.9": {
        "solver": "parallel_sgd", "learning_rate": 0.1, "momentum": 0.9,
    },
    "`parallel_sgd`, the same, staleness 4": {
        "solver": "parallel_sgd", "learning_rate": 0.1, "momentum": 0.9, "staleness": 4,
    },
    "`downpour_sgd`, learning_rate 0.1": {"solver": "downpour_sgd", "learning_rate": 0.1},
    "`downpour_sgd`, the same, push_every 5": {
        "solver": "downpour_sgd", "learning_rate": 0.1, "push_every": 5,
    },
    "`downpour_sgd`, learning_rate 0.02, momentum 0.9": {
        "solver": "downpour_sgd", "learning_rate": 0.02, "momentum": 0.9,
    },
    "`downpour_sgd`, adagrad, learning_rate 0.01": {
        "solver": "downpour_sgd", "learning_rate": 0.01, "adagrad": True,
    },
    "`elastic_averaging`, Adam": {"solver": "elastic_averaging"},
    "`elastic_averaging`, Adam, push_every 5": {"solver": "elastic_averaging", "push_every": 5},
    NESTEROV: {"solver": "elastic_averaging"},
    "`model_averaging`, Adam, push_every 5": {"solver": "model_averaging", "push_every": 5},
    "`diloco`, Adam, push_every 10": {"solver": "diloco", "push_every": 10},
}  # fmt: skip
"""The name of each row, and its `parameter_server`."""


def rows(load: Load, only: str) -> Iterator[str]:
    """Yield the table line by line, each as soon as it is known."""
    seeds = _SEEDS if load is Load.FULL else _SEEDS[:1]
    numbers, epochs = ((2,), 1) if load is Load.SMOKE else (_LEARNERS, _EPOCHS)
    yield f"| solver | {' | '.join(map(_words, numbers))} |"
    yield f"|---|{'---|' * len(numbers)}"
    with digits() as example:
        shutil.copy(Path(__file__).with_name("nesterov_digits.py"), example.code)
        for name, settings in SETTINGS.items():
            if only not in name:
                continue
            more: dict[str, Any] = {} if settings is None else {"parameter_server": settings}
            if name == NESTEROV:
                arguments = {"lr": 0.02}
                job = {"name": "pytorch", "job": "nesterov_digits.py", "arguments": arguments}
                more["framework"] = job
            cells = [
                "-" if settings is not None and learners == 1
                else _cell(example, more, learners, epochs, seeds)
                for learners in numbers
            ]  # fmt: skip
            yield f"| {name} | {' | '.join(cells)} |"


def _words(learners: int) -> str:
    return "1 learner" if learners == 1 else f"{learners} learners"


def _cell(
    example: Digits, more: dict[str, Any], learners: int, epochs: int, seeds: tuple[int, ...]
) -> str:
    finals, firsts = [], []
    for seed in seeds:
        job_dir = example.train(manifest(learners, epochs, seed, **more))
        metrics = json.loads((job_dir / "results/metrics.json").read_text())
        # If several epochs end together, only the last one is validated.
        accuracies = {one["epoch"]: one[_NAME] for one in metrics["history"] if _NAME in one}
        finals.append(accuracies[epochs])
        firsts.append(next((n for n, a in accuracies.items() if a >= _ACCURACY), epochs + 1))
    first = round(statistics.median(firsts))
    when = f"epoch {first}" if first <= epochs else "never"
    return f"{statistics.median(finals):.1%} ({min(finals):.1%}), {when}"


def main() -> None:
    """Print the table."""
    parser = options("benchmarks.psrv_accuracy")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with that in their name")
    given = parser.parse_args()
    end_in_order()
    smoke = given.load is Load.SMOKE
    for row in rows(given.load, NESTEROV if smoke else given.only):
        print(row, file=sys.stderr if smoke else sys.stdout, flush=True)


if __name__ == "__main__":
    main()
