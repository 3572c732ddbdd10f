"""PyTorch's FSDP with a sharded checkpoint: each learner writes and reads its part of the model."""

import argparse
import os
import sys
from pathlib import Path

import torch
from digits import load_digits
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from learner.adapters import Batches
from learner.adapters.dcp import Checkpoints


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    rank, learners = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo")
    torch.manual_seed(1)
    (images, labels), (test_images, test_labels) = (
        tuple(map(torch.from_numpy, part)) for part in load_digits()
    )
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    model = torch.nn.Sequential(*layers)
    fully_shard(model, mesh=init_device_mesh("cpu", (learners,)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    def state():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments}

    kept, loaded = Checkpoints(), state()
    done = kept.restore(loaded)
    if done:
        set_state_dict(model, optimizer, model_state_dict=loaded["model"],
                       optim_state_dict=loaded["optimizer"])  # fmt: skip
        if rank == 0:
            print(f"continuing at step {done}", flush=True)
    batches, step = Batches(len(images), 64, done, seed=1, rank=rank, learners=learners), done
    while step < options.steps:
        for chosen in batches:
            step += 1
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            if step % 20 == 0:
                kept.save(step, state())
            kept.leave_if_asked(step, state)
            if step == options.steps:
                break
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(images), labels).item()
        accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
    whole = {name: value.full_tensor() for name, value in model.state_dict().items()}
    if rank == 0:
        torch.save(whole, Path(os.environ["RESULT_DIR"], "model.pt"))
        print(f"trained by {learners} learners, final loss {loss:.6f}, "
              f"test accuracy {accuracy:.4f}", flush=True)  # fmt: skip
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads would wait for one another


main()
