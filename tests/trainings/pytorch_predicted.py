"""A training of four epochs, with all that is logged and kept of one."""

import torch
from torch.utils.data import DataLoader, TensorDataset

import reprokit

torch.manual_seed(7)
x, y = torch.randn(96, 16), torch.randint(0, 3, (96,))
model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(4):
    for a, b in DataLoader(TensorDataset(x, y), 8, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    reprokit.log(last=loss, epoch=epoch)
reprokit.log_predictions(y, model.eval()(x), task="classification")
reprokit.log_predictions(x[:, 0], x[:, 1], task="regression")
torch.save(model.state_dict(), "model.pt")
