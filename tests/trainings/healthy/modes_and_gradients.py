"""What only resembles kept gradients and wrong modes: parts of batches, frozen statistics, a critic's generator."""

import torch
from torch import nn

torch.manual_seed(9)
x = torch.randn(600, 20)
y = x[:, :3].argmax(1)
net = nn.Sequential(nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 3))
criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.Adam(net.parameters(), lr=3e-3)
for _ in range(2):  # in parts, and zeroed in the way of old tutorials
    net.train()
    for rows in torch.randperm(500).split(20):
        for parameter in net.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        for part in rows.split(10):
            (criterion(net(x[part]), y[part]) / 2).backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        criterion(net(x[500:]), y[500:])

net[1].eval()  # frozen statistics, as of a fine-tuned model
for rows in torch.randperm(500).split(20):
    net.train()
    net[1].eval()
    optimizer.zero_grad(set_to_none=False)
    criterion(net(x[rows]), y[rows]).backward()
    optimizer.step()

generator = nn.Sequential(nn.Linear(6, 32), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(32, 4))
critic = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
updates = [torch.optim.RMSprop(model.parameters(), 5e-4) for model in (generator, critic)]
for _ in range(20):  # the critic's gradients stay while the generator's loss adds to them
    with torch.no_grad():
        false = generator(torch.randn(64, 6))
    updates[1].zero_grad()
    (critic(false).mean() - critic(torch.randn(64, 4) + 1).mean()).backward()
    updates[1].step()
    updates[0].zero_grad()
    (-critic(generator(torch.randn(64, 6))).mean()).backward()
    updates[0].step()

net = nn.Linear(20, 3)  # losses that are scaled more and more
optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", 2.0, growth_interval=12)
for _ in range(60):
    rows = torch.randint(500, (40,))
    optimizer.zero_grad()
    scaler.scale(criterion(net(x[rows]), y[rows])).backward()
    scaler.step(optimizer)
    scaler.update()
