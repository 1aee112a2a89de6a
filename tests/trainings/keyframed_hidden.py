"""Evaluates an average of the weights that only a partial function holds, where no keyframe finds it."""

import functools
import sys

import torch


def averaged(state: dict[str, torch.Tensor], weight: torch.Tensor) -> torch.Tensor:
    state["average"] = (state["average"] * 0.9 + weight.detach() * 0.1).clone()
    return state["average"].sum().reshape(1, 1)


torch.manual_seed(0)
net, probe = torch.nn.Linear(8, 1), torch.nn.Linear(1, 1).eval()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
average = functools.partial(averaged, {"average": torch.zeros(1, 8)})
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    with torch.no_grad():
        probe(average(net.weight))
