"""XGBoost: the learners build every tree together; learner 0's tracker brings them together."""

import argparse
import os
import signal
import sys
from pathlib import Path

import numpy as np
import xgboost as xgb
from digits import load_digits
from xgboost import collective
from xgboost.tracker import RabitTracker

HALTED = 85
RANK, LEARNERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def saved_rounds(folder):
    """Return what TrainingCheckPoint has written, the newest last."""
    return sorted(folder.glob("digits_*.ubj"), key=lambda path: int(path.stem[7:]))


class EndAtHalt(xgb.callback.TrainingCallback):
    """Stops after the round in which any learner got the signal, and keeps the newest two saved."""

    def __init__(self, folder):
        self.folder, self.asked, self.halted = folder, False, False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_):
        self.asked = True

    def after_iteration(self, model, epoch, evals_log):
        asked = np.array([float(self.asked)])
        self.halted = bool(collective.allreduce(asked, collective.Op.SUM)[0])
        if RANK == 0:
            for old in saved_rounds(self.folder)[:-2]:
                old.unlink()
        return self.halted


def train(folder, rounds):
    (images, labels), (test_images, test_labels) = load_digits()
    data = xgb.DMatrix(images[RANK::LEARNERS], labels[RANK::LEARNERS])
    saved = saved_rounds(folder)
    before = int(saved[-1].stem[7:]) + 1 if saved else 0
    if saved:
        print(f"continuing after round {before}", flush=True)
    halt = EndAtHalt(folder)
    keep = xgb.callback.TrainingCheckPoint(str(folder), name="digits", interval=1)
    settings = {"objective": "multi:softmax", "num_class": 10, "max_depth": 4, "nthread": 1}
    model = xgb.train(
        settings, data, rounds - before, xgb_model=str(saved[-1]) if saved else None,
        callbacks=[keep, halt] if RANK == 0 else [halt],
    )  # fmt: skip
    if halt.halted:
        return HALTED
    if RANK == 0:
        accuracy = np.mean(model.inplace_predict(test_images) == test_labels)
        model.save_model(Path(os.environ["RESULT_DIR"], "model.ubj"))
        print(f"trained by {LEARNERS} learners, test accuracy {accuracy:.4f}", flush=True)
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    folder = Path(os.environ["CHECKPOINT_DIR"])
    if LEARNERS == 1:
        return train(folder, options.rounds)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        tracker = RabitTracker(host_ip=address, port=port, n_workers=LEARNERS)
        tracker.start()
    with collective.CommunicatorContext(
        dmlc_communicator="rabit", dmlc_tracker_uri=address, dmlc_tracker_port=port,
        dmlc_retry=30, dmlc_task_id=str(RANK),
    ):  # fmt: skip
        code = train(folder, options.rounds)
    if RANK == 0:
        tracker.wait_for()
    return code


sys.exit(main())
