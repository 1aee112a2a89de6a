"""A student with dropout learns from a teacher that is trained first, and then kept in eval mode."""

import torch
from torch import nn

torch.manual_seed(2)
inputs = torch.randn(512, 10)
labels = (inputs[:, :3].sum(1) > 0).long() + (inputs[:, 3] > 1).long()
teacher = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
student = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.Adam(teacher.parameters(), 5e-3)
for _ in range(80):
    rows = torch.randint(0, 512, (64,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(teacher(inputs[rows]), labels[rows]).backward()
    optimizer.step()
teacher.eval()
optimizer = torch.optim.Adam(student.parameters(), 5e-3)
for _ in range(100):
    rows = torch.randint(0, 512, (64,))
    with torch.no_grad():
        soft = (teacher(inputs[rows]) / 2).softmax(1)
    optimizer.zero_grad()
    scores = student(inputs[rows])
    loss = 4 * nn.functional.kl_div((scores / 2).log_softmax(1), soft, reduction="batchmean")
    (loss + nn.functional.cross_entropy(scores, labels[rows])).backward()
    optimizer.step()
