"""scikit-learn, one learner: a forest of trees."""

import argparse
import os
import pickle
from pathlib import Path

from digits import load_digits
from sklearn.ensemble import RandomForestClassifier

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int, default=50)
train, test = load_digits()
forest = RandomForestClassifier(parser.parse_args().trees, random_state=1).fit(*train)
Path(os.environ["RESULT_DIR"], "forest.pkl").write_bytes(pickle.dumps(forest))
print(f"test accuracy {forest.score(*test):.4f}")
