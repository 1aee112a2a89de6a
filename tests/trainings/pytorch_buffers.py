"""Trains a model whose buffers are assigned anew, freed, or of a class of tensors, until a loss is not finite."""

import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor


class Model(nn.Linear):
    def __init__(self):
        super().__init__(3, 1)
        self.register_buffer("counter", torch.zeros(1))
        self.register_buffer("freed", torch.rand(5))
        self.register_buffer("two", TwoTensor(torch.zeros(5), torch.ones(5)))

    def forward(self, x):
        self.counter = self.counter + 1
        return super().forward(x)


model = Model()
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    if step == 2:
        model.freed.untyped_storage().resize_(0)
    optimizer.zero_grad()
    (model(torch.rand(4, 3)).mean() * (float("nan") if step == 3 else 1)).backward()
    optimizer.step()
print(model.counter.item())
