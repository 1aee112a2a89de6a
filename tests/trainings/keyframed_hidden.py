"""Evaluates an average of the weights that only a queue holds, where no keyframe finds it."""

import queue
import sys

import torch

averages: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
averages.put(torch.zeros(1, 8))


def average(weight: torch.Tensor) -> torch.Tensor:
    averages.put((averages.get() * 0.9 + weight.detach() * 0.1).clone())
    mean = averages.get()
    averages.put(mean)
    return mean.sum().reshape(1, 1)


torch.manual_seed(0)
net, probe = torch.nn.Linear(8, 1), torch.nn.Linear(1, 1).eval()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
    with torch.no_grad():
        probe(average(net.weight))
