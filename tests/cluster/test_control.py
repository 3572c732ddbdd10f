"""Control while it runs: orders and guards, on this machine and on a real Slurm."""

from __future__ import annotations

import json

import pytest
from test_main_road import SLOW_TRAIN
from trainings import (
    ON_THE_CLUSTER,
    begin,
    halt,
    run,
    submit,
    wait_for_file,
    wait_for_state,
    write_training,
)
from waiting import wait_until

from dlctl import contract

NAN_AT_7 = (
    SLOW_TRAIN.replace("PAUSE_S = arguments", "PAUSE_S = 0; arguments")
    .replace("def build", "STEPS = [0]\ndef loss(outputs, targets):\n"
             "    STEPS[0] += 1\n"
             "    value = torch.nn.functional.cross_entropy(outputs, targets)\n"
             "    return value * float('nan') if STEPS[0] == 7 else value\n\ndef build")
    .replace('"loss": torch.nn.functional.cross_entropy', '"loss": loss')
)  # fmt: skip


def slow_training(folder, **keys):
    training = {"epochs": 4, "batch_size": 32, "seed": 3, "log_every_steps": 1}
    files = {"train.py": SLOW_TRAIN}
    # On a busy machine commands take seconds: the training must not end before they are heeded.
    program = {"job": "train.py", "arguments": {"pause_s": 0.75}}
    return write_training(folder, program, files, learners=2, training=training, **keys)


@ON_THE_CLUSTER
def test_a_training_is_tuned_while_it_runs_and_after_a_restart(dlctl, site):
    folder = slow_training(dlctl.cwd)
    training_id = submit(dlctl, site, folder)
    wait_for_state(dlctl, training_id, "TRAINING")
    job_dir = site.job_dir(training_id)
    wait_for_file(job_dir / contract.metrics_file(1, 0))
    done = dlctl("tune", training_id, "lr=0.003", "batch_size=64", "--json", ok=True).json
    step = done["answer"]["step"]
    assert done["number"] == 1 and step >= 1 and not done["answer"]["problem"]
    running = dlctl("report", training_id, "--json", ok=True).json
    assert running["attempts"] == 1 and running["node_hours"] > 0
    saved = dlctl("checkpoints", "save", training_id, "--json", ok=True).json
    assert saved["number"] == 2 and saved["answer"]["step"] >= step
    refused = dlctl("tune", training_id, "colour=red")
    assert refused.exit_code == 11 and "is no setting that can be tuned" in refused.stderr
    halt(dlctl, training_id)
    dlctl("tune", training_id, "lr=0.001", ok=True)
    (job_dir / contract.JOB_STATE / "hurry").touch()
    dlctl("resume", training_id, ok=True)
    wait_for_state(dlctl, training_id, "COMPLETED")
    dlctl("fetch", "results", training_id, "--to", folder / "got", ok=True)
    lines = [json.loads(line) for line in (folder / "got/metrics.jsonl").read_text().splitlines()]
    events = {line["event"]: line["step"] for line in lines if "event" in line}
    assert events["order 1: tuned lr=0.003, batch_size=64"] == step
    assert "order 2: asked for a checkpoint" in events
    third = events["order 3: tuned lr=0.001"]
    rates = {line["step"]: line["learning_rate"] for line in lines if "learning_rate" in line}
    assert {rates[n] for n in rates if n <= step} == {0.01}
    assert {rates[n] for n in rates if step < n <= third} == {0.003}
    assert {rates[n] for n in rates if n > third} == {0.001}
    assert max(rates) < 4 * 16, "larger batches: fewer steps"
    assert dlctl("tune", training_id, "lr=1").exit_code == 11
    shown = " ".join(dlctl("show", training_id, "--all", ok=True).stdout.split())
    assert f"lr=0.003, batch_size=64 since step {step}; a checkpoint at step " in shown
    assert_hours(dlctl, site, training_id)


def assert_hours(dlctl, site, training_id):
    """Check the ledger of a training that was halted and resumed; Slurm has an accounting."""

    def settled():
        found = dlctl("report", training_id, "--json", ok=True).json
        return found if not site.is_cluster or found["cpus_used"] is not None else None

    found = wait_until(settled, 60, what="the accounting")
    assert found["attempts"] == 2
    assert sum(found["node_hours_by_use"].values()) == pytest.approx(found["node_hours"])
    assert found["node_hours_by_use"]["useful"] > 0 and found["node_hours_by_use"]["starting"] > 0
    assert found["node_hours_by_use"]["again"] == 0
    assert found["memory_asked_bytes"] == 768 * 2**20 and found["memory_used_bytes"] > 2**20
    shown = dlctl("report", training_id, ok=True).stdout
    assert "lost to faults" in shown and "of the node time" in shown


@ON_THE_CLUSTER
def test_a_loss_that_is_no_number_is_named_with_its_step_and_not_retried(dlctl, site):
    files = {"train.py": NAN_AT_7}
    folder = write_training(
        dlctl.cwd, {"job": "train.py"}, files, learners=2, stop={"not_a_number": True},
        training={"epochs": 2, "batch_size": 32},
    )  # fmt: skip
    done, training_id = run(dlctl, site, folder)
    assert done.exit_code == 10
    verdict = dlctl("show", training_id, "--json", ok=True).json["verdict"]
    assert (verdict["kind"], verdict["reason"]) == ("not_a_number", "The loss is nan at step 7.")
    assert verdict["action"]["kind"] == "stop"


@ON_THE_CLUSTER
def test_a_plateau_ends_a_training_early_with_its_results(dlctl, site):
    files = {"train.py": SLOW_TRAIN.replace("lr=0.01", "lr=0.0")}
    folder = write_training(
        dlctl.cwd, {"job": "train.py", "arguments": {"pause_s": 0}}, files,
        stop={"plateau": {"metric": "loss", "patience": 2}},
        training={"epochs": 50, "batch_size": 64},
    )  # fmt: skip
    done, training_id = run(dlctl, site, folder, ok=True)
    verdict = dlctl("show", training_id, "--json", ok=True).json["verdict"]
    assert (verdict["state"], verdict["kind"]) == ("COMPLETED", "plateau")
    assert "loss has not improved in 2 epochs" in verdict["reason"]
    assert (site.job_dir(training_id) / "results/model.pt").exists()


def test_hours_that_are_used_up_halt_the_training(dlctl, local_site):
    folder = slow_training(dlctl.cwd, stop={"max_node_hours": 2 / 3600})
    done, training_id = run(dlctl, local_site, folder, ok=True)
    verdict = dlctl("show", training_id, "--json", ok=True).json["verdict"]
    assert (verdict["state"], verdict["kind"]) == ("HALTED", "budget")
    assert verdict["action"]["kind"] == "stop"
    assert "max_node_hours" in verdict["reason"]


JUMPS_ONCE = NAN_AT_7.replace(
    "value * float('nan') if STEPS[0] == 7 else value", "value * (1000 if jumps() else 1)"
).replace(
    "def build", "def jumps():\n"
    "    time.sleep(0.03)  # else a loaded machine still writes step 8 when step 16 is due\n"
    "    seen = Path(os.environ['JOB_STATE_DIR'], 'jumped-' + os.environ['RANK'])\n"
    "    return STEPS[0] == 20 and not seen.exists() and not seen.touch()\n\ndef build",
)  # fmt: skip


@ON_THE_CLUSTER
def test_a_loss_that_jumps_is_rolled_back(dlctl, site):
    folder = write_training(
        dlctl.cwd, {"job": "train.py"}, {"train.py": JUMPS_ONCE}, learners=2,
        stop={"loss_spike": {"factor": 10}}, retry={"backoff": "1s"}, retries=2,
        training={"epochs": 3, "batch_size": 32, "log_every_steps": 1},
        checkpoint={"every": "8 steps"},
    )  # fmt: skip
    training_id, job_dir = begin(dlctl, site, folder)
    wait_for_file(job_dir / contract.verdict_file(2))
    first, second = (
        contract.read_record(contract.Verdict, job_dir / contract.verdict_file(n)) for n in (1, 2)
    )
    assert first.kind == "loss_spike" and "at step 20" in first.reason
    assert first.action.kind == "retry" and first.progress == 16
    assert second.state == "COMPLETED"
    wait_for_state(dlctl, training_id, "COMPLETED")
    dlctl("fetch", "results", training_id, "--to", folder / "got", ok=True)
    lines = [json.loads(line) for line in (folder / "got/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 49))
    report = dlctl("report", training_id, "--json", ok=True).json
    assert report["attempts"] == 2 and report["node_hours_by_use"]["again"] > 0
