"""A made search for tests of what is shown: the same trials at each run."""

from __future__ import annotations

import json
import math
import random

from dlctl import contract
from dlctl.contract import search as names
from dlctl.search.overview import Overview, WorkerJob
from dlctl.search.trials import TrialLog

T0 = 1_790_000_000.0
SPACE = [
    names.Parameter("lr", "float", 1e-4, 1.0, log=True),
    names.Parameter("layers", "int", 1, 8),
    names.Parameter("optimizer", "choice", choices=["sgd", "adam", "lion"]),
    names.Parameter("momentum", "float", 0.0, 0.95, when={"optimizer": ["sgd"]}),
    names.Parameter("noise", "float", 0.0, 1.0),
]


def spec_of(**more):
    given = {"name": "made", "space": SPACE, "task": names.Task("python", "trials:Trial"),
             "strategy": "random", "metric": "loss",
             "budget": names.Budget(trials=40, time_s=7200.0)}  # fmt: skip
    return names.Spec(**(given | more))


def point(chance):
    found = {
        "lr": 10 ** chance.uniform(-4, 0), "layers": chance.randint(1, 8),
        "optimizer": chance.choice(["sgd", "adam", "lion"]), "noise": chance.random(),
    }  # fmt: skip
    if found["optimizer"] == "sgd":
        found["momentum"] = chance.uniform(0, 0.95)
    return found


def loss_of(found):
    """Depends on lr most, on the optimizer and the layers a little, and on noise not at all."""
    return ((math.log10(found["lr"]) + 2) ** 2 + 0.3 * abs(found["layers"] - 4)
            + {"sgd": 0.5, "adam": 0.0, "lion": 0.2}[found["optimizer"]])  # fmt: skip


def events_of(count, ended=None, seed=0, failed=0.1):
    """Yield the events of a search with so many trials, of which so many have ended."""
    chance = random.Random(seed)
    points = [point(chance) for _ in range(count)]
    for number, each in enumerate(points):
        yield {"event": "ask", "time": T0 + number, "used_s": float(number), "n": 1,
               "trials": [{"number": number, "id": f"{number:032x}", "point": each}]}  # fmt: skip
    for number in range(count if ended is None else ended):
        loss = loss_of(points[number])
        is_failed = chance.random() < failed
        for step in range(1, 4):
            yield {"event": "report", "number": number, "step": step, "value": loss + 1 / step,
                   "on": True}  # fmt: skip
        yield {
            "event": "tell", "time": T0 + 30 * (number + 1), "used_s": 30.0 * (number + 1),
            "number": number, "outcome": "FAILED" if is_failed else "SUCCEEDED",
            "value": {"loss": loss}, "metrics": {"loss": loss},
            "error": "ValueError: the loss is <b>odd</b>" if is_failed else "",
            "worker": f"w1.{number % 3}", "seconds": 20.0 + number % 7,
            "started_at": T0 + 30 * number, "metric": None if is_failed else loss,
        }  # fmt: skip


def lines_of(events):
    return "".join(json.dumps(event) + "\n" for event in events).encode()


def trials_of(count, ended=None, seed=0, failed=0.1, **more):
    log = TrialLog()
    log.feed(lines_of(events_of(count, ended, seed, failed)))
    return log.trials(spec_of(**more))


def worker(name, running=0, **more):
    given = {"cpus": 4, "gpus": 0, "memory_bytes": 4 << 30}
    return names.WorkerStatus(name, running, 0.1, **(given | more))


def overview_of(trials, workers=(), jobs=(), now=T0 + 2000, age_s=0.5, **more):
    """Return an overview with one broker."""
    running = sum(each.running for each in workers)
    waiting = max(0, trials.outstanding - running)
    broker = names.BrokerStatus("b0", 1, now - age_s, owned=waiting, processing=running,
                              workers=list(workers))  # fmt: skip
    return Overview(trials, [broker], list(jobs), now=now, **more)


def job(name, state="RUNNING", reason=""):
    return WorkerJob(name, f"41_{name.partition('.')[2]}", state, reason)


def write_search(job_dir, count, ended=None, failed=0.1, **more):
    """Write the files of a search into a job directory."""
    (job_dir / names.FOLDER).mkdir(parents=True, exist_ok=True)
    (job_dir / names.SPEC).write_text(contract.to_json(spec_of(**more)))
    (job_dir / names.TRIALS).write_bytes(lines_of(events_of(count, ended, failed=failed)))
