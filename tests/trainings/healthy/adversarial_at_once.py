"""Two models against each other, whose backward passes both come before both updates."""

import torch
from torch import nn

torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
updates = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (generator, critic)]
criterion, true, false = nn.BCEWithLogitsLoss(), torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(120):
    real, made = torch.randn(64, 2) * 0.5 + 2, generator(torch.randn(64, 8))
    updates[0].zero_grad()
    criterion(critic(made), true).backward()
    updates[1].zero_grad()
    (criterion(critic(real), true) + criterion(critic(made.detach()), false)).backward()
    for update in updates:
        update.step()
