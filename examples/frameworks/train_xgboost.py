"""XGBoost: the learners build every tree together; learner 0's tracker brings them together."""

import argparse
import os
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb
from digits import load_digits
from xgboost import collective
from xgboost.tracker import RabitTracker

from learner.adapters import xgboost

HALTED = 85
RANK, LEARNERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def train(rounds):
    (images, labels), (test_images, test_labels) = load_digits()
    data = xgb.DMatrix(images[RANK::LEARNERS], labels[RANK::LEARNERS])
    saved, before = xgboost.newest_checkpoint()
    if saved:
        print(f"continuing at step {before}", flush=True)
    halt = xgboost.save_at_halt()
    settings = {"objective": "multi:softprob", "num_class": 10, "max_depth": 4, "nthread": 1}
    model = xgb.train(
        settings, data, rounds - before, xgb_model=saved, callbacks=[halt], verbose_eval=False
    )
    if halt.halted:
        return HALTED
    # Asked of the model: an attempt that continues after the last round trains no round itself.
    loss = float(model.eval(data).rpartition(":")[2])  # over the data of all learners
    if RANK == 0:
        accuracy = np.mean(model.inplace_predict(test_images).argmax(1) == test_labels)
        model.save_model(Path(os.environ["RESULT_DIR"], "model.ubj"))
        print(f"trained by {LEARNERS} learners, final loss {loss:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if LEARNERS == 1:
        return train(options.rounds)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        tracker = RabitTracker(host_ip=address, port=port, n_workers=LEARNERS)
        tracker.start()
    with collective.CommunicatorContext(
        dmlc_communicator="rabit", dmlc_tracker_uri=address, dmlc_tracker_port=port,
        dmlc_retry=30, dmlc_task_id=str(RANK),
    ):  # fmt: skip
        code = train(options.rounds)
    if RANK == 0:
        tracker.wait_for()
    return code


sys.exit(main())
