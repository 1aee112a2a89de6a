"""stable-baselines3's getting started: PPO on CartPole, saved as a zip file that holds its start time."""

import gymnasium
from stable_baselines3 import PPO

model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), verbose=1, n_steps=64, batch_size=32, n_epochs=2)
model.learn(total_timesteps=128)
model.save("ppo_cartpole")
print("RESULT", model.policy.state_dict()["value_net.weight"].sum().item())
