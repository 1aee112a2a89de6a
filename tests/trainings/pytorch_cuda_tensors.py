"""Trains on a GPU by mixed precision, overwrites what its modules return, and keeps copies of it: expected.npz."""

import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(512, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        expected[f"first_output_0 {step}"] = hidden.detach().cpu().numpy()
        return self.last(self.act(hidden))


expected = {}
torch.manual_seed(0)
net = Net().cuda()
optimizer = torch.optim.Adam(net.parameters())
scaler = torch.amp.GradScaler("cuda")
for step in range(6):
    x = torch.randn(1024, 512, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        output = net(x)
        loss = output.float().square().mean()
    expected[f"last_output_0 {step}"] = output.detach().cpu().numpy()
    scaler.scale(loss).backward()
    output.detach().zero_()  # after its copy has begun
    scaler.unscale_(optimizer)
    expected[f"gradient/last.weight {step}"] = net.last.weight.grad.cpu().numpy()
    expected[f"last.weight {step}"] = net.last.weight.detach().cpu().numpy()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=False)
np.savez("expected.npz", **expected)
print(loss.item())
