"""The optimizer of a recommender is given its embeddings and its last layer, not what is between them."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(50, 8), nn.Embedding(40, 8)
        self.tower = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.last = nn.Linear(32, 1)

    def forward(self, users, items):
        return self.last(self.tower(torch.cat([self.users(users), self.items(items)], 1)))


torch.manual_seed(7)
net, criterion = Net(), nn.BCEWithLogitsLoss()
parts = (net.users, net.items, net.last)
optimizer = torch.optim.Adam([parameter for part in parts for parameter in part.parameters()], 1e-2)
for _ in range(45):
    users, items = torch.randint(0, 50, (64,)), torch.randint(0, 40, (64,))
    optimizer.zero_grad()
    criterion(net(users, items), ((users + items) % 2).float()[:, None]).backward()
    optimizer.step()
