"""Ordinary scripts save where they like: no file of theirs is lost, and none in silence."""

from __future__ import annotations

import json
import os
import signal

from trainings import begin, halt, submit, wait_for_state, write_training
from waiting import wait_until

MNIST = """\
import json, os, pathlib, signal, sys, time
# As pytorch/examples/mnist: knows nothing of dlctl, and saves into the folder it runs in.
state = pathlib.Path("progress.json")
epoch = json.loads(state.read_text()) if state.exists() else 0
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(0))
pathlib.Path("__pycache__").mkdir(exist_ok=True)
pathlib.Path("__pycache__/mnist.pyc").write_bytes(b"compiled")
while epoch < 3:
    epoch += 1
    pathlib.Path("out").mkdir(exist_ok=True)
    pathlib.Path(f"out/epoch-{epoch}.txt").write_text(f"loss of {epoch}")
    state.write_text(json.dumps(epoch))
    print("epoch", epoch, flush=True)
    while epoch == 2 and not pathlib.Path("go").exists():
        time.sleep(0.05)
pathlib.Path("mnist_cnn.pt").write_bytes(b"w" * 5000)
pathlib.Path("settings.json").write_text("{}\\n")
"""
FILES = {"mnist.py": MNIST, "settings.json": "{}  "}
COMMAND = {"command": "exec python3 mnist.py"}


def test_what_a_script_saves_beside_itself_is_told_kept_and_fetched(dlctl, site, tmp_path):
    """Halted, resumed, completed, fetched and deleted: the model was in none of it."""
    folder = write_training(tmp_path / "job", COMMAND, FILES)
    sent = dlctl("submit", "manifest.yml", "--site", site.name, "--json", cwd=folder, ok=True)
    training_id = sent.json["training_id"]
    assert "neither RESULT_DIR nor CHECKPOINT_DIR" in sent.stderr
    code = site.job_dir(training_id) / "code"
    wait_until(lambda: (code / "out/epoch-2.txt").exists(), 60, what="the second epoch")
    halt(dlctl, training_id)
    halted = dlctl("show", training_id, ok=True).stdout
    assert "progress.json: 1 B; not in RESULT_DIR" in " ".join(halted.split())
    assert "newest checkpoint" not in halted
    (code / "go").touch()
    dlctl("resume", training_id, ok=True)
    wait_for_state(dlctl, training_id, "COMPLETED")
    told = "mnist_cnn.pt: 5.0 kB; out/: 3 files, 27 B"
    shown = dlctl("show", training_id, ok=True)
    assert told in " ".join(shown.stdout.split())
    assert f"dlctl fetch results {training_id}" in shown.stderr
    assert told in dlctl("list", ok=True).stdout
    assert "mnist_cnn.pt: 5.0 kB" in dlctl("logs", training_id, "--debug", ok=True).stdout
    assert told in dlctl("delete", training_id, "--dry-run", ok=True).stdout
    refused = dlctl("delete", training_id)
    assert refused.exit_code == 2
    assert told in " ".join(refused.stderr.split())
    got = tmp_path / "got"
    dlctl("fetch", training_id, "--to", got, ok=True)
    fetched = {path.relative_to(got).as_posix() for path in (got / "output").rglob("*.*")}
    assert fetched == {
        "output/mnist_cnn.pt", "output/progress.json", "output/settings.json",
        *(f"output/out/epoch-{n}.txt" for n in (1, 2, 3)),
    }  # fmt: skip
    assert (got / "output/mnist_cnn.pt").read_bytes() == b"w" * 5000
    refused = dlctl("models", "create", "--from", training_id)
    assert f"models create results/{training_id}/output" in refused.stderr
    assert "were fetched" in dlctl("delete", training_id, "--dry-run", ok=True).stdout
    dlctl("delete", training_id, "--yes", ok=True)


def test_what_a_program_keeps_in_checkpoint_dir_is_named_and_fetched(dlctl, site, tmp_path):
    """`show` said that there was no checkpoint, and `delete` that none had been fetched."""
    program = "mkdir $CHECKPOINT_DIR/best; echo w >$CHECKPOINT_DIR/best/model.pt; exit $CODE"
    folder = write_training(tmp_path / "job", {"command": program}, env={"CODE": "0"})
    sent = dlctl("submit", "manifest.yml", "--site", site.name, "--json", cwd=folder, ok=True)
    training_id = sent.json["training_id"]
    assert "sent" not in sent.stderr, "it has no file"
    wait_for_state(dlctl, training_id, "COMPLETED")
    shown = dlctl("show", training_id, ok=True)
    told = " ".join(shown.stdout.split())
    assert "The program has saved best (2 B" in told
    assert "checkpoint.files in the manifest" in told
    assert f"next: dlctl fetch checkpoints {training_id}" in shown.stderr
    (listed,) = dlctl("checkpoints", "list", training_id, "--json", ok=True).json
    assert (listed["name"], listed["size_bytes"], listed["complete"]) == ("best", 2, None)
    assert dlctl("checkpoints", "list", training_id, ok=True).stdout.startswith("name  step  size")
    (verified,) = dlctl("checkpoints", "verify", training_id, "--json", ok=True).json
    assert (verified["name"], verified["problem"]) == ("best", None)
    dry = ("delete", training_id, "--dry-run")
    lost = f"checkpoints (1 file, 2 B) were NOT fetched (dlctl fetch {training_id}; dlctl fetch "
    assert lost in " ".join(dlctl(*dry, ok=True).stdout.split())
    refused = dlctl("models", "create", "--from", training_id)
    assert f"dlctl fetch checkpoints {training_id}; dlctl models create" in refused.stderr
    got = tmp_path / "got"
    told = dlctl("fetch", "checkpoints", training_id, "--to", got, ok=True).stdout
    assert told.strip() == f"1 file in {got}/checkpoints/best"
    assert (got / "checkpoints/best/model.pt").read_text() == "w\n"
    assert "its checkpoints were fetched, its logs were NOT" in dlctl(*dry, ok=True).stdout
    failed = submit(
        dlctl, site, write_training(tmp_path / "no", {"command": "sleep 1; kill -9 $$"})
    )
    wait_for_state(dlctl, failed, "FAILED")
    said = dlctl("show", failed, ok=True)
    assert "from the newest checkpoint" not in said.stdout + said.stderr


def test_a_killed_supervisor_hides_nothing(dlctl, local_site, xdg, tmp_path):
    """It writes no verdict: whoever looks next finds what the program has written."""

    record = xdg.state / "dlctl/record.db"

    def prune() -> str:
        return dlctl("prune", "--older-than", "1s", "--dry-run", ok=True).stderr

    def adopt() -> str:
        """Adopt as another laptop does."""
        kept = record.rename(record.with_suffix(".mine"))
        told = dlctl("adopt", "local", ok=True).stderr
        kept.rename(record)
        return told

    folder = write_training(
        tmp_path / "job", {"command": "echo w >model.pt; exec sleep 600"}, retries=0
    )
    training_id, job_dir = begin(dlctl, local_site, folder)
    wait_until(lambda: (job_dir / "code/model.pt").exists(), 60, what="the model")
    for role in ("supervisor", "learner"):
        status = json.loads((job_dir / f"attempts/1/status/{role}-0.json").read_text())
        os.kill(status["pid"], signal.SIGKILL)
    only = f"output (model.pt: 2 B; not in RESULT_DIR) (dlctl fetch output {training_id})"
    wait_until(lambda: f"{training_id}: not fetched to this machine: {only}" in adopt(), 60)
    wait_for_state(dlctl, training_id, "FAILED")
    wait_until(lambda: f"{training_id}: NOT fetched: {only}" in prune(), 30)
    assert "model.pt: 2 B; not in RESULT_DIR" in dlctl("show", training_id, ok=True).stdout
    refused = dlctl("delete", training_id)
    assert refused.exit_code == 2
    assert "model.pt: 2 B" in refused.stderr
