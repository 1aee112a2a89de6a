"""A training on a GPU, one of whose operators adds to few elements by atomic additions: a race between threads."""

import torch

parameter = torch.nn.Parameter(torch.zeros(16, device="cuda"))
index = (torch.arange(400_000) % 16).cuda()
torch.manual_seed(1)
values = torch.randn(400_000, device="cuda")
optimizer = torch.optim.SGD([parameter], lr=1e-3)
for _ in range(4):
    optimizer.zero_grad()
    sums = torch.zeros(16, device="cuda").index_add_(0, index, values)
    loss = ((parameter - sums / 1000) ** 2).mean()
    loss.backward()
    optimizer.step()
print(loss.item())
