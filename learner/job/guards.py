"""The manifest's guards: whether a training must not go on, from the values that it reports."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from dlctl import contract
from dlctl.contract import Plateau, Stopped, StopRules, VerdictKind, to_json
from dlctl.contract.programs.verdict_rules import NEWEST

WINDOW, LEAST = 50, 5
"""A loss is compared with the median of so many last ones; with fewer than `LEAST`, with none."""
NOT_A_NUMBER_HINT = (
    "Lower the learning rate, or clip the gradients: in the manifest, and submit again; or in the "
    f"program, and go on {NEWEST}: dlctl resume --code"
)


class Guards:
    """Watches the loss and the metric of one training.

    Args:
        reports: what passes without improvement, in the words for people.
    """

    def __init__(self, rules: StopRules | None, reports: str = "reports") -> None:
        self._rules = rules or StopRules()
        self._unit = reports
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self.metric = self._rules.plateau.metric if self._rules.plateau else ""
        """The metric that has to improve; empty if none is named."""

    def after_loss(self, loss: float, step: int) -> Stopped | None:
        """Return why the training ends because of the loss of this step, if it does."""
        if not math.isfinite(loss):
            if not self._rules.not_a_number:
                return None
            reason = f"the loss is {loss} at step {step}"
            return Stopped(str(VerdictKind.NOT_A_NUMBER), step, reason, NOT_A_NUMBER_HINT)
        usual = statistics.median(self._losses) if len(self._losses) >= LEAST else None
        self._losses.append(loss)
        factor = self._rules.loss_spike
        if factor is None or usual is None or loss <= factor * usual or usual <= 0:
            return None
        reason = f"the loss jumped to {loss:.4g} at step {step}, {loss / usual:.3g} times the usual"
        hint = "Without another change the same step may do the same: lower the learning rate."
        return Stopped(str(VerdictKind.LOSS_SPIKE), step, reason, hint)

    def after_report(self, values: Sequence[float | None], step: int) -> Stopped | None:
        """Return why the training ends because a metric no longer improves, if it does.

        Args:
            values: of the metric, one for each epoch or report, the newest last.
        """
        rule = self._rules.plateau
        if rule is None or not rule.patience or len(values) <= rule.patience:
            return None
        best_at = _best(rule, values)
        if len(values) - 1 - best_at < rule.patience:
            return None
        best = values[best_at]
        shown = "never a number" if best is None else f"best {best:.4g}"
        reason = f"{rule.metric} has not improved in {rule.patience} {self._unit} ({shown})"
        return Stopped(str(VerdictKind.PLATEAU), step, reason)


def _best(rule: Plateau, values: Sequence[float | None]) -> int:
    """Return the position of the best value: the first one of those that are equal."""
    sign = 1.0 if rule.better == "lower" else -1.0
    ranked = [
        sign * value if value is not None and math.isfinite(value) else math.inf for value in values
    ]
    return ranked.index(min(ranked))


def write_stopped(job_dir: Path, attempt: int, stopped: Stopped) -> None:
    """Keep why an attempt was ended, for its verdict; a full disk loses it."""
    with contextlib.suppress(OSError):
        contract.write_whole(job_dir / contract.stopped_file(attempt), to_json(stopped))


def jumps_before(job_dir: Path, attempt: int) -> dict[int, int]:
    """Return the step of each jump of the loss that ended an attempt before this one."""
    found = {n: read_stopped(job_dir, n) for n in range(1, attempt)}
    jump = str(VerdictKind.LOSS_SPIKE)
    return {n: stopped.step for n, stopped in found.items() if stopped and stopped.kind == jump}


def known_plateau(job_dir: Path, attempt: int) -> Stopped | None:
    """Return the plateau at which the supervisor ends an attempt, if it has found one."""
    stopped = read_stopped(job_dir, attempt)
    return stopped if stopped and stopped.kind == str(VerdictKind.PLATEAU) else None


def read_stopped(job_dir: Path, attempt: int) -> Stopped | None:
    """Return why a guard ended an attempt, if one did."""
    return contract.readable_record(Stopped, job_dir / contract.stopped_file(attempt))
