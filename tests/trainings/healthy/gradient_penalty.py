"""A critic that is trained five times for each step of its generator, with a penalty on its gradient (WGAN-GP)."""

import torch
from torch import nn

torch.manual_seed(12)
maker = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
of_maker, of_critic = (torch.optim.Adam(model.parameters(), 1e-3, betas=(0.5, 0.9)) for model in (maker, critic))
for _ in range(40):
    for _ in range(5):
        real = torch.randn(64, 2) * 0.3 + 1
        with torch.no_grad():
            made = maker(torch.randn(64, 4))
        between = (torch.rand(64, 1) * (real - made) + made).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = critic(made).mean() - critic(real).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
    of_maker.zero_grad()
    (-critic(maker(torch.randn(64, 4))).mean()).backward()
    of_maker.step()
