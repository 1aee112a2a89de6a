"""A training with autocast, a gradient scaler that skips updates, accumulated gradients, an average and schedules."""

import os
import sys

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS = int(sys.argv[1])

torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
averaged = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
optimizer = torch.optim.AdamW(net.parameters(), fused="fused" in sys.argv)
warmup = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
schedule = lr_scheduler.SequentialLR(optimizer, [warmup, lr_scheduler.CosineAnnealingLR(optimizer, STEPS)], [5])
plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
# Scales overflow each time that they have grown.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
for number in range(STEPS):
    for _ in range(2):
        x = torch.randn(16, 8)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean() * 8
        if number in (0, 34):  # the first update, and a fused optimizer's last one before the keyframe of step 35
            loss = loss * 2.0**60
        scaler.scale(loss).backward()
    if "clip" in sys.argv:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    schedule.step()
    averaged.update_parameters(net)
    plateau.step(loss)
print(scaler.get_scale(), float(averaged.module[0].weight.sum()), float(net[0].weight.sum()))
