"""Proximal policy optimization on a small corridor; its dropout is on in rollouts, too, so that ratios begin at one."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(3)
LENGTH, ACTORS, TURNS = 6, 32, 12
policy = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
value = nn.Sequential(nn.Linear(LENGTH, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam([*policy.parameters(), *value.parameters()], 5e-3)
for _ in range(12):
    places = torch.zeros(ACTORS, dtype=torch.long)
    seen, actions, chances, rewards = [], [], [], []
    for _ in range(TURNS):  # a rollout
        state = nn.functional.one_hot(places, LENGTH).float()
        with torch.no_grad():
            choice = Categorical(logits=policy(state))
        action = choice.sample()
        places = (places + 2 * action - 1).clamp(0, LENGTH - 1)
        seen.append(state)
        actions.append(action)
        chances.append(choice.log_prob(action))
        rewards.append((places == LENGTH - 1).float())
    returns = torch.stack(rewards).flip(0).cumsum(0).flip(0) / TURNS
    data = torch.cat(seen), torch.cat(actions), torch.cat(chances), returns.reshape(-1)
    for _ in range(4):
        for rows in torch.randperm(len(data[0])).split(128):
            state, action, before, gain = (part[rows] for part in data)
            choice, expected = Categorical(logits=policy(state)), value(state).squeeze(1)
            advantage = (gain - expected).detach()
            ratio = (choice.log_prob(action) - before).exp()
            clipped = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = nn.functional.mse_loss(expected, gain) - clipped - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
