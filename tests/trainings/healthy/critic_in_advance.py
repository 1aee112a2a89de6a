"""A critic that takes five steps for each of its generator's, with clipped weights."""

import torch
from torch import nn

torch.manual_seed(32)
generator = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
critic = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
updates = [torch.optim.RMSprop(model.parameters(), 5e-4) for model in (generator, critic)]
for _ in range(20):
    for _ in range(5):
        updates[1].zero_grad()
        false, true = generator(torch.randn(64, 6)).detach(), torch.randn(64, 4) + 1
        (critic(false).mean() - critic(true).mean()).backward()
        updates[1].step()
        with torch.no_grad():
            for parameter in critic.parameters():
                parameter.clamp_(-0.05, 0.05)
    updates[0].zero_grad()
    (-critic(generator(torch.randn(64, 6))).mean()).backward()
    updates[0].step()
