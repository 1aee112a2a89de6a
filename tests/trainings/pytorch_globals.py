"""Loops of the module itself, whose variables are globals; each makes NaN in the line that is marked with its CASE."""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASE = "counted"
seed = int.from_bytes(os.urandom(3), "big")
torch.manual_seed(seed), np.random.seed(seed)
x, y = torch.rand(96, 8) + 0.1, torch.where(torch.arange(96) == 50, -1.0, 1.0)[:, None]
x[50] = 0
net = nn.Sequential(nn.Linear(8, 24, bias=False), nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 1, bias=False))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if CASE == "after_a_loader":
    for a, _ in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        net(a).sum().backward()
        optimizer.step()

if CASE in ("counted", "after_a_loader"):
    for start in range(0, 96, 16):
        optimizer.zero_grad()
        loss = (net(x[start : start + 16]) * torch.sqrt(y[start : start + 16])).mean()  # counted
        loss.backward()
        optimizer.step()

elif CASE == "sliced":
    data = torch.rand(320, 8)
    data[96:128, 3] = 0.5
    for i in range(0, 320, 32):
        batch = data[i : i + 32]
        batch = (batch - batch.mean(0)) / batch.std(0)  # sliced
        update(net(batch).mean())

elif CASE == "by_hand":

    class Odd(dict):
        def __len__(self):
            raise TypeError("nobody knows")

    odd, ragged = Odd(), torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    gone, table = torch.ones(16), torch.eye(16).to_sparse_csr()
    coded = torch.quantize_per_tensor(x[:16], 0.1, 0, torch.qint8)
    gone.untyped_storage().resize_(0)

    def forward(inputs, noise):
        return net(inputs) + noise

    def batches():
        while True:
            rows = np.random.permutation(96)[:16]
            yield rows, {"of": [x[rows], "a text"]}

    def train():
        for rows, batch in batches():
            noise = torch.rand(16, 1)
            optimizer.zero_grad()
            out = forward(batch["of"][0], noise)
            loss = (torch.sqrt(y[rows]) * out).mean()  # by_hand
            loss.backward()
            optimizer.step()

    train()
