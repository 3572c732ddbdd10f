"""One training as this machine knows it."""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from dlctl import contract
from dlctl.contract import State
from dlctl.contract.ground.amounts import format_span
from dlctl.contract.metrics import finite
from dlctl.units import unix_seconds

ADOPTED = "(adopted)"
"""In place of the folder of a training that a site has told of: no path is equal to it."""
FETCHED = {
    "results": "fetched_attempt", "checkpoints": "checkpoints_fetched_attempt",
    "output": "output_fetched_attempt",
}  # fmt: skip
"""Part of a training → the field of its record that tells after which attempt it was fetched."""
GONE = "its job directory is gone from the site"
"""How the reason of a training ends whose files somebody, or a purge of old files, has removed."""
UNKNOWN_IF_0 = ("seen_at", "started_at", "ended_at", "epochs", "starts_at", "ends_at")
"""Fields of a record that are null in JSON if nobody knows them."""


@dataclass(frozen=True)
class Record:
    """One training, as it was last seen."""

    training_id: str
    name: str
    site: str
    folder: str
    """The user's folder that it was submitted from, or `ADOPTED`; `find` accepts the manifest's
    folder, too. Empty: of a rehearsal."""
    job_dir: str
    created_at: str
    manifest_path: str = ""
    overrides: str = "{}"
    """The command line's overrides, as JSON: an interrupted submission is rebuilt from them."""
    attempt: int = 1
    job_id: str = ""
    """The scheduler's id of the newest attempt; empty until it is known."""
    state: State = State.QUEUED
    reason: str = ""
    hint: str = ""
    seen_at: float = 0.0
    """When the site last answered about it (Unix seconds here)."""
    stale_since: float | None = None
    """Since when the site has not answered; None if it did at the last try."""
    started_at: float = 0.0
    """When the newest attempt's job began (Unix seconds on the node); 0 if it has not."""
    ended_at: float = 0.0
    """When it ended; 0 if that is not known."""
    epochs: int = 0
    """How many epochs were asked for; 0 if that is not known, or if a program decides."""
    epoch: int | None = None
    step: int | None = None
    """Learner 0's last epoch and step."""
    done: float | None = None
    """The share of its work that it says is done, from 0 to 1."""
    loss: float | None = None
    """Its last loss; NaN stands for each that is not a finite number."""
    moved: float | None = None
    """The share of the data that has been loaded or stored, while that lasts."""
    fetched_attempt: int = 0
    """The attempt after whose end the results were fetched."""
    checkpoints_fetched_attempt: int = 0
    """The attempt after whose end all checkpoints were fetched."""
    output_fetched_attempt: int = 0
    """The attempt after whose end the output in the program's own folder was fetched."""
    made: contract.Made | None = None
    """What it had made when its newest attempt ended; None if that is not known."""
    notice_tries: int = 0
    """How many more times a dlctl that looks tries to send a notice of this state."""
    model: str = ""
    """The stored model that it trains, as `ID@N`; empty if a folder was sent."""
    is_search: bool = False
    """Whether it is the hub of a search. Searches of older versions don't tell."""
    tags: list[str] = field(default_factory=list)
    """The user's words for it, in order."""
    notes: list[str] = field(default_factory=list)
    """The user's remarks on it, the newest last, each behind its day."""
    varied: str = ""
    """What tells it from the others of its command, as `lr=0.1 seed=2`."""
    goes_on: bool | None = None
    """Whether its plan lets it go on by itself after a fault; None: nobody has read the plan."""
    ran_before_s: float = 0.0
    """How long the attempts before the newest one ran, as far as `ran_through` counts them."""
    ran_through: int = 0
    """The last attempt that `ran_before_s` counts."""
    clock_ahead_s: float = 0.0
    """How much this machine's clock is ahead of the site's; 0 if they agree within a minute."""
    starts_at: float = 0.0
    """When the scheduler expects the job in its queue to start (Unix seconds here); 0 if it does
    not tell."""
    ends_at: float = 0.0
    """When its first attempt will be done if it goes on like this (Unix seconds here); 0 if that is
    not known."""

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it: objects, times in Unix seconds, and no credentials."""
        overrides = None
        with contextlib.suppress(ValueError):
            overrides = json.loads(self.overrides, object_hook=_shown)
        unknown = {name: getattr(self, name) or None for name in UNKNOWN_IF_0}
        return vars(self) | unknown | {
            "elapsed_s": self.elapsed_s(time.time()),
            "loss": None if self.loss is None else finite(self.loss),
            "goes_on": False if self.state.final else self.goes_on,
            "state": str(self.state), "created_at": unix_seconds(self.created_at),
            "overrides": overrides, "made": None if self.made is None else asdict(self.made),
        }  # fmt: skip

    @property
    def state_in_words(self) -> str:
        """Return the state, and for how long it is stale."""
        if self.stale_since is None:
            return str(self.state)
        return f"{self.state} (stale for {format_span(time.time() - self.stale_since)})"

    @property
    def varied_values(self) -> dict[str, str]:
        """Return what tells it from the others of its sweep, by key."""
        found = list(_PAIR.finditer(self.varied))
        ends = [each.start() for each in found[1:]] + [len(self.varied)]
        return {each[1]: self.varied[each.end() : end].strip()
                for each, end in zip(found, ends, strict=False)}  # fmt: skip

    def elapsed_s(self, now: float) -> float | None:
        """Return how long it has run, over all its attempts; None if it has not begun.

        Args:
            now: Unix seconds here, up to which one that runs is counted while its site answers.
        """
        now = now if self.stale_since is None else self.seen_at
        if not self.started_at:
            return self.ran_before_s or None
        if self.state.final and not self.ended_at:
            return None
        until = self.ended_at or self.site_time(now)
        return self.ran_before_s + max(0.0, until - self.started_at)

    def site_time(self, now: float) -> float:
        """Return what its site's clock shows at a time of this machine's (Unix seconds)."""
        return now - self.clock_ahead_s

    @property
    def show_command(self) -> str:
        """Return the command that shows all about it."""
        return f"dlctl show {self.training_id}"

    def was_fetched(self, part: str) -> bool:
        """Return whether a part of what its newest attempt left was fetched."""
        return bool(getattr(self, FETCHED[part]) == self.attempt)

    @property
    def is_gone(self) -> bool:
        """Return whether its job directory was missing when the site last answered."""
        return self.reason.endswith(GONE)


def _shown(overrides: dict[str, Any]) -> dict[str, Any]:
    """Return overrides without the values of keys below which manifests hold credentials."""
    return overrides | {"set": [
        f"{pair.partition('=')[0]}=(hidden)" if pair.lstrip().startswith(_PRIVATE) else pair
        for pair in overrides["set"]
    ]} if overrides.get("set") else overrides  # fmt: skip


_PAIR = re.compile(r"(?:^|(?<= ))([^\s=]+)=")
"""The beginning of a value in `varied`."""
_PRIVATE = ("env.", "notify.", "data_stores.")
