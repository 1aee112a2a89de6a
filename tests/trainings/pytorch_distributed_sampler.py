"""A training whose batches are shuffled by a seed from the clock, which PyTorch's own files hand on."""

import time

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
sampler = DistributedSampler(data, num_replicas=2, rank=0, seed=time.time_ns() % 2**40)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
print(loss.item(), sum(parameter.sum().item() for parameter in model.parameters()))
torch.save(model.state_dict(), "weights.pt")
