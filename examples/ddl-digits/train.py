import os
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from learner import ddl

ddl.init()
torch.manual_seed(0)
table = torch.from_numpy(np.loadtxt("data/digits.csv.gz", delimiter=",", dtype=np.float32))
images, labels = table[:, :-1] / 16, table[:, -1].long()
test = torch.arange(len(labels)) % 5 == 0
train = TensorDataset(images[~test], labels[~test])
train = ddl.partition(train)
loader = DataLoader(train, batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
ddl.broadcast_parameters(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
optimizer = ddl.DistributedOptimizer(optimizer)

best = 0.0
for epoch in range(15):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean().item()
    if accuracy > best and ddl.rank() == 0:
        best = accuracy
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.4f}", flush=True)
        torch.save(model.state_dict(), Path(os.environ.get("RESULT_DIR", "."), "model.pt"))
