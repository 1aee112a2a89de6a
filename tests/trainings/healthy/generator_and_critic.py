"""A generative adversarial network with dropout in both of its models, and samples drawn each ten steps."""

import torch
from torch import nn

torch.manual_seed(11)
maker = nn.Sequential(nn.Linear(4, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(32, 1))
of_maker = torch.optim.Adam(maker.parameters(), 1e-3, betas=(0.5, 0.9))
of_critic = torch.optim.Adam(critic.parameters(), 1e-3, betas=(0.5, 0.9))
judged = nn.functional.binary_cross_entropy_with_logits
for step in range(150):
    real = torch.randn(64, 2) * 0.3 + torch.tensor([1.0, -1.0])
    made = maker(torch.randn(64, 4))
    of_critic.zero_grad()
    loss = judged(critic(real), torch.ones(64, 1)) + judged(critic(made.detach()), torch.zeros(64, 1))
    loss.backward()
    of_critic.step()
    of_maker.zero_grad()
    judged(critic(made), torch.ones(64, 1)).backward()
    of_maker.step()
    if step % 10 == 9:
        maker.eval()
        with torch.no_grad():
            maker(torch.randn(8, 4))
        maker.train()
