"""Scales the outputs of a layer.

Arguments: the factor; "eager", "compiled" or "fused", whose bits are no eager training's; and the number of rows.
"""

import sys

import torch

factor, kind, count = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
layer = torch.nn.Linear(4, 2)


def scale(rows):
    return (layer(rows) * factor).square()


def fused(rows):
    return torch.nn.functional.gelu(layer(rows) * factor).square()


scaled = {"eager": scale, "compiled": torch.compile(scale), "fused": torch.compile(fused)}[kind]
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
table, generator = torch.randn(8, 4), torch.Generator().manual_seed(1)
for _ in range(4):
    rows = table[torch.randperm(8, generator=generator)[:count]]
    optimizer.zero_grad()
    scaled(rows).mean().backward()
    optimizer.step()
