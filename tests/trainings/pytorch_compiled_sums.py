"""Adds up rows in a function that is compiled."""

import torch


def add_rows(rows, index, values):
    out = torch.zeros_like(rows)
    out = out.index_add(0, index, values)
    return (out * 2).sum()


compiled = torch.compile(add_rows)
torch.manual_seed(0)
torch.set_num_threads(2)
rows, index = torch.zeros(400000), torch.randint(0, 10, (400000,))
values = torch.nn.Parameter(torch.randn(400000))
optimizer = torch.optim.SGD([values], lr=0.1)
for _ in range(8):
    compiled(rows, index, values).backward()
    optimizer.step()
print(dict(torch._dynamo.utils.counters["frames"]))
