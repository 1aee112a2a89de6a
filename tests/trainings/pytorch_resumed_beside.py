"""Saves all that its steps need. What it writes, prints and logs beside them needs what the first argument names."""

import collections
import copy
import itertools
import os
import sys
import time

import torch

import reprokit

KIND, CHECKPOINT = [*sys.argv[1:], "checkpoint.pt"][:2]


class Average:
    """A copy of the model that follows it."""

    def __init__(self, model):
        self.copied = copy.deepcopy(model).eval()

    def update(self, model):
        with torch.no_grad():
            for own, parameter in zip(self.copied.parameters(), model.parameters(), strict=True):
                own.mul_(0.9).add_(parameter, alpha=0.1)


class Best:
    """The lowest loss, which an attribute of the class keeps."""

    loss = float("inf")


def total_of():
    total = 0.0

    def add(value):
        nonlocal total
        total += value
        return total

    return add


def counted(loss):
    counted.losses += loss
    return counted.losses


counted.losses = 0.0
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
inputs = torch.linspace(-1, 1, 640).reshape(80, 8)
targets = inputs.sum(1, keepdim=True).sin()
first = 0
if os.path.exists(CHECKPOINT):
    loaded = torch.load(CHECKPOINT)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["generator"])
    first = loaded["step"]
    print("going on with step", first, "of 24")
average = Average(model) if KIND == "average" else None
numbers, add = itertools.count(), total_of()
rates = iter([number / 7 for number in range(30)])
recent, best, names = collections.deque(maxlen=20), float("inf"), []
for step in range(first, 24):
    rows = torch.randint(0, 80, (16,))
    loss = (model(inputs[rows]) - targets[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item()
    if average is not None:
        average.update(model)
    recent.append(value)
    number, rate, total, counted_losses = next(numbers), next(rates), add(value), counted(value)
    Best.loss = min(Best.loss, value)
    if KIND == "files" and value < best:
        best = value
        torch.save(model.state_dict(), f"best-{step}.pt")
    if KIND == "appended":
        with open("log.txt", "a") as log:
            log.write(f"step {step} loss {value}\n")
    if KIND == "logged":
        reprokit.log(step=step, mean=sum(recent) / len(recent))
    if step == 9:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 10}
        torch.save({**state, "generator": torch.get_rng_state()}, "new.tmp")
        os.replace("new.tmp", CHECKPOINT)
shown = {
    "average": lambda: torch.save(average.copied.state_dict(), "final.pt"),
    "deque": lambda: sum(recent),
    "closure": lambda: total,
    "function": lambda: counted_losses,
    "class": lambda: Best.loss * 3,
    "counter": lambda: number,
    "iterator": lambda: rate,
    "nothing": lambda: value,
}
if KIND in shown:
    print("the last of", KIND, shown[KIND]())
if KIND in ("directory", "hidden"):
    os.makedirs(f"counted-{number}" if KIND == "directory" else ".cache")
if KIND == "hidden":
    with open(".cache/counted", "w") as file:
        print(number, file=file)
if KIND == "token":  # another one in each run, which nothing says of it
    print("token", time.monotonic_ns())
    with open("token.txt", "w") as file:
        print(time.monotonic_ns(), file=file)
if KIND == "much":  # more than is kept
    for line in range(400_000):
        print("a line that fills the console, and is printed again and again:", line % 7)
