"""A framework that a user adds beside the manifest: halted, looked at, continued."""

from __future__ import annotations

import zipfile

from trainings import ON_THE_CLUSTER, halt, run, submit, write_training
from waiting import wait_until

WHEEL = "wheel_of_a_test-1-py3-none-any.whl"
SHOW = "import wheel_of_a_test as w; print(w.ANSWER, w.__file__)"
SETTINGS = """\
title: a program that counts
job: {suffix: .count, example: far.count}
signal: TERM
checkpoint: {files: "at-*"}
"""
TEMPLATE = """\
export GOAL=$(cat {{ job | sh }})
python3 counter.py {{ options }}
"""
PROGRAM = """\
import os, pathlib, signal, sys, time
folder, mine = pathlib.Path(os.environ["CHECKPOINT_DIR"]), os.environ["RANK"] == "0"
known = sorted(int(p.name[3:]) for p in folder.glob("at-*"))
count = known[-1] if known else 0
print("begins at", count, sys.argv[1:], flush=True)
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
while count < int(os.environ["GOAL"]) and not asked:
    time.sleep(0.05)
    count += 1
    if mine:
        (folder / f"at-{count}").mkdir()
        (folder / f"at-{count}/state").write_text("x" * count)
        (folder / f"at-{count}/complete.json").write_text("{}")
print("ends at", count, flush=True)
"""
"""A checkpoint a step; saved nothing is lost, whenever the signal comes."""
PARTS = """\
import torch

def parts(slope):
    model, x = torch.nn.Linear(1, 1), torch.arange(8.0).reshape(8, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
            "loss": torch.nn.MSELoss(), "train": torch.utils.data.TensorDataset(x, slope * x)}
"""
READS = """\
from dataclasses import replace
from learner.errors import UserFault

def check(plan, code):
    if not (code / plan.framework.job).read_text().strip().isdigit():
        raise UserFault("a.line has no number")

def planned(plan, code):
    return replace(plan, training=replace(plan.training, epochs=1, batch_size=2))

def build(plan, code):
    from .parts import parts
    return parts(int((code / plan.framework.job).read_text()))

def take_weights(model, path):
    return ["the slope"]

def export(plan, code, model, step, results):
    path = results / "model.line"
    path.write_text(f"{step} steps of {plan.training.batch_size}")
    return path
"""


@ON_THE_CLUSTER
def test_a_framework_beside_the_manifest_is_halted_and_goes_on(dlctl, site):
    place = "templates/frameworks/counting"
    folder = write_training(
        dlctl.cwd, {"name": "counting", "job": "far.count", "arguments": {"by": 1}},
        {"far.count": "60", "counter.py": PROGRAM, f"{place}/framework.yml": SETTINGS,
         f"{place}/train.sh.j2": TEMPLATE},
    )  # fmt: skip
    training_id = submit(dlctl, site, folder)
    saved = site.job_dir(training_id) / "checkpoints"
    wait_until((saved / "at-3").exists, 90)
    known = halt(dlctl, training_id)
    assert known["reason"] == "Halted on request."
    script = (site.job_dir(training_id) / "attempts/1/train.sh").read_text()
    assert "export GOAL=$(cat far.count)\npython3 counter.py --by 1\n" in script
    listed = dlctl("checkpoints", "list", training_id, "--json", ok=True).json
    newest = listed[0]["step"]
    assert (listed[0]["name"], listed[0]["complete"]) == (f"at-{newest}", True)
    (saved / f"at-{newest - 1}/complete.json").unlink()
    verified = dlctl("checkpoints", "verify", training_id, "--json")
    assert verified.exit_code == 9
    assert {c["name"]: c["problem"] for c in verified.json if c["problem"]} == {
        f"at-{newest - 1}": "complete.json is missing"
    }
    shown = dlctl("show", training_id, "--all", ok=True).stdout
    assert f"Yes, of step {newest}" in shown
    done = dlctl("resume", training_id, "--follow", ok=True)
    assert f"learner-0 | begins at {newest} ['--by', '1']" in done.stdout
    assert "learner-0 | ends at 60" in done.stdout


def test_the_built_in_loop_trains_what_a_users_framework_reads(dlctl, local_site):
    """A file of a number, by a module beside the manifest with each of its functions."""
    place = "templates/frameworks/line"
    files = {
        f"{place}/framework.yml": "title: a line\njob: {suffix: .line}\nloop: {module: reads.py}\n",
        f"{place}/train.sh.j2": "{{ program }}\n", f"{place}/parts.py": PARTS,
        f"{place}/reads.py": READS, "a.line": "3\n",
    }  # fmt: skip
    program = {"name": "line", "job": "a.line", "arguments": {"weights": "a.line"}}
    folder = write_training(dlctl.cwd, program, files)
    done, training_id = run(dlctl, local_site, folder, ok=True)
    assert "not loaded from a.line: the slope" in done.stdout
    results = local_site.job_dir(training_id) / "results"
    assert (results / "model.line").read_text() == "4 steps of 2"
    (folder / "a.line").write_text("three\n")
    wrong, _ = run(dlctl, local_site, folder)
    assert wrong.exit_code != 0
    assert "a.line has no number" in wrong.stdout + wrong.stderr


def test_pip_in_a_command_changes_nothing_at_the_site(dlctl, local_site):
    """A wheel of the submitted folder, so that the test needs no network."""
    command = f"pip3 install -q --no-index ./{WHEEL} && python3 -c '{SHOW}'"
    folder = write_training(dlctl.cwd, {"name": "custom", "command": command})
    info = "wheel_of_a_test-1.dist-info"
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("wheel_of_a_test.py", "ANSWER = 42\n")
        named = "Metadata-Version: 2.1\nName: wheel-of-a-test\nVersion: 1\n"
        wheel.writestr(f"{info}/METADATA", named)
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", "")
    done, training_id = run(dlctl, local_site, folder, ok=True)
    assert f"42 {local_site.job_dir(training_id)}/state/packages/learner-1/" in done.stdout
