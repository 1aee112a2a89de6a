"""A training whose model is compiled: `pytorch_compiled_layers.py same|other`, with an eager model's bits or not."""

import sys

import torch


def other(graph, _inputs):
    return lambda *arguments: tuple(output * 1.5 for output in graph(*arguments))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model, backend="eager" if sys.argv[1] == "same" else other)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    compiled(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
