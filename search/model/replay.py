"""Ask a search's strategy again: `python -m search.model.replay JOB_DIR [TIMINGS]`.

It compares the points of all trials with those in the log: in the order of the log's events, and,
of a deterministic search, in the order of other timings of the workers, with the same results.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dlctl import contract
from dlctl.contract import search as names
from dlctl.contract.programs import answers
from search.errors import SearchError
from search.model.log import Event, TrialLog
from search.model.state import ASK, REPORT, TELL, Ended, ReplayError, Search
from search.model.strategy import open_strategy
from search.protocol.process import load_spec
from search.strategies import Trial

TIMINGS = 3


class KeptLog(TrialLog):
    """A log in memory."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events = list(events)

    def events(self) -> Iterator[Event]:
        """Yield the events that were there at the beginning."""
        yield from list(self._events)

    def write(self, *events: Event) -> None:
        """Forget events: nobody reads them again."""


def replay(spec: names.Spec, events: list[Event], timings: int | None = None) -> dict[str, Any]:
    """Return what was compared, and the first difference.

    Args:
        timings: how many other timings; None: 3 for a deterministic search, else none.
    """
    recorded = [
        {key: trial[key] for key in ("point", "parent") if key in trial}
        for event in events if event["event"] == ASK for trial in event["trials"]
    ]  # fmt: skip
    # The results decide which trials there are, and not when a search without a good one gave up.
    spec = replace(spec, budget=replace(spec.budget, failures=0))
    timings = (TIMINGS if spec.deterministic else 0) if timings is None else timings
    differs: dict[str, Any] | None = None
    by = "log"
    try:
        with open_strategy(spec) as strategy:
            Search(spec, strategy, KeptLog(events))
        by = "timings"
        for seed in range(timings):
            chance = random.Random(seed)  # noqa: S311 - no secret
            with open_strategy(spec) as strategy:
                run_again(Search(spec, strategy, KeptLog()), events, recorded, chance)
    except ReplayError as error:
        differs = {"number": error.number, "recorded": error.recorded, "asked": error.proposed,
                   "by": by}  # fmt: skip
    return {"trials": len(recorded), "deterministic": spec.deterministic, "timings": timings,
            "same": differs is None, "differs": differs}  # fmt: skip


def run_again(
    search: Search, events: list[Event], recorded: list[dict[str, Any]], chance: random.Random
) -> None:
    """Run the search again with the recorded results, of which each comes when chance wants.

    Raises:
        ReplayError: a trial has another point, or another parent, than the recorded one.
    """
    results = {event["number"]: event for event in events if event["event"] == TELL}
    reports: dict[int, list[Event]] = {}
    for event in events:
        if event["event"] == REPORT:
            reports.setdefault(event["number"], []).append(event)
    spec = search.spec
    window = spec.window or 2 * max(1, spec.workers.most * spec.workers.slots)
    while True:
        while n := min(search.wanted(window), len(recorded) - len(search.trials)):
            trials = search.ask(n)
            for trial in trials:
                was, now = recorded[trial.number], _plain(trial)
                if now != was:
                    raise ReplayError(spec, trial.number, was, now)
            if not trials:
                break
        ready = [number for number in search.outstanding if number in results]
        if not ready:
            return
        number = chance.choice(ready)
        task_id = search.outstanding[number]
        for report in reports.get(number, []):
            search.report(task_id, report["step"], {spec.metric: report["value"]})
        result = results[number]
        search.end(task_id, Ended(
            result["outcome"], result["value"], result["metrics"], result["error"],
            result["worker"], result["seconds"], result.get("started_at", 0.0),
        ))  # fmt: skip


def _plain(trial: Trial) -> dict[str, Any]:
    return {"point": trial.point} | ({} if trial.parent is None else {"parent": trial.parent})


def main(arguments: list[str]) -> dict[str, Any]:
    """Return the answer.

    Raises:
        SearchError: the strategy can't be asked again.
    """
    job_dir = Path(arguments[0])
    sys.path.append(os.fspath(job_dir / contract.CODE))
    try:
        spec = load_spec(job_dir)
        content = (job_dir / names.TRIALS).read_bytes()
        lines = content[: content.rfind(b"\n") + 1].splitlines()
        events = list(filter(names.Newest().counts, map(json.loads, lines)))
        return replay(spec, events, int(arguments[1]) if len(arguments) > 1 else None)
    except FileNotFoundError:
        what = f"{job_dir / names.TRIALS} does not exist: the search has no trial so far"
        raise SearchError(what) from None
    except (SearchError, ValueError, OSError) as error:
        raise SearchError(f"the strategy can't be asked again: {error}") from error


if __name__ == "__main__":
    sys.exit(answers.run(main))
