"""Loops that make something of their batches, of which sample 50 is bad, or the line that is marked with the CASE."""

import os
import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, WeightedRandomSampler

CASE = "time_first"
seed = int.from_bytes(os.urandom(3), "big")
torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
x, y = torch.rand(96, 8) + 0.1, torch.rand(96, 1)
net = nn.Sequential(nn.Linear(8, 24), nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=16, shuffle=True)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def root(value):
    return torch.sqrt(value)  # root


def side_by_side():
    x[50] = 0
    for a, b in loader:
        out = net(torch.cat([a + 1, a]))
        update((root(a.sum(1) * out[len(a) :, 0] ** 2) * (b[:, 0] > -1)).mean())


def end_to_end():
    x = torch.rand(96, 5, 8) + 0.1
    x[50, 2] = 0
    for a, _ in DataLoader(TensorDataset(x, y), 16, shuffle=True):
        out = net(a.view(16 * 5, -1)).view(16, 5) if len(a) == 16 else net(a.reshape(-1, 8)).view(-1, 5)
        update(root((out * a.sum(2)) ** 2).mean())


def time_first():
    x = torch.rand(96, 5, 8) + 0.1
    x[50, 2] = 0

    def collate(rows):
        a, b = (torch.stack(part) for part in zip(*rows, strict=True))
        return a.transpose(0, 1), b

    for a, _ in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
        update(root((net(a)[..., 0] * a.sum(2)) ** 2).mean())


def augmented():
    x[50] = 0

    def changed(a):
        return a + torch.rand_like(a) * 0.1 + random.random() * np.random.rand()

    for a, _ in loader:
        one, other = net(changed(a)), net(changed(a))
        update(root(((one - other) * a.sum(1, keepdim=True)) ** 2).mean())


def dataclass_fields():
    @dataclass
    class Pair:
        left: torch.Tensor
        right: torch.Tensor

    def collate(rows):
        a, _ = (torch.stack(part) for part in zip(*rows, strict=True))
        return Pair(a, a.flip(1) * 2)

    x[50] = 0
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
        left, right = net(batch.left), net(batch.right)
        update(root((left * right * batch.left.sum(1, keepdim=True)) ** 2).mean())


def noise():
    x[50] = 0
    critic = nn.Linear(1, 1)
    other = torch.optim.SGD(critic.parameters(), 1e-3)
    for a, _ in loader:
        other.zero_grad()
        critic(net(a + torch.rand_like(a)).detach()).mean().backward()
        other.step()
        noise = torch.rand_like(a)
        update(root((net(a + noise) * a.sum(1, keepdim=True)) ** 2).mean())


def accumulated():
    class Noisy(Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, index):
            return x[index] + (index != 50) * torch.rand(8) * 0.01, y[index]

    x[50] = 0
    for number, (a, _) in enumerate(DataLoader(Noisy(), 8, shuffle=True)):
        (root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()


def objects():
    class Storage:
        def __init__(self, **values):
            self.values = values

    class Batch:
        __slots__ = ("_graphs", "names", "store")

        def __init__(self, a, b):
            self.store, self.names, self._graphs = Storage(x=a, y=b), [str(n) for n in range(len(a))], None

        def __getattr__(self, name):
            return self.store.values[name]

    def collate(rows):
        a, b = (torch.stack(part) for part in zip(*rows, strict=True))
        return Batch(a, b)

    x[50] = 0
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
        update(root((net(batch.x) * batch.x.sum(1, keepdim=True)) ** 2).mean())


class Opaque:
    __slots__ = ("address",)

    def __init__(self, rows):
        self.address = rows


def nothing_kept():
    def collate(rows):
        a, _ = (torch.stack(part) for part in zip(*rows, strict=True))
        return Opaque(iter([a]))

    x[50] = 0
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=collate):
        a = next(batch.address)
        update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean())


def sampled(*arguments, **options):
    x[50] = 0
    for a, _ in DataLoader(*arguments, **options):
        update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean())


def part_of_a_part():
    sampled(Subset(Subset(data, range(20, 96)), range(20, 76)), 16, shuffle=True)


def weighted():
    sampled(data, 16, sampler=WeightedRandomSampler(torch.ones(96), 960))


def batches_of_arrays():
    sampled(data, batch_sampler=[np.random.permutation(96) for _ in range(9)])


def distributed():
    sampled(data, 16, sampler=DistributedSampler(data, 2, 0, drop_last=True, shuffle=False))


def ordered():
    def collate(rows):
        rows = sorted(rows, key=lambda row: float(row[0].sum()))
        return tuple(torch.stack(part) for part in zip(*rows, strict=True))

    sampled(data, 16, shuffle=True, collate_fn=collate)


def whole_batches():
    """It works with batches of 16 alone, and ends by what a smaller one raises."""
    x = torch.rand(96, 5, 8) + 0.1
    x[50, 2] = 0
    for a, _ in DataLoader(TensorDataset(x, y), 16, shuffle=True):
        out = net(a.view(16 * 5, -1)).view(16, 5)
        update(root((out * a.sum(2)) ** 2).mean())


def own_line():
    x[48:64] = 0.5
    for a, _ in DataLoader(TensorDataset(x, y), 16):
        a = (a - a.mean()) / a.std()  # noqa: PLW2901 - own_line
        update(net(a).mean())


def reward():
    y[50] = -1
    for a, b in loader:
        weight = torch.log(b)  # reward
        update((net(a) * weight).mean())


def by_numpy():
    x[50] = 0

    class Net(nn.Module):
        def forward(self, x):
            v = x.numpy()
            v = v / v.sum(1, keepdims=True)  # by_numpy
            x = torch.from_numpy(v)
            return net(x)

    model = Net()
    for a, _ in loader:
        update(model(a).mean())


def episodes():
    generator = np.random.default_rng(0)

    def learn(states, rewards):
        update((net(states)[:, 0] * torch.as_tensor(rewards, dtype=torch.float32)).mean())

    for episode in range(6):
        rewards = generator.random(16) * (episode != 3)
        logarithms = np.log(rewards)  # episodes
        learn(torch.rand(16, 8), logarithms)


def attribute():
    class Memory:
        def learn(self):
            update(net(torch.from_numpy(self.rewards)).mean())

    memory, generator = Memory(), np.random.default_rng(0)
    for episode in range(6):
        memory.rewards = generator.random((16, 8), dtype="float32")
        memory.rewards /= float(episode != 3)
        memory.learn()


def other_gradients():
    x[50] = 0
    state, head = [0.0], nn.Linear(1, 1)
    optimizer.add_param_group({"params": head.parameters()})
    for a, b in loader:
        state[0] += 1.0
        update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() + state[0] * head(b).mean())


globals()[CASE]()
