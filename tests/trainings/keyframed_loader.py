"""A training in epochs with a shuffling DataLoader, augmentation, dropout, batch norm, an evaluation and StepLR."""

import os
import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

STEPS, WORKERS = int(sys.argv[1]), int(sys.argv[2])

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
random.seed(torch.randint(1 << 30, ()).item())


class Samples(Dataset):
    x, y = torch.randn(300, 20), torch.randint(0, 5, (300,))

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] + random.random() + 0.1 * torch.randn(20), self.y[index]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, last = nn.Linear(20, 32), nn.Linear(32, 5)
        self.layers = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), last)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layers(x)}


loader = DataLoader(Samples(), batch_size=32, shuffle=True, num_workers=WORKERS)
held_out = DataLoader(TensorDataset(Samples.x[:64], Samples.y[:64]), batch_size=32)
net, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)


def train(epoch: int) -> float:
    net.train()
    total = 0.0
    for number, (x, y) in enumerate(loader):
        loss = criterion(net(x)["logits"], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if epoch * len(loader) + number + 1 >= STEPS:
            break
    return total


def evaluate() -> float:
    net.eval()
    with torch.no_grad():
        return sum(criterion(net(x)["logits"], y).item() for x, y in held_out)


best, history, epoch = 1e9, [], 0
while epoch * len(loader) < STEPS:
    history.append((train(epoch), evaluate()))
    schedule.step()
    best, epoch = min(best, history[-1][1]), epoch + 1
    print(epoch, history[-1], best)
