"""From a training that used a tenth of what the next one asks for to a manifest that fits."""

from __future__ import annotations

import re

from hints import commands_in
from trainings import ON_THE_CLUSTER, run, write_training
from waiting import wait_until

MANIFEST = """\
# The big one.
name: fault
learners: 2
memory: {memory}   # surely enough
time: 10h
framework: {{name: pytorch, job: train.py}}
training: {{epochs: 2, batch_size: 16, log_every_steps: 1}}
"""


@ON_THE_CLUSTER
def test_a_manifest_that_asks_for_ten_times_what_was_used_is_made_to_fit(dlctl, site):
    training = {"epochs": 2, "batch_size": 16, "log_every_steps": 1}
    folder = write_training(dlctl.cwd / "small", {"job": "train.py"}, {"train.py": TRAIN},
                            learners=2, training=training, memory="700MiB")  # fmt: skip
    done, training_id = run(dlctl, site, folder, cwd=dlctl.cwd, ok=True)
    big = dlctl.cwd / "big"
    big.mkdir()
    (big / "train.py").write_text(TRAIN)
    manifest = big / "manifest.yml"
    manifest.write_text(MANIFEST.format(memory="7000MiB"))

    def suggest(*options, **how):
        return dlctl("suggest", manifest, "--site", site.name, *options, **how)

    found = suggest("--json", ok=True).json
    assert found["trainings"] == 1 and found["unanswered"] == {}
    by_key = {each["key"]: each for each in found["suggestions"]}
    assert by_key["memory"]["asked"] == "7000MiB" and by_key["memory"]["suggested"]
    assert re.fullmatch(r"1 training with 2 learners: \d+ MiB", by_key["memory"]["evidence"])
    assert by_key["time"]["suggested"] == "5m", by_key["time"]
    assert "1 training" in by_key["cpus"]["evidence"]
    start = found["start"]
    assert start["jobs"] == 1 and start["waited_s"] >= 0
    assert (start["planned_in_s"] is not None) == site.is_cluster, start
    shown = suggest(ok=True)
    assert "--write" in shown.stderr and "7000MiB" in shown.stdout
    before = manifest.read_text()
    assert before == MANIFEST.format(memory="7000MiB"), "nothing is changed without --write"
    ((command, _),) = commands_in(shown.stderr)
    assert command == f"suggest {manifest} --site {site.name} --write"
    written = dlctl(*command.split(), ok=True).stdout
    after = manifest.read_text()
    needed = by_key["memory"]["suggested"]
    assert f"+memory: {needed}   # surely enough" in written and "-time: 10h" in written
    assert f"memory: {needed}   # surely enough\ntime: 5m\n" in after
    assert after.startswith("# The big one.\nname: fault\n")
    dlctl("validate", manifest, ok=True)
    unchanged = suggest("--write", ok=True)
    assert unchanged.stdout.count("@@") == 0, "the second time nothing is left"
    assert "manifest.yml stays as it is" in unchanged.stderr
    # What was learned outlives the training, and costs a submission no question.
    dlctl("delete", training_id, "--yes", ok=True)
    again = suggest("--json", ok=True).json
    assert again["trainings"] == 1
    manifest.write_text(MANIFEST.format(memory="1900MiB"))
    rendered = dlctl("submit", manifest, "--site", site.name, "--time", "2h", ok=True)
    ((more, _),) = (each for each in commands_in(rendered.stderr) if each[0].startswith("suggest"))
    assert "has more" in rendered.stderr
    dlctl(*more.split(), cwd=big, env={"DLCTL_SITE": site.name}, ok=True)
    silent = dlctl("submit", manifest, "--site", site.name, "--no-advice", "--tag", "x", ok=True)
    assert "dlctl suggest" not in silent.stderr
    for each in (rendered, silent):
        dlctl("cancel", each.stdout.strip(), ok=True)


PEAK = """\
import os, time
if os.environ["RANK"] == "1":
    print(len(bytearray(b"1" * (400 << 20))))
time.sleep(14)
"""


@ON_THE_CLUSTER
def test_a_short_peak_of_a_learner_on_another_node_counts(dlctl, site):
    """Samples are 2 s apart, and until now only learner 0's counted."""
    nodes = {"nodes": 2, "learners_per_node": 1} if site.is_cluster else {"learners": 2}
    folder = write_training(dlctl.cwd / "peak", {"command": "python peak.py"}, {"peak.py": PEAK},
                            memory="900MiB", **nodes)  # fmt: skip
    done, training_id = run(dlctl, site, folder, cwd=dlctl.cwd, ok=True)
    found = dlctl("suggest", folder / "manifest.yml", "--site", site.name, "--json", ok=True).json
    (memory,) = [each for each in found["suggestions"] if each["key"] == "memory"]
    peak = int(re.search(r": (\d+) MiB", memory["evidence"])[1])
    assert 400 <= peak < 900, memory
    dlctl("delete", training_id, "--yes", ok=True)
    again = dlctl("suggest", folder / "manifest.yml", "--site", site.name, "--json", ok=True).json
    assert memory in again["suggestions"], "it outlives the training"


TRAIN = """\
import torch
from torch import nn

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 96
    def __getitem__(self, n):
        x = torch.randn(8, generator=torch.Generator().manual_seed(n))
        return x, x.sum().reshape(1)

def build(arguments):
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    return {"model": model, "optimizer": optimizer, "loss": nn.MSELoss(), "train": Noisy()}
"""


@ON_THE_CLUSTER
def test_a_restart_is_rehearsed_and_leaves_nothing_behind(dlctl, site):
    """Nine steps, over the end of an epoch."""
    folder = write_training(
        dlctl.cwd, {"job": "train.py"}, {"train.py": TRAIN}, learners=2,
        training={"epochs": 100, "batch_size": 16},
    )  # fmt: skip
    with dlctl.start("rehearse", "manifest.yml", "--site", site.name, cwd=folder) as killed:
        (record,) = wait_until(dlctl.records, 60, what="the rehearsal's record")
        killed.kill()
    ((command, _),) = commands_in(dlctl("resume", record.training_id).stderr)
    assert command == "rehearse manifest.yml"
    options = ("--site", site.name, "--steps", "9", "--json")
    done = dlctl(*command.split(), *options, cwd=folder, ok=True)
    answer = done.json
    found = answer["rehearsed"]
    assert (found["equal"], found["differing"], found["halted_at"]) == (True, [], 3)
    assert (found["killed_at"], found["steps"], found["total_steps"]) == (6, 9, 600)
    measured = ("step_s", "samples_per_s", "checkpoint_s", "memory_bytes", "start_s", "restart_s")
    assert all(found[name] > 0 for name in measured), found
    assert answer["forecast"]["links"] == 1
    assert done.stderr.count("follows: rehearsal, stage") == 3
    assert not site.job_dir(answer["training_id"]).exists()
    assert dlctl("logs").exit_code == 8, "it is no training of this folder"
