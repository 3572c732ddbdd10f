"""MLflow's and W&B's offline folders, read back by their own packages."""

import json
import subprocess
import sysconfig

import pytest
from third_party import place

from dlctl.errors import Misused
from dlctl.outputs.metrics.exports import parse_target

TRACKERS = place() / "trackers"
WRITE = """
import sys
sys.path += {paths!r}
from dlctl.contract import State
from dlctl.contract.metrics import MetricsLine, Source
from dlctl.outputs.metrics.exports import Measured, export
from dlctl.record import Record
from dlctl.series.merged import merge
from dlctl.series.replays import Origin
loop = Origin(1, 0, Source.LOOP)
entries = merge([(loop, MetricsLine(s, 1, 100.0 + s, {{"loss": 1.0 / s, "validation_loss": None}}))
                 for s in range(1, 2001)])
record = Record("t-1", "digits", "mine", "/f", "/j", "2026-01-01T00:00:00+00:00", tags=["a"],
                notes=["2026-01-02 odd"], state=State.FAILED)
one = Measured(record, entries, {{"lr": "0.1"}})
for _ in range(2):
    print(export({name!r}, {place!r}, [one]))
"""
READ_MLFLOW = """
import json, os, sys
os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
from mlflow.tracking import MlflowClient
client = MlflowClient(tracking_uri=sys.argv[1])
(run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
history = client.get_metric_history(run.info.run_id, "loss")
print(json.dumps([run.info.run_name, run.info.status, run.data.params, run.data.tags["tags"],
                  len(history), history[-1].step, history[-1].value, history[-1].timestamp]))
"""
READ_WANDB = """
import glob, json, struct, sys
from wandb.proto.wandb_internal_pb2 import Record
(path, *_) = sorted(glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb"))
data, at, whole, steps, run = open(path, "rb").read(), 7, b"", {}, None
while at + 7 <= len(data):  # LevelDB's log: blocks of 32 KiB
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    _, size, kind = struct.unpack("<IHB", data[at:at + 7])
    whole += data[at + 7:at + 7 + size]
    at += 7 + size
    if kind in (1, 4):
        record, whole = Record.FromString(whole), b""
        if record.HasField("run"):
            run = record.run
        for item in record.history.item:
            key = item.key or "/".join(item.nested_key)
            steps.setdefault(record.history.step.num, {})[key] = item.value_json
print(json.dumps([run.run_id, run.project, list(run.tags), len(steps), steps[2000]["loss"]]))
"""


def own(text, *words):
    python = TRACKERS / "bin/python"
    done = subprocess.run([python, "-c", text, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def written(request, tmp_path):
    def write(name):
        if not list((TRACKERS / "lib").glob(f"*/site-packages/{name}")):
            pytest.skip(f"{TRACKERS} lacks {name}: make test-all")
        paths = [str(request.config.rootpath), sysconfig.get_path("purelib")]
        return own(WRITE.format(paths=paths, name=name, place=str(tmp_path)))

    return write


@pytest.mark.slow
def test_mlflow_reads_its_folder_where_a_second_export_replaces_the_first(written, tmp_path):
    assert f"1 run in {tmp_path}; with the package mlflow: MLFLOW_ALLOW" in written("mlflow")
    found = json.loads(own(READ_MLFLOW, tmp_path.as_uri()))
    assert found == ["t-1", "FAILED", {"lr": "0.1"}, "a", 2000, 2000, 0.0005, 2_100_000]


@pytest.mark.slow
def test_wandb_reads_its_folder(written, tmp_path):
    assert f"wandb sync {tmp_path}/wandb/offline-run-*" in written("wandb")
    found = json.loads(own(READ_WANDB, str(tmp_path)))
    assert found == ["t-1", "digits", ["a", "mine"], 2000, "0.0005"]


def test_a_package_that_is_missing_and_an_unknown_format_are_named():
    assert parse_target("mlflow=http://host:5000") == ("mlflow", "http://host:5000")
    for wrong in ("excel=x", "mlflow", "mlflow="):
        with pytest.raises(Misused, match="FORMAT=PLACE, with one of tensorboard, parquet, mlflow"):
            parse_target(wrong)
