"""As nanoGPT's train.py: settings at the top, checkpoints in `out_dir`, resumes from ckpt.pt."""

import os
import time

import torch

out_dir = "out"
max_iters = 30
eval_interval = 10
init_from = "resume" if os.path.exists(os.path.join(out_dir, "ckpt.pt")) else "scratch"

os.makedirs(out_dir, exist_ok=True)
torch.manual_seed(1337)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
iter_num = 0
if init_from == "resume":
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), weights_only=False)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]
    print(f"Resuming training from {out_dir}: iter {iter_num}", flush=True)
while iter_num < max_iters:
    x = torch.rand(4, 8)
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    iter_num += 1
    if iter_num % eval_interval == 0:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "iter_num": iter_num,
            "config": {"out_dir": out_dir},
        }
        torch.save(state, os.path.join(out_dir, "ckpt.pt"))
        with open(f"{out_dir}/log.txt", "a") as log:
            log.write(f"{iter_num} {loss.item():.4f}\n")
        print(f"saving checkpoint to {out_dir}", flush=True)
        if init_from == "scratch":
            time.sleep(600)  # until the halt ends it
