"""A function of autograd whose backward pass changes a gradient by NumPy, in the step given, where a mask drops it."""

import sys

import torch

change = int(sys.argv[1])


class Copied(torch.autograd.Function):
    """Copies; its gradient may get other numbers."""

    @staticmethod
    def forward(ctx, x, step):
        ctx.step = step
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        copied = gradient.clone()
        if ctx.step == change:
            copied.numpy()[:, 0] += 1.0
        return copied, None


torch.manual_seed(0)
weights, mask = torch.nn.Parameter(torch.randn(4, 4)), torch.tensor([0.0, 1.0, 1.0, 1.0])
optimizer = torch.optim.SGD([weights], lr=0.1)
for step, x in enumerate(torch.randn(6, 8, 4)):
    optimizer.zero_grad()
    hidden = (x @ weights) * mask
    (Copied.apply(hidden, step) ** 2).mean().backward()
    optimizer.step()
