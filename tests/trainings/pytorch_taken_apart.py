"""Many steps; it says when its exit handlers run, and when the interpreter takes its objects apart."""

import atexit

import torch


class Held:
    def __del__(self) -> None:
        print("taken apart", flush=True)


held = Held()
atexit.register(print, "at exit")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2000):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
