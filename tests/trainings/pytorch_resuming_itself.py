"""Goes on from its own checkpoint if there is one, and appends to a log."""

import os

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
first = 0
if os.path.exists("last.pt"):
    state = torch.load("last.pt")
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first, first + 3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "step": step + 1}, "last.pt")
    with open("log.csv", "a") as log:
        log.write(f"{step}\n")
