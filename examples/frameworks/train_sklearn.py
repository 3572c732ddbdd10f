"""scikit-learn, one learner: a forest that grows tree by tree, and goes on from the trees it has.

Saves every 10 trees, and at a halt after the running tree.
"""

import argparse
import os
import pickle
import signal
import sys
from pathlib import Path

from digits import load_digits
from sklearn.ensemble import RandomForestClassifier

HALTED = 85


def save(forest, path):
    """Write a file that is whole or absent."""
    path.with_name(".part").write_bytes(pickle.dumps(forest))
    path.with_name(".part").rename(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=50)
    options = parser.parse_args()
    asked = []
    signal.signal(signal.SIGUSR2, lambda *_: asked.append(1))
    train, test = load_digits()
    folder = Path(os.environ["CHECKPOINT_DIR"])
    saved = sorted(folder.glob("forest-*.pkl"), key=lambda path: int(path.stem[7:]))
    forest = RandomForestClassifier(0, warm_start=True, random_state=1)
    if saved:
        forest = pickle.loads(saved[-1].read_bytes())
        print(f"continuing at step {forest.n_estimators}", flush=True)
    while forest.n_estimators < options.trees:
        forest.set_params(n_estimators=forest.n_estimators + 1).fit(*train)
        if forest.n_estimators % 10 == 0 or asked:
            for old in saved[:-1]:
                old.unlink()
            saved = [*saved[-1:], folder / f"forest-{forest.n_estimators}.pkl"]
            save(forest, saved[-1])
        if asked:
            sys.exit(HALTED)
    save(forest, Path(os.environ["RESULT_DIR"], "forest.pkl"))
    print(f"test accuracy {forest.score(*test):.4f}", flush=True)


main()
