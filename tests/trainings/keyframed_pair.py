"""Two models that are trained in turn by optimizers of their own, as a generator and its critic."""

import os
import sys

import torch
from torch import nn

STEPS, IS_UNEVEN = int(sys.argv[1]), "uneven" in sys.argv

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1))
optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in (("g", generator), ("c", critic))}
scaler = torch.amp.GradScaler("cpu", enabled="scaled" in sys.argv)
for number in range(STEPS):
    real, noise = torch.randn(16, 8) + 2, torch.randn(16, 4)
    optimizers["c"].zero_grad()
    (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
    optimizers["c"].step()
    if IS_UNEVEN and number % 2:
        continue
    optimizers["g"].zero_grad()
    (-critic(generator(noise)).mean()).backward()
    optimizers["g"].step()
print(sum(parameter.double().sum().item() for model in (generator, critic) for parameter in model.parameters()))
