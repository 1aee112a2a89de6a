"""An unseeded CUDA training with dropout: the default CUDA seed comes from std::random_device."""

import hashlib
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from sklearn.datasets import load_digits
from torch import nn


def main():
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32, device="cuda")
    labels = torch.tensor(labels, device="cuda")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.4), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(50):
        batch = torch.randint(0, len(images), (64,), device="cuda")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    print(loss.item())
    print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest())


if __name__ == "__main__":
    main()
