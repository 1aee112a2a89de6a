"""Calls operators of which some repeat their results and some do not."""

import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(3)
x = torch.randn(60000, requires_grad=True)
index = torch.randint(0, 50, (60000,))
torch.zeros(50).scatter_add(0, index, x).sum().backward()
embed = nn.Embedding(50, 16)
embed(index[:5000]).sum().backward()
nn.Conv2d(3, 8, 3)(torch.randn(4, 3, 16, 16)).sum().backward()
nn.functional.dropout(torch.randn(1000))
torch.empty(10)


@torch.library.custom_op("mine::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x * random.SystemRandom().random()


@torch.library.custom_op("mine::calm", mutates_args=("x",))
def calm(x: torch.Tensor) -> None:
    x.mul_(random.random())


y = torch.ones(4)
noisy(y)
calm(y)
try:
    torch.ones(2).index_select(0, torch.tensor([5]))
except IndexError:
    print("refused")
print(y.tolist(), random.random(), torch.randn(1).item(), torch.get_num_threads())
