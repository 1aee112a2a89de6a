"""A loop that guards itself: ACTION DIRECTORY."""

import os
import sys

import torch
from torch import nn

import reprokit.capture

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.3), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
other = nn.Linear(4, 1)
unwatched = torch.optim.SGD(other.parameters(), lr=0.1)
x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))


def gradients(inputs):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), y).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def state():
    kept = [value.clone() for value in model.state_dict().values()]
    return kept + [state["momentum_buffer"].clone() for state in optimizer.state.values()]


def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))


with reprokit.capture.guard(model, optimizer, directory="kept", on_nan=sys.argv[1]):
    for _ in range(3):
        gradients(x)
        optimizer.step()
    before, bad = state(), x.clone()
    bad[5] = float("inf")
    seen = gradients(bad)
    optimizer.step()
    after = state()
gradients(bad)
optimizer.step()  # nobody watches any more
place = os.path.join(sys.argv[2], os.listdir(sys.argv[2])[0])
snapshot = reprokit.capture.load(place)
assert snapshot.framework == "pytorch", snapshot
assert snapshot.step == 3, snapshot
assert "the loss is nan" in snapshot.trigger, snapshot.trigger
assert len(snapshot.losses) == 4
assert snapshot.losses[-1] != snapshot.losses[-1]
assert snapshot.gradients["4.weight"].tobytes() == seen[-2].numpy().tobytes()
(arguments, keywords), target, variables = snapshot.batches
assert torch.equal(torch.tensor(arguments[0]), bad)
assert keywords == {}
assert torch.equal(torch.tensor(target["target"]), y)
assert sorted(variables) == ["x", "y"]
assert same(before, after), "the step was not applied"
assert not same(before, state())
snapshot.restore(model, optimizer)
assert same(before, state())
assert same([torch.nan_to_num(g) for g in gradients(bad)], [torch.nan_to_num(g) for g in seen]), "with the same dropout"
wider = nn.Sequential(nn.Linear(4, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.ReLU(), nn.Linear(7, 3))
for wrong in (nn.Linear(4, 6), wider):
    try:
        snapshot.restore(wrong)
    except reprokit.capture.BadSnapshot as error:
        print(error)
    else:
        raise AssertionError(wrong)
print("done")
