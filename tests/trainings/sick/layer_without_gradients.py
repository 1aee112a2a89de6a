"""A layer is called without gradients, though the optimizer has it."""

import torch
from torch import nn

torch.manual_seed(4)
x = torch.randn(640, 20)
y = (x.mean(1) > 0).long()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(20, 30), nn.Linear(30, 30), nn.Linear(30, 2)

    def forward(self, inputs):
        with torch.no_grad():
            hidden = torch.relu(self.first(inputs))
        return self.head(torch.relu(self.second(hidden)))


net, criterion = Net(), nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for rows in torch.randperm(640).split(20):
    optimizer.zero_grad()
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()
