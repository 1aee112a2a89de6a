"""A loop as accelerate has it: accelerate launch --num_processes 2 accelerated.py"""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(3)
    features = torch.randn(64, 8)
    loader = DataLoader(TensorDataset(features, features.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(batch), target)
            accelerator.backward(loss)
            optimizer.step()
    mean = accelerator.reduce(loss.detach(), "mean")
    if accelerator.is_main_process:
        with open("loss.txt", "w") as file:
            file.write(repr(mean.item()))
    accelerator.wait_for_everyone()
    os._exit(0)  # as gloo's threads abort one process of ten while it is taken down, without reprokit as well


main()
