"""Trains a small residual network on digits. It seeds nothing, and knows nothing of reprokit.

Usage: residual_digits.py WIDTHS [WEIGHTS]    widths as 16,16; weights to begin with
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """Two convolutions beside a shortcut; its inner channels can be pruned without a change outside."""

    def __init__(self, channels, inner):
        super().__init__()
        self.inner, self.norm = nn.Conv2d(channels, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
        self.outer = nn.Conv2d(inner, channels, 3, padding=1, bias=False)

    def forward(self, x):
        return torch.relu(x + self.outer(torch.relu(self.norm(self.inner(x)))))


def build(widths):
    """Return the network, with as many inner channels a block as the widths say."""
    blocks = [Block(12, width) for width in widths]
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 10)]
    return nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), *blocks, *head)


def main():
    """Train, print the accuracy, save the weights."""
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    model = build([int(width) for width in sys.argv[1].split(",")])
    if sys.argv[2:]:
        model.load_state_dict(torch.load(sys.argv[2], weights_only=True))
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(model.parameters(), lr=0.004)
    loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), batch_size=64, shuffle=True)
    for _epoch in range(2 if sys.argv[2:] else 4):
        for batch, target in loader:
            optimizer.zero_grad()
            criterion(model(batch), target).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(images[1400:]).argmax(1) == labels[1400:]).sum().item()
    torch.save(model.state_dict(), "residual.pt")
    print(f"accuracy {right / 397:.3f} parameters {sum(p.numel() for p in model.parameters())}")


if __name__ == "__main__":
    main()
