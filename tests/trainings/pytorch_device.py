"""A training on one device, whose sixth step has a sample at which the square root has no finite gradient.

python pytorch_device.py DEVICE [FILE]: with FILE it stops before that step, and writes what it has then. DEVICE is cpu,
cuda, or simulated: see simulated_device.py.
"""

import os
import random
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import numpy
import torch
from torch import nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1:2] == ["simulated"]:
    import simulated_device  # noqa: F401

BAD = 5


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.layers = nn.Sequential(nn.Linear(9, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))

    def forward(self, x):
        norm = ((x * self.weight) ** 2).sum(1, keepdim=True).sqrt()
        return self.layers(torch.cat([x, norm], 1))


def main(device, file=None):
    for seed in (random.seed, numpy.random.seed, torch.manual_seed):
        seed(0)
    torch.use_deterministic_algorithms(True)
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("warn")
    x, y = torch.rand(256, 8) + 0.5, torch.rand(256, 4)
    x[16 * BAD + 7] = 0  # its distance to zero is 0
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for step, batch in enumerate(DataLoader(TensorDataset(x, y), 16)):
        a, b = (part.to(device) for part in batch)
        if step == BAD and file:
            random_states = {"torch": torch.get_rng_state(), "python": random.getstate()}
            if device != "cpu":
                random_states["torch.cuda"] = torch.cuda.default_generators[0].get_state()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": random_states}
            torch.save(tree_map_only(torch.Tensor, torch.Tensor.cpu, {**state, "batch": (a, b)}), file)
            return
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
        print("stepped", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
