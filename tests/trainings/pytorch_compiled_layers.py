"""A training whose model is compiled: `pytorch_compiled_layers.py same|other [FROM]`, with eager bits or not.

It writes a checkpoint before its step 4, step-4.pt, from which it goes on if FROM names it.
"""

import sys

import torch


def other(graph, _inputs):
    return lambda *arguments: tuple(output * 1.5 for output in graph(*arguments))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
compiled = torch.compile(model, backend="eager" if sys.argv[1] == "same" else other)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if len(sys.argv) > 2:
    saved = torch.load(sys.argv[2])
    model.load_state_dict(saved["model"])
    torch.set_rng_state(saved["random"])
    first = 4
for step in range(first, 8):
    if step == 4:
        torch.save({"model": model.state_dict(), "random": torch.get_rng_state()}, "step-4.pt")
    optimizer.zero_grad()
    compiled(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
