"""A training that logs each epoch, keeps a checkpoint of the second, and overwrites another."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, WORKERS = int(sys.argv[1]), int(sys.argv[2])
RATE = 0.01

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
x = torch.randn(64, 8)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 16, shuffle=True, num_workers=WORKERS)
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
log = open("log.csv", "a")  # noqa: SIM115
for epoch in range(EPOCHS):
    total = 0.0
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total, os.urandom(2).hex(), file=log, flush=True)
    print(f"epoch {epoch}: {total}", flush=True)
    if epoch == 1:
        torch.save(net.state_dict(), "second-epoch.pt")
    if epoch % 4 == 3:
        torch.save(net.state_dict(), f"epoch-{epoch // 8}.pt")
    while os.path.exists(f"hold-{epoch + 1}"):  # until it is killed
        time.sleep(0.01)
