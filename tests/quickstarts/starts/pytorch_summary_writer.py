"""PyTorch's TensorBoard tutorial: a loop that logs its losses by a SummaryWriter with a dated directory."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

x = torch.arange(-5, 5, 0.1).view(-1, 1)
y = -5 * x + 0.1 * torch.randn(x.size())
model = torch.nn.Linear(1, 1)
criterion = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
writer = SummaryWriter()  # runs/Nov29_08-04-02_host
for epoch in range(3):
    for inputs, targets in DataLoader(TensorDataset(x, y), 25, shuffle=True):
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    writer.add_scalar("Loss/train", loss, epoch)
writer.close()
torch.save(model.state_dict(), "model.pt")
print("RESULT", loss.item())
