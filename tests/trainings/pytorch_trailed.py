"""A training of many steps, in which others may change something before, between and after them; and its variations.

A test appends what is to be called.
"""

import collections
import ctypes
import multiprocessing
import os
import random
import resource
import signal
import struct
import threading

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
torch.set_num_threads(1)
x, y = torch.randn(96, 64), torch.randn(96, 1)
model = nn.Sequential(nn.Linear(64, 2400), nn.Dropout(), nn.Linear(2400, 1))  # more than is digested at once
optimizer = torch.optim.SGD(model.parameters(), lr=0.0001, momentum=0.9)
loader = DataLoader(TensorDataset(x, y), 8)


def train(count, before=lambda number: None, after=lambda number: None, between=lambda number: None):
    number = 0
    while number < count:
        for a, b in loader:
            before(number)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(a), b)
            loss.backward()
            between(number)
            optimizer.step()
            after(number)
            number += 1
            if number == count:
                break


def plain():
    train(40)
    torch.save(model.state_dict(), "end.pt")


def states():
    kept = []

    def keep(number):
        kept.append((torch.get_rng_state(), random.getstate()[1], numpy.random.get_state()[1:3]))
        tensors = [p.detach().clone() for p in model.parameters()] + [p.grad.clone() for p in model.parameters()]
        torch.save(tensors, f"{number}.pt")
        random.random()
        numpy.random.rand()

    def packed(python, numpy):
        return struct.pack("<I624I", python[-1], *python[:-1]), numpy[0].tobytes() + struct.pack("<I", numpy[1])

    numpy.random.seed(3)
    random.seed(4)
    train(2, after=keep)
    torch.save([(torch_state, *packed(python, numpy)) for torch_state, python, numpy in kept], "states.pt")
    torch.save([x, y], "data.pt")


def changes(variant=""):
    global model, optimizer
    model = nn.Sequential(nn.Linear(64, 240), nn.Dropout(), nn.Linear(240, 1))  # digested at once, so before any change
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0002 if variant == "rate" else 0.0001, momentum=0.9)

    def change(number):
        if number == 21 and variant == "batch":
            x[:8].neg_()  # the first batch of the next epoch
        if number == 24 and variant == "seed":
            torch.manual_seed(8)

    def change_gradients(number):
        if number == 25 and variant == "gradient":
            gradient = model[2].bias.grad
            gradient[0] = torch.nextafter(gradient[0], torch.tensor(9.0))

    def change_parameters(number):
        if number == 24 and variant == "update":
            model[0].weight.data[3, 5] *= -1

    train(30, change, change_parameters, change_gradients)


def buffers():
    global model, optimizer
    model = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    train(3, after=lambda number: torch.save([b.clone() for b in model.buffers()], f"{number}.pt"))
    random.seed(1)
    numpy.random.rand()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001)
    random.random()
    train(1)


def mutating(variant=""):
    def gradients(number):
        for parameter in model.parameters():
            parameter.grad.zero_()

    def clamp(number):
        for parameter in model.parameters():
            parameter.data.clamp_(-0.01, 0.01)

    train(60, after={"gradients": gradients, "clamp": clamp, "": lambda number: None}[variant])


def late():
    def halve(number):
        if number == 30:
            with torch.no_grad():
                model[0].weight.mul_(0.5)

    train(40, after=halve)


def small():
    global model, optimizer
    model = nn.Linear(64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(700)


def killed():
    train(60, after=lambda number: number == 55 and os.kill(os.getpid(), signal.SIGKILL))


def pair():
    optimizers = [torch.optim.Adam(layer.parameters()) for layer in (model[0], model[2])]
    for number in range(30):
        for optimizer in optimizers:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        if number == 20:
            optimizers[1].add_param_group({"params": [torch.zeros(2, requires_grad=True)]})


def odd():
    embedding = nn.Embedding(50, 8, sparse=True)
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD([*embedding.parameters(), *conv.parameters()], lr=0.1)
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    for number in range(24):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        (embedding(torch.arange(5)).sum() + conv(images).square().sum()).backward()
        optimizer.step()


def odd_loops():
    for number, (a, b) in enumerate([*loader] * 4):
        nn.functional.mse_loss(model(a), b).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if number % 4 == 3:
            optimizer.step()
            model.zero_grad(set_to_none=False)
    other = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)

    def closure():
        other.zero_grad(set_to_none=False)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        other.step(closure)


Pair = collections.namedtuple("Pair", "x y")


def packed(variant=""):
    def collate(rows):
        a, b = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        label = "label" if variant == "text" else "".join(["lab", "el"])  # equal, and another object
        return {"x": a, "rest": [Pair(label, b.t()), b"Raw" if variant == "bytes" else b"raw"], "array": a.numpy()}

    for batch in DataLoader(TensorDataset(x, y), 8, collate_fn=collate):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(batch["x"]), batch["rest"][0].y.t()).backward()
        optimizer.step()


def forked():
    train(3)
    child = multiprocessing.get_context("fork").Process(target=train, args=(5,))
    child.start()
    train(4)
    child.join()
    assert child.exitcode == 0
    for a, _ in DataLoader(TensorDataset(x, y), 8, num_workers=2):
        optimizer.zero_grad()
        model(a).sum().backward()
        optimizer.step()


def threads():
    def ids():
        return {int(name) for name in os.listdir("/proc/self/task")}

    before = ids()
    train(25)
    (worker,) = ids() - before
    with open(f"/proc/self/task/{worker}/status") as status:
        blocked = next(line for line in status if line.startswith("SigBlk"))
    print(blocked.split()[1])
    pid = os.fork()
    if pid == 0:
        os._exit(len(ids()) - 1)
    print(os.waitpid(pid, 0)[1], len(ids() - before))
    train(25)
    print(len(ids() - before), threading.active_count())


def limit():
    global optimizer
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, -1))
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1)) for number in range(300)], lr=0.1)
    train(20)


def thread_name():
    train(25)
    names = []

    def keep():
        buffer = ctypes.create_string_buffer(256)
        ctypes.CDLL(None).reprokit_thread_identity(buffer, 256)
        names.append(buffer.value.decode())

    thread = threading.Thread(target=keep)
    thread.start()
    thread.join()
    print(*names)
