"""A manifest of the service's successor, as it is: mount_cos, TensorFlow, evaluation_metrics.

TensorFlow's import alone takes longer than five seconds; `make test-frameworks` runs this.
"""

from __future__ import annotations

import json

import pytest
from moto_server import running_moto
from relay import relayed
from third_party import python_of
from trainings import REPOSITORY, change_site, submit, wait_for_state

from dlctl import contract
from dlctl.contract.stores import Stored

MANIFEST = """\
name: tf_convolutional_network_tutorial
description: Network on handwritten digits, by two workers
version: "1.0"
gpus: 0
cpus: 0.5
memory: 1500MiB
learners: 2
nodes: 2
time: 10m

data_stores:
  - id: sl-internal-os
    type: mount_cos
    training_data:
      container: tf_training_data
    training_results:
      container: tf_trained_model
    connection:
      auth_url: http://s3.default.svc.cluster.local
      user_name: test
      password: opensesame-and-more

framework:
  name: tensorflow
  version: "2.21.0-py3"
  command: >
    if [[ "$LEARNER_ID" == "1" ]]; then echo "first of $NUM_LEARNERS"; fi;
    python3 network.py --digits ${DATA_DIR}/digits.csv.gz
      --results ${RESULT_DIR} --epochs 12

evaluation_metrics:
  type: tensorboard
  in: "$JOB_STATE_DIR/logs/tb"
"""
PROGRAM = """\
import argparse, gzip, os, sys
import numpy as np
import tensorflow as tf
import tf_keras as keras

options = argparse.ArgumentParser()
for name in ("digits", "results", "epochs"):
    options.add_argument("--" + name)
options = options.parse_args()
same = "/mnt/data/tf_training_data/digits.csv.gz"
assert os.path.samefile(options.digits, same), "the paths of the containers exist, too"
chief = os.environ["LEARNER_ID"] == "1"
table = np.loadtxt(gzip.open(same, "rt"), delimiter=",", dtype=np.float32)
images, labels = table[:, :-1] / 16, table[:, -1].astype(np.int64)
keras.utils.set_random_seed(1)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.layers.Input((64,)),
                              keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                  metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(2000, seed=1).batch(64)
seen = model.fit(data, epochs=int(options.epochs), verbose=0).history["accuracy"]
if chief:
    with tf.summary.create_file_writer(os.environ["JOB_STATE_DIR"] + "/logs/tb/train").as_default():
        for epoch, accuracy in enumerate(seen):
            tf.summary.scalar("accuracy", accuracy, step=epoch)
    os.makedirs("/mnt/results/tf_trained_model/" + os.environ["TRAINING_ID"] + "/model")
    np.savez("/mnt/results/tf_trained_model/" + os.environ["TRAINING_ID"] + "/model/weights.npz",
             *model.get_weights())
    print("trained to", seen[-1], flush=True)
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.frameworks
def test_a_manifest_of_the_successor_trains_from_its_bucket_to_its_bucket(dlctl, cluster_site, xdg):
    python = python_of("tf", cluster_site)
    folder = dlctl.cwd / "successor"
    folder.mkdir()
    (folder / "manifest.yml").write_text(MANIFEST)
    (folder / "network.py").write_text(PROGRAM)
    digits = (REPOSITORY / "examples/frameworks/data/digits.csv.gz").read_bytes()
    with running_moto() as moto, relayed(cluster_site.cluster, moto.port) as address:
        moto.bucket("tf_training_data", {"digits.csv.gz": digits})
        moto.bucket("tf_trained_model", {})
        there = {"http://s3.default.svc.cluster.local": f"http://{address}"}
        environments = {"tf": {"frameworks": {"tensorflow": "2.21"}, "python": str(python)}}
        changed = change_site(cluster_site, xdg.config, endpoints=there, environments=environments)
        training_id = submit(dlctl, changed, folder)
        wait_for_state(dlctl, training_id, "COMPLETED", timeout_s=200)
        log = dlctl("logs", training_id, ok=True).stdout
        assert "learner-0 | first of 2\n" in log
        job_dir = cluster_site.job_dir(training_id)
        reports = [contract.read_record(contract.Preflight, job_dir / contract.preflight_file(1, n))
                   for n in (0, 1)]  # fmt: skip
        assert reports[0].node != reports[1].node
        found = dlctl("metrics", training_id, "--json", ok=True).stdout.splitlines()
        values = [json.loads(line)["values"] for line in found]
        accuracies = [each["accuracy"] for each in values if "accuracy" in each]
        assert len(accuracies) == 12, found[:3]
        assert accuracies[-1] > 0.9 > accuracies[0]
        stored = contract.from_json(
            Stored, moto.get("tf_trained_model", f"{training_id}/_complete.json")
        )
        assert (stored.state, stored.attempt) == ("COMPLETED", 1)
        names = moto.names("tf_trained_model")
        logs = {f"learner-{n}/training-log.txt" for n in (1, 2)}
        wanted = {"model/weights.npz", "_submitted_code/model.zip", "_complete.json", *logs}
        assert {f"{training_id}/{name}" for name in wanted} <= names
        own = (job_dir / "results/model/weights.npz").read_bytes()
        assert moto.get("tf_trained_model", f"{training_id}/model/weights.npz") == own
    kept = json.dumps(dlctl("show", training_id, "--json", ok=True).json)
    held = [p for p in job_dir.rglob("*") if p.is_file() and b"opensesame" in p.read_bytes()]
    assert held == [] and "opensesame" not in kept
