"""Updates of which a listener skips each second one, without any run of reprokit; prints what it saw."""

import torch

from reprokit.agent.events.steps import SKIP, Events, UpdateDone, UpdateDue
from reprokit.agent.pytorch.events import EventHooks
from reprokit.agent.pytorch.state import Modules


class EachSecond:
    def __init__(self):
        self.asked = self.done = 0

    def handlers(self):
        return {UpdateDue: self.due, UpdateDone: self.noted}

    def failed(self, error, _handler):
        raise error

    def due(self, _event):
        self.asked += 1
        return SKIP if self.asked % 2 == 0 else None

    def noted(self, _event):
        self.done += 1


class Guard:
    def attempt(self, function, *arguments):
        return function(*arguments)

    def failed(self, _function, error):
        raise error


call = torch.nn.Module.__call__
events, listener = Events(), EachSecond()
hooks = EventHooks(Guard(), events, torch, Modules())
hooks.decide(listener)
print("calls are left alone:", torch.nn.Module.__call__ is call, "backward has handlers:", bool(events.backward_ended))
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
changed = []
for _ in range(4):
    before = model.weight.detach().clone()
    optimizer.zero_grad()
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    changed.append(not torch.equal(before, model.weight))
print("asked", listener.asked, "done", listener.done, "changed", changed)
