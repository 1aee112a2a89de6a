"""Keeps graphs, and fails within one; none of them may stay alive."""

import gc
import weakref

import torch


class Saved:
    pass


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.saved = Saved()
        alive.append(weakref.ref(ctx.saved))
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if fails:
            raise MemoryError("as when there is too little")
        return gradient * 2


alive, fails = [], False
weight = torch.nn.Parameter(torch.ones(3))
for keywords in ({"retain_graph": True}, {"create_graph": True}):
    Double.apply(weight).sum().backward(**keywords)
    weight.grad = None
fails = True
try:
    Double.apply(weight).sum().backward()
except MemoryError:
    pass
gc.collect()
assert [reference() for reference in alive] == [None] * 3
