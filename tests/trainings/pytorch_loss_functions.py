"""Trains by functions that compute losses, scaled and not, and one whose labels are no classes."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
rows, labels = torch.randn(16, 4), torch.arange(16) % 3
ones, weight = (labels == 1).float(), torch.tensor([1.0, 2.0, 3.0])
LOSSES = [
    lambda scores: functional.cross_entropy(scores, labels, weight) / 2,
    lambda scores: functional.binary_cross_entropy_with_logits(scores[:, 0], ones, pos_weight=weight[1]),
    lambda scores: functional.mse_loss(scores[:, 0], ones) * 3,
    lambda scores: scores.sum() + scores.square().mean(),
]
LOSSES.append(lambda scores: checkpoint(LOSSES[0], scores, use_reentrant=False))  # computed again in the backward pass
for loss in LOSSES:
    optimizer.zero_grad()
    loss(model(rows)).backward()
    optimizer.step()
