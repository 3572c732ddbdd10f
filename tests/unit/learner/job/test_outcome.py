"""Which kind of failure a fault is that dlctl itself recognized."""

from __future__ import annotations

import pytest

from dlctl.contract import VerdictKind
from learner.errors import SiteFault, UserFault
from learner.job.outcome import fault_outcome

K = VerdictKind


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (UserFault("train.py has no function build"), K.USER_ERROR),
        (SiteFault("The node's Python lacks the module watchdog."), K.SITE),
        (UserFault("'/data' can't be copied: No space left on device"), K.DISK_FULL),
        (SiteFault("The results can't be indexed: Disk quota exceeded"), K.DISK_FULL),
    ],
)
def test_a_fault_has_a_kind(fault, kind):
    assert fault_outcome(fault).kind == kind
