"""Trainings of two ranks, of which one alone meets what is to be captured.

python captured_ranks.py DIRECTORY NAME...            starts its ranks by itself; each writes the states of those steps
torchrun ... captured_ranks.py DIRECTORY NAME...      or is one of them
"""

import contextlib
import math
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

DIRECTORY, NAMES = Path(sys.argv[1]), sys.argv[2:]
WORLD = 2
# By training: at which step, on which rank, and what happens there.
EVENTS = {
    "loss": (2, 1, "infinite"),
    "gradient": (3, 0, "root of zero"),
    "condition": (4, 0, "large"),
    "accumulated": (5, 1, "infinite"),
    "reduced_by_hand": (6, 1, "infinite"),
    "clipped": (7, 0, "infinite"),
    "scaled": (8, 1, "infinite"),
    "gradient_there": (9, 1, "root of zero"),
}
AFTER = 2  # steps


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))


def loader(steps, rank):
    data = torch.arange(steps * WORLD * 3 * 4.0).reshape(-1, 4) / 100
    return DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), 3, sampler=DistributedSampler(data, WORLD, rank))


def loss_of(model, batch, event):
    loss = (model(batch[0]) - batch[1]).square().mean()
    if event == "infinite":  # and its gradients are not
        return loss + math.inf
    if event == "root of zero":  # whose gradient is infinite, and the loss is not
        return loss + (next(model.parameters()) * 0).sum().sqrt()
    return loss + 1000 if event == "large" else loss


def flat(model):
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def train(name, rank):
    bad, where, what = EVENTS[name]
    model, parts = network(), 2 if name == "accumulated" else 1
    if name != "reduced_by_hand":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=name == "scaled")
    batches = iter(loader((bad + 1 + AFTER) * parts, rank))
    for step in range(bad + 1 + AFTER):
        some, before = [], flat(model)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        optimizer.zero_grad()
        for part in range(parts):
            some.append(next(batches))
            event = what if (step, rank, part) == (bad, where, 0) else ""
            is_last = part == parts - 1
            if step == bad and is_last:
                torch.save({"model": state, "batches": some}, DIRECTORY / f"{name}-{rank}.pt")
            with contextlib.nullcontext() if is_last else model.no_sync():
                scaler.scale(loss_of(model, some[-1], event)).backward()
        finish(name, model, optimizer, scaler)
        assert torch.equal(before, flat(model)) is (step == bad), (name, rank, step)
    everywhere = [torch.empty_like(before) for _ in range(WORLD)]
    dist.all_gather(everywhere, flat(model))
    assert torch.equal(*everywhere), name
    sys.stdout.write(f"{name} trained on rank {rank}\n")  # in one piece, as both ranks write to the same pipe
    sys.stdout.flush()


def finish(name, model, optimizer, scaler):
    if name == "reduced_by_hand":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORLD
    if name == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()


def main(rank, **keywords):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD, **keywords)
    for name in NAMES or EVENTS:
        train(name, rank)
    dist.destroy_process_group()
    # gloo's threads abort one process of ten while it is taken down, without reprokit as well:
    # https://github.com/pytorch/pytorch/issues/190489
    os._exit(0)


def spawned(rank):
    main(rank, init_method=f"file://{DIRECTORY}/store")


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]))
    else:
        torch.multiprocessing.spawn(spawned, nprocs=WORLD)
