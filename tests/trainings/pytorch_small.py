"""A small training that computes each loss by a function that it is given, which calls models in all ways.

A test appends what is to be called. What takes an `offset` differs by it, at step 1, in what a model is called with.
"""

import copy
import dataclasses
import os
import warnings

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(7)
x, y = torch.randn(24, 4), torch.randn(24, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loader = DataLoader(TensorDataset(x, y), 8)


def steps(compute, parameters=None, between=lambda number, a: None):
    optimizer = torch.optim.SGD(parameters or model.parameters(), lr=0.01)
    for number, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        compute(number, a, b).backward()
        between(number, a)
        optimizer.step()


class Outer(nn.Module):
    def __init__(self, compute):
        super().__init__()
        self.inner, self.compute = model, compute

    def forward(self, *arguments, **options):
        return self.compute(*arguments, **options)


def plain():
    steps(lambda number, a, b: mse_loss(model(a), b))


def made(offset):
    steps(lambda number, a, b: mse_loss(model(a + offset * (number == 1)), b))


def in_place(offset):
    steps(lambda number, a, b: mse_loss(model(a.clone().add_(offset * (number == 1))), b))


def twice(offset):
    steps(lambda number, a, b: mse_loss(model(a) + model(a.flip(0) + offset * (number == 1)), b))


@dataclasses.dataclass
class Views:
    one: torch.Tensor
    more: dict


class Slots:
    __slots__ = ("name", "views")


def packed(offset):
    def forward(slots, scale, name=""):
        return model(slots.views.one) + scale * model(slots.views.more["two"][0])

    net = Outer(forward)

    def compute(number, a, b):
        slots = Slots()
        slots.views, slots.name = Views(a, {"two": (a * 2 + offset * (number == 1),)}), object()
        return mse_loss(net(slots, 0.5, name=str(id(slots))), b)

    steps(compute)


def scaled(offset):
    net = Outer(lambda value, scale: model(value) * scale)
    steps(lambda number, a, b: mse_loss(net(a, scale=1.5 + offset * (number == 1)), b))


def leaf(offset):
    def compute(number, a, b):
        attack = torch.full_like(a, offset * (number == 1)).requires_grad_()
        (gradient,) = torch.autograd.grad(mse_loss(model(attack), b), attack)
        return mse_loss(model(a + gradient), b)

    steps(compute)


def frozen(offset):
    layer = nn.Linear(4, 4).requires_grad_(False)
    steps(lambda number, a, b: mse_loss(model(layer(a + offset * (number == 1))), b))


def nested(offset):
    warnings.simplefilter("ignore")  # nested tensors are a prototype

    net = Outer(lambda value: model(torch.cat(value.unbind())))

    def compute(number, a, b):
        return mse_loss(net(torch.nested.nested_tensor([a[:3], a[3:] + offset * (number == 1)])), b)

    steps(compute)


def scripted(offset):
    compiled = torch.jit.script(model)
    steps(lambda number, a, b: mse_loss(compiled(a + offset * (number == 1)), b))


def compiled(offset):
    compiled = torch.compile(model, backend="eager")
    steps(lambda number, a, b: mse_loss(compiled(a + offset * (number == 1)), b))


def replicas(offset):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    replica = nn.parallel.DistributedDataParallel(model)
    steps(lambda number, a, b: mse_loss(replica(a + offset * (number == 1)), b))
    torch.distributed.destroy_process_group()


# Each is called with what the plain one is called with, as far as it counts.


def views():
    steps(lambda number, a, b: mse_loss(model(a.view(2, 4, 4).view(8, 4)), b))


def in_memory():
    steps(lambda number, a, b: mse_loss(model(a), b), between=lambda number, a: a.zero_())


def criterion():
    loss = nn.MSELoss()
    steps(lambda number, a, b: loss(model(a), b))


def recomputed():
    def forward(value):
        value = checkpoint(model[0], value, use_reentrant=False)
        return model[2](checkpoint(model[1], value, use_reentrant=True))

    net = Outer(forward)
    steps(lambda number, a, b: mse_loss(net(a), b))


class Called(Dataset):
    """Data that calls a model of its own."""

    def __init__(self):
        self.net = nn.Linear(4, 4)

    def __len__(self):
        return len(x)

    def __getitem__(self, index):
        self.net(torch.rand(4))
        return x[index], y[index]


def in_the_data():
    global loader
    loader = DataLoader(Called(), 8)
    plain()


def traced():
    def compute(number, a, b):
        torch.jit.trace(copy.deepcopy(model), a + 1, check_trace=False)
        return mse_loss(model(a), b)

    steps(compute)


# Each is called with what the plain one is called with, and with what does not count.


def evaluated():
    def compute(number, a, b):
        if number == 1:
            with torch.no_grad():
                model(a + 1)
        return mse_loss(model(a), b)

    steps(compute)


def chained():
    steps(lambda number, a, b: mse_loss(model(a) + model(model(a) + a), b))


def transformed():
    def compute(number, a, b):
        functional_call(model, dict(model.named_parameters()), a)
        vmap(lambda row: model(row + 1))(a)
        return mse_loss(model(a), b)

    steps(compute)


def optional(options):
    net = Outer(lambda value, options: model(value) * (2 if options else 1))
    steps(lambda number, a, b: mse_loss(net(a, options), b))


class Wrapper(torch.Tensor):
    """As quantized tensors are: it has no memory of its own."""

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return args[0] * 0.5


def without_memory():
    freed, wrapper = torch.ones(64), torch.Tensor._make_wrapper_subclass(Wrapper, (4096,))
    freed.untyped_storage().resize_(0)
    net = Outer(lambda value, freed, wrapper: model(value))
    net.register_buffer("wrapper", wrapper)
    steps(lambda number, a, b: mse_loss(net(a, freed, wrapper), b))


# No call of a model is seen.


def whole_step():
    compiled = torch.compile(lambda a, b: mse_loss(model(a), b), backend="eager", fullgraph=True)
    steps(lambda number, a, b: compiled(a, b))


def functional():
    w = nn.Parameter(torch.ones(4, 1))
    steps(lambda number, a, b: mse_loss(a @ w, b), [w])


def reshaped():
    steps(lambda number, a, b: mse_loss(model(a.view(4, 2, 4)).view(8, 1), b))


def pair(offset):
    generator, critic = nn.Linear(2, 4), nn.Linear(4, 1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=0.01)
    of_critic = torch.optim.SGD(critic.parameters(), lr=0.01)
    for number, (a, _) in enumerate(loader):
        noise = torch.arange(16.0).view(8, 2) / 16
        fake = generator(noise + offset * (number == 1))
        of_critic.zero_grad()
        (critic(fake.detach()) - critic(a)).mean().backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fake)).mean().backward()
        of_generator.step()
