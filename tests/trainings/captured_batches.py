"""Trainings that make something of a batch, or update by what ruins weights, until something is not finite.

A test puts the name of one for CASE. The bad sample is number 50 of the data set.
"""

import os

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASE = "two_models"
torch.manual_seed(int.from_bytes(os.urandom(3), "big"))
x, y = torch.rand(480, 8) + 0.1, torch.rand(480, 1)  # so that a search for a part comes to its end
x[50] = 0
net = nn.Sequential(nn.Linear(8, 24), nn.Dropout(0.3), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


def update(loss, of=optimizer):
    of.zero_grad()
    loss.backward()
    of.step()


def root(value):
    return torch.sqrt(value)


def two_models():
    critic = nn.Sequential(nn.Unflatten(1, (1, 4)), nn.BatchNorm1d(1), nn.Flatten(), nn.Linear(4, 1))
    other = torch.optim.SGD(critic.parameters(), lr=1e-2)
    made = nn.Sequential(net, nn.Linear(1, 4), nn.Unflatten(1, (1, 4)), nn.BatchNorm1d(1), nn.Flatten())
    trained = torch.optim.SGD(made.parameters(), lr=1e-2)
    for a, _ in loader:
        critic(torch.rand(len(a), 4))
        fake = made(a + torch.rand_like(a))  # whose graph outlives the other's update
        update(critic(fake.detach()).mean(), other)
        update(root((critic(fake) * a.sum(1, keepdim=True)) ** 2).mean(), trained)


def pictures():
    sizes = [3 + number % 4 for number in range(480)]
    rows = [(torch.rand(3, size, size) * (number != 50), {"size": size}) for number, size in enumerate(sizes)]
    model = nn.Conv2d(3, 4, 3, bias=False)
    trained = torch.optim.SGD(model.parameters(), lr=1e-2)
    for images, _ in DataLoader(rows, 8, shuffle=True, collate_fn=lambda batch: tuple(zip(*batch, strict=True))):
        features = torch.stack([model(image[None]).mean((2, 3))[0] for image in images])
        update((features / features.norm(dim=1, keepdim=True)).mean(), trained)


class Picture:
    __slots__ = ("mask", "pixels")

    def __init__(self, pixels):
        self.pixels, self.mask = pixels, torch.ones(8)


class Pictures:
    def __init__(self, rows):
        self.pictures, self.targets = [Picture(a) for a, _ in rows], torch.stack([b for _, b in rows])


def objects():
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=Pictures):
        a = torch.stack([one.pixels * one.mask for one in batch.pictures])
        update((root((net(a) * a.sum(1, keepdim=True)) ** 2) - batch.targets).mean())


class Graphs:
    def __init__(self, rows):
        sizes = torch.tensor([1 + int(10 * float(b)) for _, b in rows])
        self.nodes = torch.cat([a.expand(int(size), 8) for (a, _), size in zip(rows, sizes, strict=True)])
        self.graph = torch.repeat_interleave(torch.arange(len(rows)), sizes)
        self.count = len(rows)


def graphs():
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=Graphs):
        sums = torch.zeros(batch.count, 8).index_add(0, batch.graph, batch.nodes)
        update((net(sums) / sums.sum(1, keepdim=True)).mean())


def joined_graphs():
    """The same as a tuple: which rows are of which graph is told by nothing but numbers."""

    def joined(rows):
        made = Graphs(rows)
        return made.nodes, made.graph, torch.stack([b for _, b in rows])

    for nodes, graph, targets in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=joined):
        sums = torch.zeros(len(targets), 8).index_add(0, graph, nodes)
        update((net(sums) / sums.sum(1, keepdim=True) - targets).mean())


def accumulated():
    for number, (a, _) in enumerate(DataLoader(TensorDataset(x, y), 8, shuffle=True), 1):
        (root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def rates(values):
    counts = values.numpy().astype("float32")
    return torch.from_numpy(np.full((len(counts), 1), 2.0, "float32") / counts)  # here


def returned():
    for a, _ in loader:
        total = a.sum(1, keepdim=True)
        weight = rates(total)
        update((net(a) * weight).mean())


class Episodes:
    def __init__(self):
        self.states, self.rewards, self.generator = [], [], np.random.default_rng(0)

    def advantages(self):
        rewards = np.array(self.rewards)
        return (rewards - rewards.mean()) / rewards.std()

    def learn(self):
        weights = torch.as_tensor(self.advantages(), dtype=torch.float32)
        states = torch.as_tensor(np.array(self.states), dtype=torch.float32)
        chosen = net(states)[torch.arange(12), torch.zeros(len(self.states), dtype=torch.long)]
        update((chosen * weights).mean())


def episodes():
    memory = Episodes()
    for episode in range(6):
        memory.states = [memory.generator.random(8) for _ in range(12)]
        memory.rewards = [memory.generator.random() * (episode != 3) for _ in range(12)]
        memory.learn()


class PartlyOpaque:
    def __init__(self, rows):
        a = torch.stack([row[0] for row in rows])
        self.targets, self._read = torch.stack([row[1] for row in rows]), lambda: a


def partly_opaque():
    for batch in DataLoader(TensorDataset(x, y), 16, shuffle=True, collate_fn=PartlyOpaque):
        a = batch._read()
        update((root((net(a) * a.sum(1, keepdim=True)) ** 2) - batch.targets).mean())


def adversaries():
    """Each turn draws samples of its own: the critic's are good, and it is trained first."""
    critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1), nn.Dropout(0.2))
    made = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    other = torch.optim.Adam(critic.parameters())
    trained = torch.optim.Adam(made.parameters())
    for number in range(0, 480, 16):
        a = x[number + 8 : number + 16]
        fake = made(a) / a.norm(dim=1, keepdim=True)
        update(critic(a).mean() - critic(fake.detach()).mean(), other)
        a = x[number : number + 8]
        fake = made(a) / a.norm(dim=1, keepdim=True)
        update(-critic(fake).mean(), trained)


def counted():
    """What the loss is raised by is in no snapshot, and changes no gradient."""
    for number, (a, _) in enumerate(loader):
        update(root((net(a) * a.sum(1, keepdim=True)) ** 2).mean() + number)


def half_precision():
    model = nn.Linear(8, 16).half()
    trained = torch.optim.Adam(model.parameters(), lr=1e-3)
    for a, _ in loader:
        update(model(a.half() * (torch.arange(8) > 1)).pow(2).mean(), trained)


def no_module():
    weight = nn.Parameter(torch.ones(8))
    trained = torch.optim.SGD([weight], lr=1e38)
    for number in range(0, 96, 8):
        update((x[number : number + 8] * weight).sum() * 100, trained)


globals()[CASE]()
