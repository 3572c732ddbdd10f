"""What an earlier training has used, made up."""

from dlctl.contract.measured.past import Past

GIB, MIB = 2**30, 2**20


def past(number=1, **values):
    """Return the only attempt of `digits-<number>`, which completed on the site `testbed`."""
    given = {
        "training_id": f"digits-{number}", "attempt": 1, "name": "digits", "code_digest": "c0de",
        "job_id": str(number), "site": "testbed", "partition": "short", "learners": 2, "nodes": 1,
        "gpus": 0, "cpus": 8, "memory_asked_bytes": 32 * GIB, "epochs": 1, "batch_size": 64,
        "state": "COMPLETED", "held_s": 100.0, "start_s": 20.0, "store_s": 10.0,
        "memory_bytes": 3 * GIB, "cpus_used": 1.5, "step_s": 0.5, "steps": 100,
        "epoch_samples": 6400.0, "exchange_share": 0.2, "save_s": 2.0,
    }  # fmt: skip
    return Past(**(given | values))
