"""Loops of which one update ruins weights, though gradients and loss were finite; or whose model has no turn."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CASE = "half"
WIDTH = 16
torch.manual_seed(3)
x, y = torch.rand(96, 8), torch.rand(96, 1)
net = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))


def half():
    net.half()
    optimizer = torch.optim.Adam(net.parameters(), eps=1e-8)
    for a, b in DataLoader(TensorDataset(x.half(), y.half()), 16):
        optimizer.zero_grad()
        loss = (net(a) - b).square().mean() * 1e-3
        loss.backward()
        optimizer.step()


def large_step():
    x[43, 0] = 7
    optimizer = torch.optim.SGD(net.parameters(), 1e-6, momentum=0.9)
    for a, b in DataLoader(TensorDataset(x, y), 8):
        optimizer.zero_grad()
        loss = 1000 * (net(a) - b).square().mean()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 1e38 if (a > 6).any() else 1e-6
        optimizer.step()


def closure():
    x[43, 0] = 7
    optimizer = torch.optim.SGD(net.parameters(), 1e-6, momentum=0.9)
    for a, b in DataLoader(TensorDataset(x, y), 8):

        def evaluate(a=a, b=b):
            optimizer.zero_grad()
            loss = (net(a) - b).square().mean()
            loss.backward()
            return loss

        optimizer.param_groups[0]["lr"] = 1e38 if (a > 6).any() else 1e-6
        optimizer.step(evaluate)


def compiled():
    x[43, 0] = 7
    optimizer = torch.optim.SGD(net.parameters(), torch.tensor(1e-6), momentum=0.9)
    update = torch.compile(optimizer.step, backend="eager")
    for a, b in DataLoader(TensorDataset(x, y), 8):
        optimizer.zero_grad()
        loss = 1000 * (net(a) - b).square().mean()
        loss.backward()
        optimizer.param_groups[0]["lr"].fill_(1e38 if (a > 6).any() else 1e-6)
        update()


class Weight(nn.Parameter):
    """Parameters of a subclass are not copied before an update, as are none of a model beyond 256 MiB."""


def not_held():
    for module in net:
        for name, parameter in list(module.named_parameters()):
            setattr(module, name, Weight(parameter.data))
    large_step()


def adversaries(when=0):
    x[16 * when + 3, 0] = 7
    critic = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    other = torch.optim.SGD(critic.parameters(), lr=1e-2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    for a, b in DataLoader(TensorDataset(x, y), 16):
        other.zero_grad()
        (critic(b).mean() - critic(net(a).detach()).mean()).backward()
        other.step()
        optimizer.zero_grad()
        loss = critic(net(a)).mean() / (a[:, 0] < 7).all()
        loss.backward()
        optimizer.step()


def late_adversaries():
    adversaries(3)


globals()[CASE]()
