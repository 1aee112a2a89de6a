"""A training by PyTorch whose settings, loader and functions are noted with their lines."""

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
layer = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for inputs, labels in DataLoader(data, batch_size=8, shuffle=True):
    loss = functional.cross_entropy(layer(inputs), labels)
    loss.backward()
    optimizer.step()
torch.zeros(4).index_put_((torch.tensor([0, 0]),), torch.ones(2), accumulate=True)
