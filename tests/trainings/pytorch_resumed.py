"""A training that saves a checkpoint after every third step, without the parts that are named, and goes on from it."""

import os
import random
import sys

import numpy as np
import torch

LEFT_OUT = frozenset(sys.argv[1:])  # "optimizer", "schedule", ...; "all": no checkpoint is saved
CHECKPOINT, EPOCHS, SAMPLES, BATCH = "checkpoint.pt", 3, 64, 8

seed = int.from_bytes(os.urandom(4), "little")
random.seed(seed)
np.random.seed(seed)
torch.manual_seed(seed)
torch.set_num_threads(1)

data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 6), torch.randn(SAMPLES, 1))
model = torch.nn.Sequential(
    torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.25), torch.nn.ReLU(), torch.nn.Linear(8, 1)
)
if "transposed" in LEFT_OUT:  # elements in another order than in memory, as by channels_last
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=5)
position = [0, 0]


def parts():
    """Return what of a training has a state, by names."""
    buffers = {name: value for name, value in model.state_dict().items() if "running" in name or "num_b" in name}
    return {
        "model": {name: value for name, value in model.state_dict().items() if name not in buffers},
        "buffers": buffers,
        "average": average.state_dict(),
        "optimizer": optimizer.state_dict(),
        "schedule": schedule.state_dict(),
        "scaler": scaler.state_dict(),
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "position": list(position),
    }


def save():
    """Write all parts but those that are left out."""
    if "all" not in LEFT_OUT:
        torch.save({name: value for name, value in parts().items() if name not in LEFT_OUT}, CHECKPOINT)


def restore(saved):
    """Put the parts back that were saved."""
    model.load_state_dict({**saved.get("model", {}), **saved.get("buffers", {})}, strict=False)
    for name, owner in (("average", average), ("optimizer", optimizer), ("schedule", schedule), ("scaler", scaler)):
        if name in saved:
            owner.load_state_dict(saved[name])
    setters = {"torch": torch.set_rng_state, "python": random.setstate, "numpy": np.random.set_state}
    for name, put in setters.items():
        if name in saved:
            put(saved[name])
    position[:] = saved.get("position", [0, 0])


if os.path.exists(CHECKPOINT):
    restore(torch.load(CHECKPOINT, weights_only=False))

steps = 0
for epoch in range(position[0], EPOCHS):
    order = torch.Generator().manual_seed(100 + epoch)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True, generator=order)
    for number, (inputs, targets) in enumerate(loader):
        if epoch == position[0] and number < position[1]:
            continue
        noise = random.random() * torch.from_numpy(np.random.standard_normal(inputs.shape).astype("float32"))
        loss = torch.nn.functional.mse_loss(model(inputs + 0.1 * noise), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        steps += 1
        if steps % 3 == 0:
            position[:] = [epoch, number + 1]
            save()
