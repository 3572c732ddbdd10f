"""Watch a search: look, draw, heed keys, until it has ended or somebody leaves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlctl.contract import State
from dlctl.errors import RecordError
from dlctl.search.summary import whole
from dlctl.terminal.search_frame import Shown, View, frame, texts, trial_line
from dlctl.terminal.watch import Background, draw_until_left, next_pause_s
from dlctl.units import format_span

if TYPE_CHECKING:
    from dlctl.outputs.looks import Looks
    from dlctl.search.overview import SearchReader

_ONCE_ROWS = 30
Write = Callable[[str], None]
WriteJson = Callable[[dict[str, Any]], None]


def shown(looking: Looks[SearchReader]) -> Shown:
    """Return what is known of the search."""
    (record,), (reader,) = looking.records.values(), looking.readers.values()
    why = looking.trouble.get(record.site, "")
    if why and reader.seen_at:
        why = f"{why}; what is shown is as of {format_span(time.time() - reader.seen_at)} ago"
    try:
        return Shown(record, reader.overview, why)
    except RecordError as error:
        return Shown(record, None, why or error.message)


def watch_search_on_terminal(looking: Looks[SearchReader]) -> None:
    """Draw until `q` or Ctrl-C.

    Raises:
        DlctlError: a site can't be reached, and waiting would not help.
    """
    looking.look()
    draw_until_left(
        Background(looking, lambda: shown(looking)), View(),
        lambda now, view, columns, rows: frame(now, view, columns, rows, time.time()),
        lambda view, key, _: view.pressed(key),
    )  # fmt: skip


def watch_search_once(looking: Looks[SearchReader], columns: int, write: Write) -> None:
    """Print one picture."""
    looking.look()
    write("\n".join(texts(frame(shown(looking), View(), columns, _ONCE_ROWS, time.time(),
                                keys=False))) + "\n")  # fmt: skip


def watch_search_in_pipe(
    looking: Looks[SearchReader], write: Write, write_json: WriteJson | None, once: bool
) -> None:
    """Print a line for each trial that has ended, and for each change of state, until the end.

    Args:
        write_json: takes objects; None: lines of text are written.
        once: end after one look: with JSON, print the state and the overview alone.
    """
    told, state, pause_s, best = 0, "", 1.0, -1
    while True:
        ended = looking.ended
        found = looking.look()
        now = shown(looking)
        if once and write_json is not None:
            seen = None if now.seen is None else dataclasses.asdict(whole(now.seen, now.record))
            write_json(_plain_state(now) | {"overview": seen})
            return
        said = f"{now.record.training_id} {now.record.state}"
        is_done = now.record.state is State.COMPLETED  # then the reason is the hub's exit code
        if why := now.trouble or ("" if is_done else now.record.reason):
            said += f": {why}"
        if said != state:
            state = said
            if write_json is None:
                write(f"{said}\n")
            else:
                write_json(_plain_state(now))
        if now.seen is not None:
            trials = now.seen.trials
            steps = {each.number for each in trials.best_over_time()}
            for number in trials.order[told:]:
                row = trials.rows[number]
                best = number if number in steps else best
                if write_json is None:
                    write(trial_line(row, trials, best == number) + "\n")
                else:
                    write_json({"search": now.record.training_id, "event": "trial",
                                "trial": dataclasses.asdict(row)})  # fmt: skip
            told = len(trials.order)
        if ended or once:
            return
        pause_s = next_pause_s(pause_s, bool(found))
        time.sleep(pause_s)


def _plain_state(now: Shown) -> dict[str, Any]:
    """Return the state of a search, as JSON has it."""
    return {"search": now.record.training_id, "event": "state", "state": str(now.record.state),
            "reason": now.record.reason, "trouble": now.trouble}  # fmt: skip
