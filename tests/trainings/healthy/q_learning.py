"""Deep Q-learning with a target network and a replay memory; the loss follows a moving target."""

import copy
import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
LENGTH = 8
net = nn.Sequential(nn.Linear(LENGTH, 32), nn.ReLU(), nn.Linear(32, 2))
target = copy.deepcopy(net)
optimizer = torch.optim.Adam(net.parameters(), 2e-3)
memory, place = [], 0
for turn in range(400):
    state = nn.functional.one_hot(torch.tensor(place), LENGTH).float()
    with torch.no_grad():
        action = random.randrange(2) if random.random() < 0.3 else int(net(state).argmax())
    place = min(max(place + 2 * action - 1, 0), LENGTH - 1)
    reward = float(place == LENGTH - 1)
    memory.append((state, action, reward, nn.functional.one_hot(torch.tensor(place), LENGTH).float()))
    place = 0 if reward else place
    if turn < 100:
        continue
    states, actions, rewards, followers = zip(*random.sample(memory, 32), strict=True)
    chosen = net(torch.stack(states)).gather(1, torch.tensor(actions)[:, None]).squeeze(1)
    with torch.no_grad():
        worth = torch.tensor(rewards) + 0.9 * (1 - torch.tensor(rewards)) * target(torch.stack(followers)).amax(1)
    loss = nn.functional.smooth_l1_loss(chosen, worth)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if turn % 50 == 0:
        target.load_state_dict(net.state_dict())
