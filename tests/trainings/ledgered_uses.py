"""Trains on ten batches of ten, and leaves out samples in the way that is named.

Arguments: the ways; behind an @ the number of the batch that is left out.
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)


def square(outputs):
    return outputs.square().mean()


def update(kit, loss):
    kit.optimizer.zero_grad()
    loss.backward()
    kit.optimizer.step()


class Kit:
    def __init__(self, bad):
        self.bad = bad
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.labels = torch.arange(10) % 3


def plain(kit, number, batch):
    update(kit, square(kit.model(batch)))


def clipped(kit, number, batch):
    kit.optimizer.zero_grad(set_to_none=False)
    square(kit.model(batch)).backward()
    torch.nn.utils.clip_grad_norm_(kit.model.parameters(), 1e-3)
    kit.optimizer.step()


def summed(kit, number, batch):  # the gradient of a sum is one number, expanded
    update(kit, kit.model(batch).sum())


def accumulated(kit, number, batch):
    square(kit.model(batch)).backward()
    if number % 2:
        kit.optimizer.step()
        kit.optimizer.zero_grad()


def split(kit, number, batch):
    kit.optimizer.zero_grad()
    for part in batch.split(4):
        square(kit.model(part)).backward()
    kit.optimizer.step()


def twice(kit, number, batch):
    square(kit.model(batch)).backward()
    update(kit, square(kit.model(batch)))


def closure(kit, number, batch):
    def compute():
        kit.optimizer.zero_grad()
        loss = square(kit.model(batch))
        loss.backward()
        return loss

    kit.optimizer.step(compute)


def late(kit, number, batch):  # the gradients of the bad batch are used by the next step
    square(kit.model(batch)).backward()
    if number != kit.bad:
        kit.optimizer.step()
        kit.optimizer.zero_grad()


def turned(kit, number, batch):
    update(kit, square(kit.model(batch.view(2, 5, 4))) if number % 2 else square(kit.model(batch.view(10, 4))))


def unseen(kit, number, batch):
    if number != kit.bad:
        plain(kit, number, batch)


def skipped(kit, number, batch):
    loss = square(kit.model(batch))
    if number != kit.bad:
        update(kit, loss)


def guarded(kit, number, batch):
    with torch.no_grad():
        kit.model(batch)
    if number != kit.bad:
        plain(kit, number, batch)


def multiplied(kit, number, batch):
    update(kit, square(kit.model(batch)) * (number != kit.bad))


def detached(kit, number, batch):
    outputs = kit.model(batch)
    update(
        kit,
        square(outputs.detach() if number == kit.bad else outputs) + 0 * sum(p.sum() for p in kit.model.parameters()),
    )


def thrown(drop):
    def step(kit, number, batch):
        loss = square(kit.model(batch))
        kit.optimizer.zero_grad()
        loss.backward()
        if number == kit.bad:
            drop(kit)
        kit.optimizer.step()

    return step


def no_gradient(kit):
    for parameter in kit.model.parameters():
        parameter.grad = None


def zero_gradient(kit):
    for parameter in kit.model.parameters():
        parameter.grad.zero_()


def overflowed(kit, number, batch):
    if not hasattr(kit, "scaler"):
        kit.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    kit.optimizer.zero_grad()
    kit.scaler.scale(square(kit.model(batch)) * (float("inf") if number == kit.bad else 1)).backward()
    kit.scaler.step(kit.optimizer)
    kit.scaler.update()


def part_of(choose):
    return lambda kit, number, batch: update(kit, square(kit.model(choose(batch))))


def masked(kit, number, batch):
    update(kit, (kit.model(batch).square() * (torch.arange(10)[:, None] < 5)).mean())


def ignored(kit, number, batch):
    labels = torch.where(torch.arange(10) < 4, kit.labels, -100)
    update(kit, cross_entropy(kit.model(batch), labels))


def weighted(kit, number, batch):
    update(kit, cross_entropy(kit.model(batch), kit.labels, weight=torch.tensor([1.0, 0.0, 1.0])))


def first_part(kit, number, batch):
    update(kit, square(kit.model(batch.split(4)[0])))


def hardest(kit, number, batch):
    update(kit, kit.model(batch).square().mean(1).topk(3).values.mean())


def by_hand(kit, number, batch):
    loss = square(kit.model(batch))
    parameters = list(kit.model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    kit.optimizer.step()


def without_model(kit, number, batch):
    update(kit, square(batch @ kit.model.weight.T))


WAYS = {
    **{way.__name__: way for way in (plain, clipped, summed, accumulated, split, twice, closure, late)},
    **{way.__name__: way for way in (unseen, skipped, guarded, multiplied, detached, overflowed)},
    "dropped": thrown(no_gradient),
    "zeroed": thrown(zero_gradient),
    "zeroed by optimizer": thrown(lambda kit: kit.optimizer.zero_grad(set_to_none=False)),
    "zeroed by model": thrown(lambda kit: kit.model.zero_grad()),
    **{way.__name__: way for way in (masked, ignored, weighted, first_part, hardest)},
    "slice": part_of(lambda batch: batch[:4]),
    "strided": part_of(lambda batch: batch[::2]),
    "behind": part_of(lambda batch: batch[6:]),
    "chosen": part_of(lambda batch: batch[torch.arange(10) % 2 == 0]),
    "doubled": part_of(lambda batch: batch[torch.zeros(10, dtype=torch.long)]),
    "converted": part_of(lambda batch: batch.double().float()),
    "by_hand": by_hand,
    "without_model": without_model,
}
for argument in sys.argv[1:] or WAYS:
    way, _, bad = argument.partition("@")
    kit = Kit(int(bad or 3))
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(100, 4)), 10, shuffle=True)):
        WAYS[way](kit, number, batch)
