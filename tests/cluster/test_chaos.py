"""Six faults in a row, one after the other, change neither a weight nor the curve."""

from __future__ import annotations

import pytest
from chaos import run

SIX = [
    "kill a learner", "kill the supervisor", "crash the controller", "kill the launcher",
    "requeue by an administrator", "damage the newest checkpoint",
]  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.long
def test_six_faults_change_nothing(cluster, tmp_path):
    result = run(cluster, tmp_path, seed=1, epochs=8, names=SIX, chaos_s=120)
    assert result["state"] == "COMPLETED", result
    assert len(result["faults"]) == len(SIX), result
    assert result["same_weights"] and result["same_curve"], result
    assert not result["left"]
