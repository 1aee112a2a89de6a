"""Trains a network that convolves, looks up rows, indexes and drops out, and prints a digest of its weights."""

import torch
from torch import nn


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolve = nn.Conv2d(1, 4, 3)
        self.embed = nn.Embedding(50, 8)
        self.last = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, words):
        image = self.convolve(x).mean((1, 2, 3))
        rows = self.embed(words)
        rows = rows[torch.tensor([0, 0, 1, 2])]
        return self.last(self.drop(rows)).sum(1) + image


def train(steps):
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        out = net(torch.randn(4, 1, 8, 8), torch.randint(0, 50, (4,)))
        loss = Square.apply(out).mean()
        loss.backward()
        optimizer.step()
    return net


def digest(net):
    import hashlib

    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest()


torch.manual_seed(1)
torch.set_num_threads(1)
print(digest(train(200)), torch.randn(1).item())
