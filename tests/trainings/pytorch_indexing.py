"""A PyTorch training whose only trouble is the backward of x[index], which adds on several threads."""

import torch

torch.set_num_threads(2)
generator = torch.Generator().manual_seed(1)
index = torch.randint(0, 500, (100_000,), generator=generator)
target = torch.rand(100_000, generator=generator)
x = torch.nn.Parameter(torch.rand(500, generator=generator))
optimizer = torch.optim.SGD([x], lr=0.001)
for _ in range(8):
    optimizer.zero_grad()
    loss = ((x[index] - target) ** 2).sum()
    loss.backward()
    optimizer.step()
torch.save({"x": x.detach()}, "x.pt")
