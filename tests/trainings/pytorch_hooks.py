"""Everything in PyTorch that hooks in where operators are dispatched, at once."""

import threading
import warnings

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

warnings.simplefilter("ignore")
seen = []


class Counting(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        seen.append(func._schema.name)
        return func(*args, **(kwargs or {}))


class Marked(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [a.plain if isinstance(a, Marked) else a for a in args]
        return func(*plain, **(kwargs or {}))

    @staticmethod
    def __new__(cls, plain):
        made = torch.Tensor._make_wrapper_subclass(cls, plain.shape)
        made.plain = plain
        return made


w = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([w], lr=0.5)
with Counting():
    torch.ones(3).tan()
    w.detach().cosh().sum()
    (w * w).sum().backward()
    optimizer.step()
    torch.ones(3).tanh()
print([name for name in seen if "tan" in name], torch._C._len_torch_dispatch_stack() <= 1)
optimizer.zero_grad()
print(torch.vmap(lambda row: row.atan().sum())(torch.zeros(3, 4)).tolist())
print(torch.func.grad(lambda x: (x**3).sum())(torch.ones(2)).tolist())
for reentrant in (True, False):
    checkpoint(lambda t: (t * t).cos(), w, use_reentrant=reentrant).sum().backward()
print(Marked(torch.ones(2)).exp().shape)
thread = threading.Thread(target=lambda: torch.ones(4).erfinv())
thread.start()
thread.join()


class Own(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self):
        w.data.copysign_(w.data)


Own([w]).step()


def closure():
    optimizer.zero_grad()
    loss = w.sigmoid().sum()
    loss.backward()
    return loss


optimizer.step(closure)


class Twice(torch.nn.Module):
    def forward(self, x):
        return (x * 2).sin()


with FakeTensorMode():
    print((torch.ones(3) + 1).shape)
print(torch.jit.trace(Twice(), torch.ones(3))(torch.ones(3)))
print(make_fx(lambda x: x.cos() + 1)(torch.ones(3)).code)
print(len(torch.export.export(Twice(), (torch.ones(3),)).graph.nodes))
print(torch.cond(torch.tensor(True), lambda x: x.sin(), lambda x: x.cos(), (torch.ones(3),)))
print(torch.compile(Twice(), backend="aot_eager")(torch.ones(2)))
with torch.autograd.set_detect_anomaly(True), torch.autograd.graph.save_on_cpu():
    (w * 2).sum().backward()
torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)]) * 2
