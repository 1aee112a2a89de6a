"""A training as nanoGPT has it: `while True`, batches drawn from a file, accumulated gradients, a schedule by hand."""

import math
import os
import sys
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.nn import functional

STEPS, BLOCK = int(sys.argv[1]), 16

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
(np.arange(20000) ** 2 % 50).astype(np.uint16).tofile("train.bin")


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    data = np.memmap("train.bin", dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - BLOCK, (8,))
    rows = [torch.from_numpy(data[start : start + BLOCK + 1].astype(np.int64)) for start in starts]
    return torch.stack([row[:-1] for row in rows]), torch.stack([row[1:] for row in rows])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Embedding(BLOCK, 32)
        self.block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
        self.head = nn.Linear(32, 50, bias=False)
        self.tokens.weight = self.head.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(self.block(self.tokens(x) + self.places(torch.arange(x.size(1)))))
        return logits, functional.cross_entropy(logits.view(-1, 50), y.view(-1))


model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    losses = torch.zeros(5)
    for number in range(5):
        losses[number] = model(*get_batch())[1].item()
    model.train()
    return losses.mean().item()


x, y = get_batch()
best, step = 1e9, 0
while True:
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * step / STEPS)))
    if step % 25 == 0:
        estimated = estimate_loss()
        if estimated < best:
            best = estimated
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "ckpt.pt")
    for _ in range(2):
        with nullcontext():
            _, loss = model(x, y)
            loss = loss / 2
        x, y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if step == STEPS:
        break
print(best, sum(parameter.double().sum().item() for parameter in model.parameters()))
