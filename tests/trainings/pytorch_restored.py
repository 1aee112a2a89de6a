"""Restores a snapshot of the training in pytorch_device.py on the CPU: python pytorch_restored.py SNAPSHOT STATE."""

import sys

import torch
from pytorch_device import Model

import reprokit.capture

model = Model()
optimizer = torch.optim.Adam(model.parameters())
print(reprokit.capture.load(sys.argv[1]).restore(model, optimizer))
torch.save((model.state_dict(), optimizer.state_dict(), torch.get_rng_state()), sys.argv[2])
