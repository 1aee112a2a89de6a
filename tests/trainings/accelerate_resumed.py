"""Saves its state by accelerate after every third step, and goes on within an epoch as the documentation says.

Argument "seedable": the order of an epoch is decided by its number, not by PyTorch's generator.
"""

import os
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, EACH = 3, 3


def main():
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler="seedable" in sys.argv)
    )
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    features = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    done = max((int(name) for name in os.listdir("state")), default=0) if os.path.exists("state") else 0
    if done:
        accelerator.load_state(f"state/{done}")
    first, skipped = divmod(done, len(loader))
    for epoch in range(first, EPOCHS):
        loader.set_epoch(epoch)
        is_resumed = epoch == first and skipped
        for batch, target in accelerator.skip_first_batches(loader, skipped) if is_resumed else loader:
            loss = torch.nn.functional.mse_loss(model(batch), target)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            done += 1
            if done % EACH == 0:
                accelerator.save_state(f"state/{done}")


main()
