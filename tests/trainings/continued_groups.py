"""A training that logs each epoch of four steps, and whose optimizer gets further parameters in the 91st step."""

import os
import sys
import time

import torch
from torch import nn

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net[2].parameters(), 0.01, momentum=0.9)
log = open("log.csv", "a")  # noqa: SIM115
for epoch in range(int(sys.argv[1])):
    total = 0.0
    for step in range(4 * epoch, 4 * epoch + 4):
        if step == 90:
            optimizer.add_param_group({"params": list(net[0].parameters())})
        loss = net(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, total, file=log, flush=True)
    while os.path.exists(f"hold-{epoch + 1}"):  # until it is killed
        time.sleep(0.01)
torch.save(net.state_dict(), "net.pt")
