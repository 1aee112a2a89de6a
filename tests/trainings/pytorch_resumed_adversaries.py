"""A generator and its critic, each with an optimizer, which save a checkpoint without the parts that are named."""

import os
import sys

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as entropy

LEFT_OUT, CHECKPOINT = frozenset(sys.argv[1:]), "checkpoint.pt"
torch.manual_seed(0)
torch.set_num_threads(1)
maker, critic = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), nn.Linear(3, 1)
of_maker, of_critic = torch.optim.Adam(maker.parameters(), lr=2e-3), torch.optim.RMSprop(critic.parameters(), lr=1e-3)
parts = {"maker": maker, "critic": critic, "of_maker": of_maker, "of_critic": of_critic}
begin = 0

if os.path.exists(CHECKPOINT):
    saved = torch.load(CHECKPOINT, weights_only=False)
    for name in parts.keys() & saved.keys():
        parts[name].load_state_dict(saved[name])
    begin = saved["step"]
    torch.set_rng_state(saved["random"])

for step in range(begin, 16):
    real, fake = torch.randn(8, 3) + 1, maker(torch.randn(8, 4))
    of_critic.zero_grad()
    (entropy(critic(real), torch.ones(8, 1)) + entropy(critic(fake.detach()), torch.zeros(8, 1))).backward()
    of_critic.step()
    of_maker.zero_grad()
    entropy(critic(fake), torch.ones(8, 1)).backward()
    of_maker.step()
    if step % 3 == 2:
        state = {name: part.state_dict() for name, part in parts.items() if name not in LEFT_OUT}
        torch.save({**state, "step": step + 1, "random": torch.get_rng_state()}, CHECKPOINT)
