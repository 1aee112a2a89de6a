"""A transformer with dropout, AdamW and StepLR, whose order of samples is drawn by torch.randperm; no DataLoader."""

import array
import os
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

STEPS = int(sys.argv[1])
BY_LOSS = "by-loss" in sys.argv  # whether the order of samples depends on the losses before
NOISE_AT = int(next((word[9:] for word in sys.argv if word.startswith("noise-at=")), "-1"))
SIZE = int(os.environ.get("SIZE", "32"))

data, labels = torch.randn(640, 16, SIZE), torch.randint(0, 5, (640,))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(SIZE, 4, 2 * SIZE, dropout=0.1, batch_first=True)
        self.last = nn.Linear(SIZE, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x).mean(1))


torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
if "grouped" in sys.argv:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)
total, step, curve = 0.0, 0, array.array("d")
while step < STEPS:
    for indices in torch.randperm(640).roll(int(1000 * total) if BY_LOSS else 0).split(32):
        optimizer.zero_grad()
        loss = cross_entropy(net(data[indices]), labels[indices])
        loss.backward()
        if step == NOISE_AT:
            net.last.bias.grad.add_(0.5)
        optimizer.step()
        schedule.step()
        total += loss.item()
        curve.append(total)
        step += 1
        if step == STEPS:
            break
    print(step, total)
print(sum(parameter.double().sum().item() for parameter in net.parameters()))
