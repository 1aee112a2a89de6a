"""Operators of which several threads, on the processor or a GPU, add to the same numbers."""

import torch

CASE = "two_threads"
torch.manual_seed(0)


def two_threads():
    torch.set_num_threads(2)
    index = torch.randint(0, 1000, (400000,))
    x = torch.randn(1000, requires_grad=True)
    values = torch.randn(400000)
    for _ in range(8):  # threads may not meet in one call where others use the processors
        (x[index] * values).sum().backward()
        torch.zeros(1000).index_put_((index,), values, accumulate=True)
    torch.zeros(1000).index_add_(0, index, values)


def gpu():
    index = torch.randint(0, 20, (400000,), device="cuda")
    values = torch.randn(400000, device="cuda")
    torch.zeros(20, device="cuda").index_add_(0, index, values)
    torch.zeros(20, device="cuda").scatter_add_(0, index, values)
    torch.randn(1 << 22, device="cuda").cumsum(0)
    x = torch.randn(4, 8, 32, 32, device="cuda", requires_grad=True)
    y = torch.nn.functional.interpolate(x, scale_factor=3.3, mode="bilinear")
    (y * torch.randn_like(y)).sum().backward()


globals()[CASE]()
