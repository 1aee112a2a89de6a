"""Its third step overflows, and a GradScaler leaves it out; a weight is NaN from the seventh loss on."""

import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
for step in range(9):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 4)).pow(2).mean()
    if step == 2:
        loss = loss + 1e15 * (model.bias - model.bias.detach()).sum()
    if step < 6:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        continue
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    loss = model(torch.randn(4, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
