"""An agent as cleanrl writes them: one file, a run name with the epoch's seconds, SPS, a SummaryWriter."""

import time

import gymnasium
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

run_name = f"CartPole-v1__reinforce__1__{int(time.time())}"
writer = SummaryWriter(f"runs/{run_name}")
environment = gymnasium.make("CartPole-v1")
agent = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-3)
start_time, global_step = time.time(), 0
for _ in range(4):
    observation, _ = environment.reset()
    logs, rewards, done = [], [], False
    while not done and len(rewards) < 50:
        distribution = torch.distributions.Categorical(logits=agent(torch.as_tensor(observation)))
        action = distribution.sample()
        observation, reward, terminated, truncated, _ = environment.step(action.item())
        logs.append(distribution.log_prob(action))
        rewards.append(float(reward))
        global_step += 1
        done = terminated or truncated
    print(f"global_step={global_step}, episodic_return={sum(rewards)}")
    loss = -torch.stack(logs).sum() * sum(rewards)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("SPS:", int(global_step / (time.time() - start_time)))
    writer.add_scalar("charts/SPS", int(global_step / (time.time() - start_time)), global_step)
    writer.add_scalar("losses/policy_loss", loss.item(), global_step)
writer.close()
torch.save(agent.state_dict(), f"runs/{run_name}/agent.pt")
print("RESULT", loss.item())
