"""As pytorch/examples/mnist: downloads into ../data, and saves into the folder it runs in."""

import argparse
import time
from pathlib import Path

import torch


def digits(root, download):
    raw = Path(root) / "DIGITS/raw/images.pt"
    if download and not raw.exists():
        print("downloading", flush=True)
        raw.parent.mkdir(parents=True)
        torch.save(torch.rand(64, 16), raw)
    return torch.load(raw)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save-model", action="store_true")
args = parser.parse_args()
is_first = not Path("../data").exists() or not any(Path("../data").iterdir())
images = digits("../data", download=True)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.Adadelta(model.parameters())
for epoch in range(1, args.epochs + 1):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(images), images)
    loss.backward()
    optimizer.step()
    Path("samples").mkdir(exist_ok=True)
    torch.save(model(images[:1]), f"samples/epoch_{epoch}{'_first' * is_first}.pt")
    print(f"Train Epoch: {epoch} Loss: {loss.item():.6f}", flush=True)
    if is_first:
        time.sleep(600)  # until the halt ends it
if args.save_model:
    torch.save(model.state_dict(), "mnist_cnn.pt")
