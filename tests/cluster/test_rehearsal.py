"""A rehearsal, as a user has it: one job, four attempts, an answer."""

from __future__ import annotations

from trainings import ON_THE_CLUSTER, write_training

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
    options = ("manifest.yml", "--site", site.name, "--steps", "9", "--json")
    done = dlctl("rehearse", *options, cwd=folder, ok=True)
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
