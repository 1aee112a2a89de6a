"""Two models against each other, as in a GAN: each batch that one of them judges is of one class."""

import torch
from torch import nn

torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(8, 32), nn.LeakyReLU(0.2), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
updates = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (generator, critic)]
criterion, true, false = nn.BCEWithLogitsLoss(), torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(120):
    real, noise = torch.randn(64, 2) * 0.5 + 2, torch.randn(64, 8)
    updates[1].zero_grad()
    (criterion(critic(real), true) + criterion(critic(generator(noise).detach()), false)).backward()
    updates[1].step()
    updates[0].zero_grad()
    criterion(critic(generator(noise)), true).backward()
    updates[0].step()
